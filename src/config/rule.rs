//! What the text of a setting may be, and what it then means.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::serve::ListenAddr;

/// The longest path of a unix socket, in bytes: Linux keeps 108 with the closing NUL.
const MAX_SOCKET_PATH: usize = 107;

/// Reads the text of one setting, from the file or from a variable.
pub(super) trait Rule {
    /// What the text means.
    type Value: Clone;

    /// Reads `text`.
    ///
    /// # Errors
    /// One line that says what is expected in its place.
    fn read(&self, text: &str) -> Result<Self::Value, String>;

    /// What is allowed, for the reference; also the words of the plainest faults.
    fn allowed(&self) -> String;

    /// What JSON Schema can say of its values: never less than [`Rule::read`] takes. A `${NAME}` may stand for any.
    fn schema(&self) -> Value {
        match self.is_text() {
            true => json!({"type": "string"}),
            false => json!({"type": ["string", "number", "boolean"]}),
        }
    }

    /// Whether a number or a truth value of the file is refused: as text it might read otherwise (`1.10`).
    fn is_text(&self) -> bool {
        false
    }
}

/// `true` or `false`.
pub(super) struct Flag;

/// A whole number of `unit`, which may be empty.
pub(super) struct Number {
    pub min: u64,
    pub max: u64,
    pub unit: &'static str,
}

/// A number of bytes: `65536`, `64KiB`, `16MiB`, `1GiB`.
pub(super) struct Bytes {
    pub min: u64,
    pub max: u64,
}

/// A time: `500ms`, `2s`, `5m`, `1h`.
pub(super) struct Time {
    pub min: Duration,
    pub max: Duration,
}

/// One of a few words.
pub(super) struct Words<T: 'static>(pub &'static [(&'static str, T)]);

/// Text without control characters, of 1 (or 0, where that is allowed) to `max` bytes.
pub(super) struct Text {
    pub min: usize,
    pub max: usize,
}

/// Where a server listens: `ip:port`, port 0 for any free one.
pub(super) struct TcpAddress;

/// Where a server listens: [`TcpAddress`] or `unix:///path`.
pub(super) struct Address;

// === the rules ===

fn expected(rule: &impl Rule, text: &str) -> String {
    format!("expected {}, not `{text}`", rule.allowed())
}

impl Rule for Flag {
    type Value = bool;

    fn read(&self, text: &str) -> Result<bool, String> {
        text.parse().map_err(|_| expected(self, text))
    }

    fn allowed(&self) -> String {
        "true or false".to_owned()
    }

    fn schema(&self) -> Value {
        json!({"anyOf": [{"type": "boolean"}, text("true|false")]})
    }
}

impl Rule for Number {
    type Value = u64;

    fn read(&self, text: &str) -> Result<u64, String> {
        in_range(text.parse().ok(), self.min, self.max).ok_or_else(|| expected(self, text))
    }

    fn allowed(&self) -> String {
        let unit = if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) };
        format!("{} to {}{unit}", self.min, self.max)
    }

    fn schema(&self) -> Value {
        json!({"anyOf": [{"type": "integer", "minimum": self.min, "maximum": self.max}, text("[0-9]+")]})
    }
}

impl Rule for Bytes {
    type Value = u64;

    fn read(&self, text: &str) -> Result<u64, String> {
        let (number, unit) = number_and_unit(text);
        let factor = match unit {
            "" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => return Err(expected(self, text)),
        };
        let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
        in_range(bytes, self.min, self.max).ok_or_else(|| expected(self, text))
    }

    fn allowed(&self) -> String {
        format!("{} to {}", show_bytes(self.min), show_bytes(self.max))
    }

    fn schema(&self) -> Value {
        let number = json!({"type": "integer", "minimum": self.min, "maximum": self.max});
        json!({"anyOf": [number, text("[0-9]+(KiB|MiB|GiB)?")]})
    }
}

impl Rule for Time {
    type Value = Duration;

    fn read(&self, text: &str) -> Result<Duration, String> {
        let (number, unit) = number_and_unit(text);
        let millis = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err(format!("{} (a number with ms, s, m or h)", expected(self, text))),
        };
        let millis = number.parse::<u64>().ok().and_then(|number| number.checked_mul(millis));
        in_range(millis.map(Duration::from_millis), self.min, self.max).ok_or_else(|| expected(self, text))
    }

    fn allowed(&self) -> String {
        format!("{} to {}", show_time(self.min), show_time(self.max))
    }

    fn schema(&self) -> Value {
        text("[0-9]+(ms|s|m|h)")
    }
}

