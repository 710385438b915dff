//! Reading settings one by one: from the file, from a variable that overrides it, or by default.
//!
//! Each setting is asked for in one place, and that place says its name, what it may be and its default. The
//! [`Reader`] notes what it was asked for, so that unknown names, the suggestion made for them, the overriding
//! variables and the reference of all keys come from the same lines of code.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Value, json};

use super::env::{Env, PREFIX};
use super::fault::{Fault, Place, Placed};
use super::rule::Rule;
use super::tree::{Node, Scalar};

/// One setting there is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Key {
    /// Its path; `[]` stands for any item of a list.
    pub path: String,
    /// What it may be: a range with its unit, or words.
    pub allowed: String,
    /// Its value where none is given: `required`, `none`, a value, or the key that gives it.
    pub default: String,
    /// The environment variable that overrides it.
    pub env: Option<String>,
    /// What JSON Schema says of its values.
    pub schema: Value,
}

/// What holds where a setting is not given.
pub(super) enum Default<T> {
    /// This text, read like any other.
    Text(&'static str),
    /// This value, which another key gave.
    Of(&'static str, T),
}

pub(super) struct Reader<'e> {
    file: String,
    env: &'e Env,
    pub faults: Vec<Fault>,
    pub warnings: Vec<Fault>,
    pub keys: Vec<Key>,
}

/// A map of the file, while its keys are being asked for.
pub(super) struct Section<'n> {
    /// Where it stands in this file: `feeds[0]`; empty for the whole file.
    path: String,
    /// The same for the reference: `feeds[]`.
    schema: String,
    pub place: Place,
    pairs: &'n [(Placed<String>, Placed<Node>)],
    asked: Vec<&'static str>,
    overridable: bool,
}

// === impl Reader ===

impl<'e> Reader<'e> {
    pub fn new(file: &str, env: &'e Env) -> Self {
        Self { file: file.to_owned(), env, faults: Vec::new(), warnings: Vec::new(), keys: Vec::new() }
    }

    pub fn fault(&mut self, place: &Place, key: &str, what: impl Into<String>) {
        self.faults.push(Fault::new(&self.file, place.clone(), key, &what.into()));
    }

    pub fn warn(&mut self, place: &Place, key: &str, what: impl Into<String>) {
        self.warnings.push(Fault::new(&self.file, place.clone(), key, &what.into()));
    }

    /// The whole file.
    pub fn root<'n>(&mut self, root: &'n Placed<Node>) -> Section<'n> {
        self.open(root, String::new(), String::new(), false)
    }

    /// Variables that claim to be settings and are none.
    pub fn unknown_variables(&mut self) {
        let known: BTreeSet<String> = self.keys.iter().filter_map(|key| key.env.clone()).collect();
        let unknown: Vec<String> =
            self.env.settings().filter(|name| !known.contains(*name)).map(str::to_owned).collect();
        for name in unknown {
            let near = nearest(&name, known.iter().map(String::as_str));
            let hint = near.map_or_else(
                || format!("variables that begin with {PREFIX} override settings, as {PREFIX}<SECTION>_<KEY>"),
                |near| format!("did you mean {near}?"),
            );
            self.fault(&Place::Env(name), "", format!("no such setting; {hint}"));
        }
    }

    /// Says what the values of the setting that was asked for last may be.
    fn describe(&mut self, schema: Value) {
        if let Some(key) = self.keys.last_mut() {
            key.schema = schema;
        }
    }

    fn open<'n>(&mut self, node: &'n Placed<Node>, path: String, schema: String, overridable: bool) -> Section<'n> {
        let pairs: &[_] = match &node.value {
            Node::Map(pairs) => pairs,
            Node::Null => &[],
            other => {
                let what = format!("expected a map of settings, not {}", other.kind());
                self.fault(&node.place, &path, what);
                &[]
            }
        };
        let section = Section { path, schema, place: node.place.clone(), pairs, asked: Vec::new(), overridable };
        let mut first_places: HashMap<&str, &Place> = HashMap::new();
        for (key, _) in pairs {
            let first = *first_places.entry(&key.value).or_insert(&key.place);
            if let Place::File { line, .. } = first
                && *first != key.place
            {
                self.fault(&key.place, &section.path_of(&key.value), format!("is given twice, first in line {line}"));
            }
        }
        section
    }

    fn read<R: Rule>(&mut self, path: &str, text: &str, place: &Place, rule: &R) -> Option<Placed<R::Value>> {
        match rule.read(text) {
            Ok(value) => Some(Placed { value, place: place.clone() }),
            Err(what) => {
                self.fault(place, path, what);
                None
            }
        }
    }

    fn read_scalar<R: Rule>(&mut self, path: &str, node: &Placed<Node>, rule: &R) -> Option<Placed<R::Value>> {
        let Node::Scalar(Scalar { text, other_than_text }) = &node.value else {
            let what = format!("expected {}, not {}", rule.allowed(), node.value.kind());
            self.fault(&node.place, path, what);
            return None;
        };
        match other_than_text {
            Some(kind) if rule.is_text() => {
                self.fault(&node.place, path, format!("expected text, not {kind}: put it in quotes"));
                None
            }
            Some(_) => self.read(path, text, &node.place, rule),
            None => match self.env.expand(text) {
                Ok(text) => self.read(path, &text, &node.place, rule),
                Err(what) => {
                    self.fault(&node.place, path, what);
                    None
                }
            },
        }
    }
}

