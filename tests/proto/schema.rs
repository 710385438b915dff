//! The protocol's descriptors, with the comments of each thing.

use std::collections::HashMap;
use std::path::Path;

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet};

/// One file of ours.
pub struct File {
    pub descriptor: FileDescriptorProto,
    comments: HashMap<Vec<i32>, String>,
}

/// One field, as it is written.
pub struct Field<'f> {
    pub descriptor: &'f FieldDescriptorProto,
    pub kind: String,
    pub comment: String,
}

/// Every file of the package, by name: also those whose services have sockets of their own, or travel without any.
pub fn files() -> Vec<File> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let names = std::fs::read_dir(folder.join("kvtap/v1")).unwrap().map(|file| file.unwrap().path());
    let mut compiler = protox::Compiler::new([&folder]).unwrap();
    compiler.include_source_info(true).open_files(names).unwrap();
    let set = FileDescriptorSet::decode(&*compiler.encode_file_descriptor_set()).unwrap();
    let mut files: Vec<_> = set.file.into_iter().map(File::new).collect();
    files.sort_by(|a, b| a.descriptor.name().cmp(b.descriptor.name()));
    assert!(files.len() >= 2, "the package has lost files");
    files
}

impl File {
    fn new(descriptor: FileDescriptorProto) -> Self {
        let places = descriptor.source_code_info.iter().flat_map(|info| &info.location);
        let comments = places
            .filter_map(|place| Some((place.path.clone(), place.leading_comments.as_deref()?.trim().to_owned())))
            .collect();
        Self { descriptor, comments }
    }

    /// The comment before the thing at this path, its lines joined.
    pub fn comment(&self, path: &[i32]) -> String {
        let comment = self.comments.get(path).map(String::as_str).unwrap_or_default();
        comment.lines().map(str::trim).collect::<Vec<_>>().join(" ")
    }

    /// The fields of the message with this number in the file.
    pub fn fields<'f>(&'f self, message: usize, descriptor: &'f DescriptorProto) -> Vec<Field<'f>> {
        let fields = descriptor.field.iter().enumerate();
        fields
            .map(|(i, field)| Field {
                descriptor: field,
                kind: kind(field, descriptor),
                comment: self.comment(&[4, message as i32, 2, i as i32]),
            })
            .collect()
    }
}

/// A field's type, as it is written.
fn kind(field: &FieldDescriptorProto, message: &DescriptorProto) -> String {
    let entry = message.nested_type.iter().find(|entry| {
        entry.options.as_ref().is_some_and(|options| options.map_entry())
            && field.type_name().ends_with(&format!(".{}", entry.name()))
    });
    if let Some(entry) = entry {
        return format!("map<{}, {}>", scalar(&entry.field[0]), scalar(&entry.field[1]));
    }
    match (field.label(), field.proto3_optional()) {
        (Label::Repeated, _) => format!("repeated {}", scalar(field)),
        (_, true) => format!("optional {}", scalar(field)),
        _ => scalar(field),
    }
}

fn scalar(field: &FieldDescriptorProto) -> String {
    match field.r#type() {
        Type::Message | Type::Enum => field.type_name().rsplit('.').next().unwrap().to_owned(),
        other => format!("{other:?}").to_lowercase(),
    }
}
