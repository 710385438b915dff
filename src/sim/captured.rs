//! The beginning of a real engine's run, as it was captured: its messages, and its own count for each prompt.
//!
//! vLLM 0.32.0 with a small random model served prompts one by one, then a burst that overflowed its cache, then more prompts.
//! Each request stands before the messages that it caused; nothing was in flight when it was sent.

use bytes::Bytes;
use serde::Deserialize;

use super::pool::Prompt;

const RUN: &str = include_str!("captured.jsonl");

/// A captured run.
#[derive(Clone, PartialEq, Debug)]
pub struct Capture {
    /// The engine's release.
    pub version: String,
    /// Tokens a block.
    pub block_size: usize,
    /// Blocks of the engine's pool, its null block among them.
    pub blocks: u32,
    /// What happened, in order.
    pub entries: Vec<Entry>,
}

/// One thing that happened.
#[derive(Clone, PartialEq, Debug)]
pub enum Entry {
    /// A prompt that was sent while the engine was idle.
    Request {
        /// The prompt.
        prompt: Prompt,
        /// The tokens that were sampled.
        output: Vec<u32>,
        /// Leading tokens the engine took from its cache: its own `num_cached_tokens`.
        cached_tokens: usize,
    },
    /// Requests that ran together: the engine's counts depend on its scheduling, and were not kept.
    Burst {
        /// How many.
        requests: usize,
    },
    /// A message on the PUB socket.
    Message {
        /// The first frame.
        topic: Bytes,
        /// The sequence number.
        sequence: u64,
        /// The batch of events.
        payload: Bytes,
    },
}

/// A capture that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("line {line} of the capture: {what}")]
pub struct CaptureError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line {
    Engine { vllm: String, block_size: usize, num_gpu_blocks: u32 },
    Request { prompt_token_ids: Vec<u32>, output_token_ids: Vec<u32>, num_cached_tokens: usize },
    Batch { requests: usize },
    Message { frames_hex: [String; 3] },
}

// === impl Capture ===

impl Capture {
    /// The run that is part of this program.
    ///
    /// # Errors
    /// [`CaptureError`], which would be a fault of the program.
    pub fn vllm() -> Result<Self, CaptureError> {
        Self::parse(RUN)
    }

    fn parse(text: &str) -> Result<Self, CaptureError> {
        let mut capture = Self { version: String::new(), block_size: 0, blocks: 0, entries: Vec::new() };
        for (i, line) in text.lines().enumerate() {
            let wrong = |what: String| CaptureError { line: i + 1, what };
            match serde_json::from_str(line).map_err(|error| wrong(error.to_string()))? {
                Line::Engine { vllm, block_size, num_gpu_blocks } => {
                    capture.version = vllm;
                    capture.block_size = block_size;
                    capture.blocks = num_gpu_blocks;
                }
                Line::Request { prompt_token_ids, output_token_ids, num_cached_tokens } => {
                    let prompt = Prompt { tokens: prompt_token_ids, ..Prompt::default() };
                    let entry = Entry::Request { prompt, output: output_token_ids, cached_tokens: num_cached_tokens };
                    capture.entries.push(entry);
                }
                Line::Batch { requests } => capture.entries.push(Entry::Burst { requests }),
                Line::Message { frames_hex: [topic, sequence, payload] } => {
                    let frame = |hex: &str| bytes_of(hex).ok_or_else(|| wrong("a frame is not hexadecimal".to_owned()));
                    let sequence = <[u8; 8]>::try_from(&*frame(&sequence)?)
                        .map_err(|_| wrong("a sequence frame is not eight bytes".to_owned()))?;
                    capture.entries.push(Entry::Message {
                        topic: frame(&topic)?,
                        sequence: u64::from_be_bytes(sequence),
                        payload: frame(&payload)?,
                    });
                }
            }
        }
        Ok(capture)
    }
}

fn bytes_of(hex: &str) -> Option<Bytes> {
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    let digit = |c: u8| char::from(c).to_digit(16);
    let bytes: Option<Vec<u8>> =
        pairs.iter().map(|[high, low]| Some((digit(*high)? << 4 | digit(*low)?) as u8)).collect();
    bytes.filter(|_| rest.is_empty()).map(Bytes::from)
}
