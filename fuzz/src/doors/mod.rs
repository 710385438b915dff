//! Every door that bytes from outside come in by, as one function each: bytes in, nothing out, a panic where an
//! invariant does not hold.
//!
//! ```text
//! wire      wire::decode, every dialect         frames    live messages, replay replies, Dynamo's plane
//! trtllm    the same, TensorRT-LLM's JSON       zmtp      greeting, frames and commands of ZMTP
//! dynamo    router events and their envelope    config    the YAML file and the variables over it
//! query     request bodies through the service  pipeline  messages of a life: decode, normalize, index
//! relay     what a fleet tells: read, mirrored   snapshot  a file: read, restored, told again
//! ```
//!
//! Two use this room: the fuzz targets, which look for new bytes, and `tests/doors.rs`, which damages captured ones in a
//! way that is the same each time. It depends on the product's public items only.

mod beside;
pub mod config;
pub mod frames;
pub mod pipeline;
pub mod query;
pub mod relay;
pub mod seeds;
pub mod snapshot;
pub mod wire;

/// One door.
#[derive(Clone, Copy, Debug)]
pub struct Door {
    /// Its name: the fuzz target's and the corpus folder's.
    pub name: &'static str,
    /// Pushes bytes through it.
    pub knock: fn(&[u8]),
    /// What real peers send, to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const DOORS: [Door; 10] = [
    Door { name: "wire", knock: wire::batch, seeds: seeds::batches },
    Door { name: "trtllm", knock: wire::trtllm, seeds: seeds::trtllm },
    Door { name: "dynamo", knock: wire::dynamo, seeds: seeds::dynamo },
    Door { name: "frames", knock: frames::frames, seeds: seeds::frames },
    Door { name: "zmtp", knock: frames::zmtp, seeds: seeds::zmtp },
    Door { name: "config", knock: config::config, seeds: seeds::config },
    Door { name: "query", knock: query::query, seeds: seeds::query },
    Door { name: "pipeline", knock: pipeline::pipeline, seeds: seeds::pipeline },
    Door { name: "relay", knock: relay::relay, seeds: seeds::relay },
    Door { name: "snapshot", knock: snapshot::snapshot, seeds: seeds::snapshot },
];

/// The door of this name.
///
/// # Panics
/// Where there is none.
pub fn door(name: &str) -> Door {
    *DOORS.iter().find(|door| door.name == name).expect("a door of this name")
}

/// Several pieces in one input: each with its length before it, two bytes little-endian. What is left after the last
/// whole piece is a piece too, so any bytes are some pieces.
pub fn split(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut pieces = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (piece, rest) = rest.split_at(length);
        pieces.push(piece);
        bytes = rest;
    }
    pieces
}

/// What [`split`] takes apart. A piece longer than 65,535 bytes cannot be joined, and is left out.
pub fn join<B: AsRef<[u8]>>(pieces: &[B]) -> Vec<u8> {
    let mut joined = Vec::new();
    for piece in pieces.iter().map(AsRef::as_ref) {
        if let Ok(length) = u16::try_from(piece.len()) {
            joined.extend(length.to_le_bytes());
            joined.extend(piece);
        }
    }
    joined
}