// === impl Section ===

impl<'n> Section<'n> {
    /// A map inside this one; an empty one where it is not given.
    pub fn section(&mut self, reader: &mut Reader<'_>, name: &'static str) -> Section<'n> {
        self.asked.push(name);
        let (path, schema) = (self.path_of(name), join(&self.schema, name));
        match self.find(name) {
            Some(node) => reader.open(node, path, schema, true),
            None => {
                let place = self.place.clone();
                Section { path, schema, place, pairs: &[], asked: Vec::new(), overridable: true }
            }
        }
    }

    /// The maps of a list; none where it is not given.
    pub fn sections(&mut self, reader: &mut Reader<'_>, name: &'static str) -> Vec<Section<'n>> {
        self.asked.push(name);
        let (path, schema) = (self.path_of(name), join(&self.schema, name));
        let items = match self.find(name) {
            None => return Vec::new(),
            Some(Placed { value: Node::List(items), .. }) => items,
            Some(other) => {
                reader.fault(&other.place, &path, format!("expected a list, not {}", other.value.kind()));
                return Vec::new();
            }
        };
        let items = items.iter().enumerate();
        items.map(|(i, item)| reader.open(item, format!("{path}[{i}]"), format!("{schema}[]"), false)).collect()
    }

    /// A setting that must be given.
    pub fn required<R: Rule>(
        &mut self,
        reader: &mut Reader<'_>,
        name: &'static str,
        rule: &R,
    ) -> Option<Placed<R::Value>> {
        let given = self.given(reader, name, rule, "required".to_owned());
        given.unwrap_or_else(|| {
            reader.fault(&self.place, &self.path_of(name), "is required");
            None
        })
    }

    /// A setting that need not be given.
    pub fn optional<R: Rule>(
        &mut self,
        reader: &mut Reader<'_>,
        name: &'static str,
        rule: &R,
    ) -> Option<Placed<R::Value>> {
        self.given(reader, name, rule, "none".to_owned()).flatten()
    }

    /// A setting with a default, which also stands in for a faulty value so that reading can go on.
    pub fn or<R: Rule>(
        &mut self,
        reader: &mut Reader<'_>,
        name: &'static str,
        rule: &R,
        default: Default<R::Value>,
    ) -> Option<Placed<R::Value>> {
        let shown = match &default {
            Default::Text(text) => (*text).to_owned(),
            Default::Of(key, _) => format!("`{key}`"),
        };
        if let Some(Some(value)) = self.given(reader, name, rule, shown) {
            return Some(value);
        }
        match default {
            Default::Text(text) => reader.read(&self.path_of(name), text, &self.place, rule),
            Default::Of(_, value) => Some(Placed { value, place: self.place.clone() }),
        }
    }

    /// A list of values; `default` is written like its variable, with commas. A list with a default is never empty.
    pub fn list<R: Rule>(
        &mut self,
        reader: &mut Reader<'_>,
        name: &'static str,
        rule: &R,
        default: &'static str,
    ) -> Vec<Placed<R::Value>> {
        let path = self.path_of(name);
        let shown = if default.is_empty() { "none" } else { default };
        let allowed = format!("list of: {}", rule.allowed());
        let from_commas = |reader: &mut Reader<'_>, text: &str, place: &Place| -> Vec<Placed<R::Value>> {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            items.filter_map(|item| reader.read(&path, item, place, rule)).collect()
        };
        let empty = "must have at least one item";
        let set = self.ask(reader, name, allowed, shown.to_owned());
        let least = usize::from(!default.is_empty());
        reader.describe(json!({"type": ["array", "null"], "items": rule.schema(), "minItems": least}));
        if let Some((text, place)) = set {
            if !default.is_empty() && text.trim().is_empty() {
                reader.fault(&place, &path, empty);
            }
            return from_commas(reader, &text, &place);
        }
        match self.find(name) {
            None => from_commas(reader, default, &self.place),
            Some(Placed { value: Node::List(items), place }) => {
                if !default.is_empty() && items.is_empty() {
                    reader.fault(place, &path, empty);
                }
                let items = items.iter().enumerate();
                items.filter_map(|(i, item)| reader.read_scalar(&format!("{path}[{i}]"), item, rule)).collect()
            }
            Some(other) => {
                reader.fault(&other.place, &path, format!("expected a list, not {}", other.value.kind()));
                Vec::new()
            }
        }
    }

    /// Says which keys of the map nobody asked for.
    pub fn finish(self, reader: &mut Reader<'_>) {
        for (key, _) in self.pairs.iter().filter(|(key, _)| !self.asked.contains(&key.value.as_str())) {
            let hint = nearest(&key.value, self.asked.iter().copied()).map_or_else(
                || format!("known here: {}", self.asked.join(", ")),
                |near| format!("did you mean `{near}`?"),
            );
            reader.fault(&key.place, &self.path_of(&key.value), format!("no such setting; {hint}"));
        }
    }

    /// Whether the file says anything in it.
    pub fn is_given(&self) -> bool {
        !self.pairs.is_empty()
    }

    /// The path of one of its keys, for faults.
    pub fn path_of(&self, name: &str) -> String {
        join(&self.path, name)
    }

    /// `None`: not given. `Some(None)`: given and faulty.
    fn given<R: Rule>(
        &mut self,
        reader: &mut Reader<'_>,
        name: &'static str,
        rule: &R,
        default: String,
    ) -> Option<Option<Placed<R::Value>>> {
        let path = self.path_of(name);
        let schema = if default == "required" { rule.schema() } else { or_nothing(rule.schema()) };
        let set = self.ask(reader, name, rule.allowed(), default);
        reader.describe(schema);
        if let Some((text, place)) = set {
            return Some(reader.read(&path, &text, &place, rule));
        }
        Some(reader.read_scalar(&path, self.find(name)?, rule))
    }

    /// Notes that a key was asked for; what its variable says, where there is one and it is set.
    fn ask(
        &mut self,
        reader: &mut Reader<'_>,
        name: &'static str,
        allowed: String,
        default: String,
    ) -> Option<(String, Place)> {
        self.asked.push(name);
        let path = join(&self.schema, name);
        let env = self.overridable.then(|| format!("{PREFIX}{}", path.to_ascii_uppercase().replace('.', "_")));
        let set = env.as_ref().and_then(|env| reader.env.get(env)).map(str::to_owned);
        let place = env.clone().map(Place::Env);
        reader.keys.push(Key { path, allowed, default, env, schema: Value::Null });
        set.zip(place)
    }

    fn find(&self, name: &str) -> Option<&'n Placed<Node>> {
        let found = self.pairs.iter().find(|(key, _)| key.value == name);
        found.map(|(_, node)| node).filter(|node| !matches!(node.value, Node::Null))
    }
}