impl<T: Copy> Rule for Words<T> {
    type Value = T;

    fn read(&self, text: &str) -> Result<T, String> {
        let found = self.0.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| expected(self, text))
    }

    fn allowed(&self) -> String {
        any_of(self.0.iter().map(|(word, _)| word))
    }

    fn schema(&self) -> Value {
        let words: Vec<_> = self.0.iter().map(|(word, _)| word).collect();
        json!({"anyOf": [{"enum": words}, {"type": "string", "pattern": VARIABLE}]})
    }
}

impl Rule for Text {
    type Value = String;

    fn read(&self, text: &str) -> Result<String, String> {
        if text.len() < self.min {
            return Err("must not be empty".to_owned());
        }
        if text.len() > self.max {
            return Err(format!("is {} bytes long, more than {}", text.len(), self.max));
        }
        if text.chars().any(char::is_control) {
            return Err("must not hold control characters".to_owned());
        }
        Ok(text.to_owned())
    }

    fn allowed(&self) -> String {
        format!("text of {} to {} bytes", self.min, self.max)
    }

    fn schema(&self) -> Value {
        json!({"type": "string", "minLength": self.min, "maxLength": self.max})
    }

    fn is_text(&self) -> bool {
        true
    }
}

impl Rule for TcpAddress {
    type Value = SocketAddr;

    fn read(&self, text: &str) -> Result<SocketAddr, String> {
        text.parse().map_err(|_| expected(self, text))
    }

    fn allowed(&self) -> String {
        "an ip:port such as 127.0.0.1:9400 or [::]:9400".to_owned()
    }

    fn is_text(&self) -> bool {
        true
    }
}

impl Rule for Address {
    type Value = ListenAddr;

    fn read(&self, text: &str) -> Result<ListenAddr, String> {
        let Some(path) = text.strip_prefix("unix://") else {
            return text.parse().map(ListenAddr::Tcp).map_err(|_| expected(self, text));
        };
        if !path.starts_with('/') {
            return Err(format!(
                "the path of a unix socket starts with `/`, as in unix:///run/kvtap.sock, not `{text}`"
            ));
        }
        if path.len() > MAX_SOCKET_PATH {
            return Err(format!("the path of a unix socket has at most {MAX_SOCKET_PATH} bytes, not {}", path.len()));
        }
        Ok(ListenAddr::Unix(PathBuf::from(path)))
    }

    fn allowed(&self) -> String {
        format!("{}, or unix:///path", TcpAddress.allowed())
    }

    fn is_text(&self) -> bool {
        true
    }
}

// === impl Words ===

impl<T: Copy + PartialEq> Words<T> {
    /// The word for a value; every value has one.
    pub fn word(&self, value: T) -> &'static str {
        self.0.iter().find(|(_, other)| *other == value).map_or("", |(word, _)| word)
    }
}

// === schemas ===

/// What a value looks like in which a variable stands.
const VARIABLE: &str = r"\$\{";

/// Text of this form as a whole, or with a variable in it.
fn text(form: &str) -> Value {
    json!({"type": "string", "pattern": format!("^({form})$|{VARIABLE}")})
}

// === words and numbers ===

/// `a`, `a or b`, `a, b or c`.
pub(super) fn any_of(words: impl IntoIterator<Item = impl Display>) -> String {
    let words: Vec<String> = words.into_iter().map(|word| word.to_string()).collect();
    match words.split_last() {
        None => String::new(),
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
    }
}

fn in_range<T: PartialOrd>(value: Option<T>, min: T, max: T) -> Option<T> {
    value.filter(|value| *value >= min && *value <= max)
}

fn number_and_unit(text: &str) -> (&str, &str) {
    let end = text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

fn show_bytes(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|(size, _)| bytes >= *size && bytes.is_multiple_of(*size)) {
        Some((size, unit)) => format!("{}{unit}", bytes / size),
        None => bytes.to_string(),
    }
}

fn show_time(time: Duration) -> String {
    let millis = time.as_millis();
    let units = [(3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")];
    match units.iter().find(|(size, _)| millis >= *size && millis.is_multiple_of(*size)) {
        Some((size, unit)) => format!("{}{unit}", millis / size),
        None => "0s".to_owned(),
    }
}
