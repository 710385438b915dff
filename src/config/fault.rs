//! What is wrong with a configuration, and where.

use std::fmt;

/// Where a setting was written.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// In the file. Both numbers count from 1, columns in characters; 0 stands for the file as a whole.
    File {
        /// The line.
        line: u64,
        /// The column.
        column: u64,
    },
    /// In this environment variable.
    Env(String),
}

/// A value and where it was written.
#[derive(Clone, Debug)]
pub(super) struct Placed<T> {
    pub value: T,
    pub place: Place,
}

/// One fault, or one warning: displayed as one line, `file:line:column: key: what is wrong`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The file's name, as it was given.
    pub file: String,
    /// Where the faulty setting was written.
    pub place: Place,
    /// The setting's path, such as `feeds[0].endpoint`; empty for the file as a whole.
    pub key: String,
    /// What is wrong, in one line.
    pub what: String,
}

/// Everything that is wrong with a configuration: at least one fault, in the order of their places.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Faults(Vec<Fault>);

/// What an operator should know although the configuration is accepted; one line each, like [`Faults`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Warnings(Vec<Fault>);

// === impl Place ===

impl Place {
    /// The file as a whole.
    pub(super) const WHOLE_FILE: Self = Self::File { line: 0, column: 0 };
}

// === impl Fault ===

impl Fault {
    /// A fault in one line, whatever the file held: control characters become `?`.
    pub(super) fn new(file: &str, place: Place, key: &str, what: &str) -> Self {
        let tame = |text: &str| text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        Self { file: tame(file), place, key: tame(key), what: tame(what) }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::File { line: 0, .. } => write!(f, "{}: ", self.file)?,
            Place::File { line, column } => write!(f, "{}:{line}:{column}: ", self.file)?,
            Place::Env(name) => write!(f, "{name}: ")?,
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.what)
    }
}

// === impl Faults ===

impl Faults {
    /// Sorts what was found; `None` where nothing was.
    pub(super) fn of(mut found: Vec<Fault>) -> Option<Self> {
        found.sort_by(|a, b| a.place.cmp(&b.place));
        if found.is_empty() { None } else { Some(Self(found)) }
    }

    /// The one fault that stopped the reading.
    pub(super) fn one(fault: Fault) -> Self {
        Self(vec![fault])
    }

    /// The faults one by one.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.0.iter()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        lines(&self.0, f)
    }
}

impl std::error::Error for Faults {}

// === impl Warnings ===

impl Warnings {
    pub(super) fn of(mut found: Vec<Fault>) -> Self {
        found.sort_by(|a, b| a.place.cmp(&b.place));
        Self(found)
    }

    /// The warnings one by one.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.0.iter()
    }
}

impl fmt::Display for Warnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        lines(&self.0, f)
    }
}

fn lines(faults: &[Fault], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (i, fault) in faults.iter().enumerate() {
        if i > 0 {
            f.write_str("\n")?;
        }
        write!(f, "{fault}")?;
    }
    Ok(())
}