/// A schema that allows a key without a value too.
fn or_nothing(schema: Value) -> Value {
    json!({"anyOf": [schema, {"type": "null"}]})
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// The known name that a mistyped one is close to: at most a third of its letters differ.
fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let near = known.map(|known| (distance(name, known), known)).min_by_key(|(distance, _)| *distance);
    near.filter(|(distance, known)| distance * 3 <= known.chars().count()).map(|(_, known)| known)
}

/// Letters to insert, remove, replace or swap with their neighbour to get from `a` to `b`.
fn distance(a: &str, b: &str) -> usize {
    /// Longer names than this are nobody's typing error.
    const LONGEST: usize = 64;
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(LONGEST).collect(), b.chars().take(LONGEST).collect());
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let replaced = row.get(j).map_or(usize::MAX, |cost| cost + usize::from(x != y));
            let inserted = next.get(j).map_or(usize::MAX, |cost| cost + 1);
            let removed = row.get(j + 1).map_or(usize::MAX, |cost| cost + 1);
            let swap = i > 0 && j > 0 && a.get(i - 1) == Some(y) && b.get(j - 1) == Some(x);
            let swapped = before.get(j.wrapping_sub(1)).filter(|_| swap).map_or(usize::MAX, |cost| cost + 1);
            next.push(replaced.min(inserted).min(removed).min(swapped));
        }
        before = std::mem::replace(&mut row, next);
    }
    row.last().copied().unwrap_or(0)
}
