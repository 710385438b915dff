//! Numbers are for ever: what `tests/proto/numbers.lock` holds is still what it was, or reserved.

use std::collections::BTreeMap;

use super::schema::{File, files};
use super::{file, holds};

const LOCK: &str = "tests/proto/numbers.lock";

/// Each number by its owner, with its name and type: `MatchRequest 1` is `model string`.
type Numbers = BTreeMap<(String, i32), String>;

fn of_file(schema: &File, numbers: &mut Numbers) {
    for (i, message) in schema.descriptor.message_type.iter().enumerate() {
        for field in schema.fields(i, message) {
            let text = format!("{} {}", field.descriptor.name(), field.kind);
            numbers.insert((message.name().to_owned(), field.descriptor.number()), text);
        }
        for range in &message.reserved_range {
            for number in range.start()..range.end() {
                numbers.insert((message.name().to_owned(), number), "reserved".to_owned());
            }
        }
    }
    for kind in &schema.descriptor.enum_type {
        for value in &kind.value {
            numbers.insert((kind.name().to_owned(), value.number()), format!("{} value", value.name()));
        }
    }
}

fn now() -> Numbers {
    let mut numbers = Numbers::new();
    files().iter().for_each(|schema| of_file(schema, &mut numbers));
    numbers
}

fn locked() -> Numbers {
    let text = std::fs::read_to_string(file(LOCK)).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let mut words = line.splitn(3, ' ');
            let (owner, number, what) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            ((owner.to_owned(), number.parse().unwrap()), what.to_owned())
        })
        .collect()
}

#[test]
fn no_number_is_given_up_or_given_to_something_else() {
    let now = now();
    for ((owner, number), what) in locked() {
        match now.get(&(owner.clone(), number)) {
            Some(other) if *other == what || other == "reserved" => {}
            Some(other) => panic!("{owner} {number} was `{what}` and would be `{other}`: take a new number"),
            None => panic!("{owner} {number}, `{what}`, is gone: reserve its number"),
        }
    }
    let mut text = "# Every number of the protocol, for ever. tests/proto compares, and writes new ones.\n".to_owned();
    for ((owner, number), what) in &now {
        text.push_str(&format!("{owner} {number} {what}\n"));
    }
    holds(LOCK, &text);
}
