//! A feed that does not come from the file: the same settings under the same rules, from a call or an annotation.

use super::Env;
use super::fault::{Fault, Faults, Place, Placed, Warnings};
use super::feed::{self, Feed};
use super::read::Reader;
use super::sections::Tuning;
use super::tree::{Node, Scalar};

/// The value of one setting, as text: read like a value of the file, except that `${NAME}` stands for itself. The
/// process's environment is nobody's business outside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Setting {
    /// One value.
    One(String),
    /// A list of values.
    List(Vec<String>),
}

// === impl Feed ===

impl Feed {
    /// Reads the entry of `feeds` that these settings make. What they do not say, `defaults` says. Faults and warnings
    /// begin with `origin`, in place of a file's name.
    ///
    /// # Errors
    /// Everything that is wrong with it: at least one fault.
    pub fn from_settings(
        settings: Vec<(String, Setting)>,
        origin: &str,
        defaults: &Tuning,
    ) -> Result<(Self, Warnings), Faults> {
        let env = Env::default();
        let mut reader = Reader::new(origin, &env);
        let root = placed(Node::Map(settings.into_iter().map(|(key, value)| (placed(key), value.into())).collect()));
        let root = reader.root(&root);
        let read = feed::read(&mut reader, root, Some(defaults));
        match (Faults::of(reader.faults), read) {
            (None, Some(read)) => Ok((read.feed, Warnings::of(reader.warnings))),
            (Some(faults), _) => Err(faults),
            // A setting that is missing was reported, so this is never seen; it is a fault all the same.
            (None, None) => Err(Faults::one(Fault::new(origin, Place::WHOLE_FILE, "", "cannot be used"))),
        }
    }
}

fn placed<T>(value: T) -> Placed<T> {
    Placed { value, place: Place::WHOLE_FILE }
}

fn scalar(text: &str) -> Placed<Node> {
    // What the file would have to write for a plain `${`.
    placed(Node::Scalar(Scalar { text: text.replace("${", "$${"), other_than_text: None }))
}

// === impl Setting ===

impl Setting {
    /// One value.
    pub fn one(value: impl Into<String>) -> Self {
        Self::One(value.into())
    }
}

impl From<Setting> for Placed<Node> {
    fn from(setting: Setting) -> Self {
        match setting {
            Setting::One(text) => scalar(&text),
            Setting::List(items) => placed(Node::List(items.iter().map(|item| scalar(item)).collect())),
        }
    }
}
