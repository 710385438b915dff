//! The JSON Schema of the configuration, for editors and for the Helm chart: made of what the reader asks for, so that a
//! setting which is read is in it, and of the words of `docs/config.md`.

use serde_json::{Map, Value, json};

use super::read::Key;

/// The reference, whose sentences become descriptions.
const PAGE: &str = include_str!("../../docs/config.md");

/// The schema of the whole file, by draft 2020-12.
pub fn schema() -> Value {
    let mut root = object();
    for key in super::keys() {
        let mut at = &mut root;
        let mut steps = key.path.split('.').peekable();
        while let Some(step) = steps.next() {
            let (name, many) = step.strip_suffix("[]").map_or((step, false), |name| (name, true));
            let leaf = steps.peek().is_none();
            if leaf && key.default == "required" {
                require(at, name);
            }
            let Some(properties) = at.get_mut("properties").and_then(Value::as_object_mut) else { break };
            if leaf {
                properties.insert(name.to_owned(), setting(&key));
                break;
            }
            let child = properties.entry(name).or_insert_with(|| match many {
                false => object(),
                true => json!({"type": ["array", "null"], "items": object()}),
            });
            let Some(next) = (if many { child.get_mut("items") } else { Some(child) }) else { break };
            at = next;
        }
    }
    let mut whole = Map::new();
    whole.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
    whole.insert("title".to_owned(), json!("kvtap.yaml"));
    if let Value::Object(root) = root {
        whole.extend(root);
    }
    Value::Object(whole)
}

/// A map of settings, which may be left empty.
fn object() -> Value {
    json!({"type": ["object", "null"], "additionalProperties": false, "properties": {}})
}

fn require(object: &mut Value, name: &str) {
    let Some(object) = object.as_object_mut() else { return };
    let list = object.entry("required").or_insert_with(|| json!([]));
    if let Some(list) = list.as_array_mut() {
        list.push(json!(name));
    }
}

fn setting(key: &Key) -> Value {
    let mut schema = match &key.schema {
        Value::Object(schema) => schema.clone(),
        _ => Map::new(),
    };
    let meaning = meaning(&key.path).unwrap_or_default();
    let default = match key.default.as_str() {
        "required" | "none" => String::new(),
        default => format!(" Default: {}.", default.trim_matches('`')),
    };
    let description = format!("{}.{default} {}", meaning.trim_end_matches('.'), sentence(&key.allowed));
    schema.insert("description".to_owned(), json!(description.trim_start_matches(". ")));
    Value::Object(schema)
}

fn sentence(allowed: &str) -> String {
    let mut letters = allowed.chars();
    letters.next().map_or_else(String::new, |first| format!("{}{}.", first.to_uppercase(), letters.as_str()))
}

/// The second cell of a setting's row, without the signs of its markup.
fn meaning(path: &str) -> Option<String> {
    let row = PAGE.lines().find_map(|line| line.strip_prefix(&format!("| `{path}` | ")))?;
    Some(row.split(" | ").next()?.replace('`', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_its_place_its_kind_and_its_meaning() {
        let schema = schema();
        for key in crate::config::keys() {
            let pointer = key.path.split('.').map(|step| match step.strip_suffix("[]") {
                Some(name) => format!("/properties/{name}/items"),
                None => format!("/properties/{step}"),
            });
            let found = schema.pointer(&pointer.collect::<String>());
            let found = found.unwrap_or_else(|| panic!("{} is not in the schema", key.path));
            let kinds = found.as_object().unwrap().keys().filter(|name| *name != "description").count();
            assert!(kinds > 0, "{} may be anything", key.path);
            assert!(found["description"].as_str().unwrap().len() > key.allowed.len() + 12, "{found}");
        }
        assert_eq!(
            schema.pointer("/properties/feeds/items/required").unwrap(),
            &json!(["worker", "model", "endpoint"])
        );
    }
}
