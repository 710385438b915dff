//! YAML as a tree that remembers where each value stood, so that every fault of a file can be told at once.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::DuplicateKeyPolicy;
use serde_saphyr::{DefaultMessageFormatter, Location, MessageFormatter, Spanned};

use super::fault::{Place, Placed};

/// Levels of lists and maps that a file may nest. The deepest setting is at level 4.
const MAX_DEPTH: usize = 16;

/// Values, keys and brackets that a file may hold, repeated anchors included.
const MAX_EVENTS: usize = 1 << 20;

/// One YAML value.
#[derive(Clone, Debug)]
pub(super) enum Node {
    Null,
    Scalar(Scalar),
    List(Vec<Placed<Node>>),
    /// Keys in the file's order, those given twice included.
    Map(Vec<(Placed<String>, Placed<Node>)>),
}

/// A number, a truth value or text.
#[derive(Clone, Debug)]
pub(super) struct Scalar {
    pub text: String,
    /// What YAML takes it for: `None` is text, else the word for it.
    pub other_than_text: Option<&'static str>,
}

/// Reads one YAML document.
///
/// # Errors
/// What stops a reader: a syntax error, or a document beyond the bounds above. There is only ever one.
pub(super) fn parse(text: &str) -> Result<Placed<Node>, Placed<String>> {
    let options = serde_saphyr::options! {
        // All pairs reach the tree, which reports each double with both places.
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_events: MAX_EVENTS,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_EVENTS },
        strict_booleans: true,
        with_snippet: false,
    };
    // A file without any value is an empty configuration, not a syntax error.
    let parsed = serde_saphyr::from_str_with_options::<Option<Spanned<Node>>>(text, options);
    match parsed {
        Ok(None) => Ok(Placed { value: Node::Null, place: Place::WHOLE_FILE }),
        Ok(Some(node)) => Ok(node.into()),
        Err(error) => {
            let place = error.location().map_or(Place::WHOLE_FILE, Place::from);
            let value = match error.without_snippet() {
                serde_saphyr::Error::MultipleDocuments { .. } => "holds more than one YAML document".to_owned(),
                error => DefaultMessageFormatter.format_message(error).into_owned(),
            };
            Err(Placed { value, place })
        }
    }
}

// === impl Node ===

impl Node {
    /// The word for what this is, in faults.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Scalar(scalar) => scalar.other_than_text.unwrap_or("text"),
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
        }
    }

    fn scalar<E>(text: String, other_than_text: Option<&'static str>) -> Result<Self, E> {
        Ok(Self::Scalar(Scalar { text, other_than_text }))
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Node::scalar(value.to_string(), Some("true or false"))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Node::scalar(value.to_string(), Some("a number"))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Node::scalar(value.to_string(), Some("a number"))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Node, E> {
        Node::scalar(value.to_string(), Some("a number"))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Node, E> {
        Node::scalar(value.to_string(), Some("a number"))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Node::scalar(value.to_string(), Some("a number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Node::scalar(value.to_owned(), None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element::<Spanned<Node>>()? {
            items.push(item.into());
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut pairs = Vec::new();
        while let Some(key) = map.next_key::<Spanned<Node>>()? {
            let Placed { value: key, place } = key.into();
            // No setting is called by a list or by nothing: such a key is unknown, like any other.
            let text = match key {
                Node::Scalar(Scalar { text, .. }) => text,
                other => format!("({})", other.kind()),
            };
            let value = map.next_value::<Spanned<Node>>()?;
            pairs.push((Placed { value: text, place }, value.into()));
        }
        Ok(Node::Map(pairs))
    }
}

// === impl Placed ===

impl From<Spanned<Node>> for Placed<Node> {
    fn from(node: Spanned<Node>) -> Self {
        // An aliased value is mended where it is defined.
        Self { place: node.defined.into(), value: node.value }
    }
}

impl From<Location> for Place {
    fn from(location: Location) -> Self {
        Self::File { line: location.line(), column: location.column() }
    }
}
