//! `docs/proto.md`, made of the protocol's own comments.

use super::holds;
use super::schema::{File, files};

const HEAD: &str = "# The protocol\n\n\
    Package `kvtap.v1`, made of the comments of [proto/kvtap/v1](../proto/kvtap/v1) by `tests/proto`; do not edit it here.\n";

/// A cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn services(file: &File, page: &mut String) {
    for (i, service) in file.descriptor.service.iter().enumerate() {
        page.push_str(&format!("\n## Service `{}`\n\n{}\n\n", service.name(), file.comment(&[6, i as i32])));
        page.push_str("| call | request | response | what it does |\n|---|---|---|---|\n");
        for (j, call) in service.method.iter().enumerate() {
            let of = |name: &str, stream: bool| {
                let name = name.rsplit('.').next().unwrap_or_default();
                format!("{}[`{name}`](#{})", if stream { "stream of " } else { "" }, name.to_lowercase())
            };
            let (asks, answers) = (call.client_streaming(), call.server_streaming());
            page.push_str(&format!(
                "| `{}` | {} | {} | {} |\n",
                call.name(),
                of(call.input_type(), asks),
                of(call.output_type(), answers),
                cell(&file.comment(&[6, i as i32, 2, j as i32]))
            ));
        }
    }
}

fn messages(file: &File, page: &mut String) {
    for (i, message) in file.descriptor.message_type.iter().enumerate() {
        page.push_str(&format!("\n### {}\n\n{}\n\n", message.name(), file.comment(&[4, i as i32])));
        page.push_str("| number | field | type | meaning |\n|---|---|---|---|\n");
        for field in file.fields(i, message) {
            let one_of = field.descriptor.oneof_index.filter(|_| !field.descriptor.proto3_optional());
            let choice = one_of.and_then(|at| message.oneof_decl.get(at as usize));
            let choice = choice.map(|choice| format!("one of `{}`: ", choice.name())).unwrap_or_default();
            page.push_str(&format!(
                "| {} | `{}` | `{}` | {choice}{} |\n",
                field.descriptor.number(),
                field.descriptor.name(),
                field.kind,
                cell(&field.comment)
            ));
        }
    }
}

fn enums(file: &File, page: &mut String) {
    for (i, kind) in file.descriptor.enum_type.iter().enumerate() {
        page.push_str(&format!("\n### {}\n\n{}\n\n", kind.name(), file.comment(&[5, i as i32])));
        page.push_str("| number | value | meaning |\n|---|---|---|\n");
        for (j, value) in kind.value.iter().enumerate() {
            let comment = cell(&file.comment(&[5, i as i32, 2, j as i32]));
            page.push_str(&format!("| {} | `{}` | {comment} |\n", value.number(), value.name()));
        }
    }
}

#[test]
fn the_page_of_the_protocol_is_made_of_its_comments() {
    let mut page = HEAD.to_owned();
    let files = files();
    files.iter().for_each(|file| services(file, &mut page));
    for file in &files {
        page.push_str(&format!("\n## `{}`\n", file.descriptor.name()));
        enums(file, &mut page);
        messages(file, &mut page);
    }
    holds("docs/proto.md", &page);
}
