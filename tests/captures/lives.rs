//! A capture, cut into lives: lines that one engine could have sent.
//!
//! A capture holds what several publishers sent, of models with one cache group and with three, with blocks of 1 token
//! and of 1,024. Lines whose stores agree on that make one life; a line without tokens belongs to the life of the line
//! before it.

use serde_json::Value;

use crate::oracle::{kind_is_full, tokens_of};
use crate::tap_support::fixture;

/// What all stores of one life agree on: per group its kind, its window, and, where its blocks mean a prefix, block
/// size and lookahead.
type Shape = Vec<(u64, Option<String>, Option<u64>, Option<(u64, usize)>)>;

/// One life of an engine.
#[derive(Debug)]
pub struct Life {
    shape: Shape,
    /// Its lines, by their place in the file.
    pub lines: Vec<usize>,
}

/// Every line of a capture.
pub fn lines(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(fixture(&format!("wire/{name}.jsonl"))).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The lives that these lines make, by their first lines.
pub fn lives(lines: &[Value]) -> Vec<Life> {
    let shapes: Vec<Shape> = lines.iter().map(shape).collect();
    let mut current = shapes.iter().find(|shape| !shape.is_empty()).unwrap().clone();
    let mut lives: Vec<Life> = Vec::new();
    for (i, shape) in shapes.into_iter().enumerate() {
        if !shape.is_empty() {
            current = shape;
        }
        match lives.iter_mut().find(|life| life.shape == current) {
            Some(life) => life.lines.push(i),
            None => lives.push(Life { shape: current.clone(), lines: vec![i] }),
        }
    }
    lives
}

/// All lines as one life.
pub fn one_life(lines: &[Value]) -> Life {
    Life { shape: Shape::new(), lines: (0..lines.len()).collect() }
}

fn shape(line: &Value) -> Shape {
    let mut shape = Shape::new();
    for event in line["expect"]["events"].as_array().unwrap() {
        if event["type"] != "stored" || event["token_ids"].as_array().unwrap().is_empty() {
            continue;
        }
        let kind = event["kv_cache_spec_kind"].as_str();
        let grid = kind_is_full(kind).then(|| (event["block_size"].as_u64().unwrap(), tokens_of(event).1));
        let group = event["group_idx"].as_u64().unwrap_or(0);
        let window = event["kv_cache_spec_sliding_window"].as_u64();
        shape.push((group, kind.map(str::to_owned), window, grid));
    }
    shape.sort();
    shape.dedup();
    shape
}
