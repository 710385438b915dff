//! Engines, as far as their events go.

use bytes::Bytes;
use rmp::encode::{write_array_len, write_f64, write_nil, write_str, write_uint};
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

/// Tokens a block.
pub const BLOCK: usize = 16;

/// An engine's event socket, on a free port.
pub struct Publisher {
    socket: PubSocket,
    endpoint: String,
    sequence: u64,
}

/// Content hashes of raw tokens.
pub fn contents(tokens_le: &[u8]) -> Vec<u64> {
    tokens_le.chunks_exact(BLOCK * 4).map(|block| xxh3_64_with_seed(block, 1337)).collect()
}

/// Tokens as they are asked about.
pub fn le(tokens: &[u32]) -> Bytes {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

/// A message of vLLM 0.22 that stores a chain of blocks.
pub fn stored(tokens: &[u32], worker: usize) -> Bytes {
    let mut out = Vec::new();
    write_array_len(&mut out, 3).unwrap();
    write_f64(&mut out, 1.7e9).unwrap();
    write_array_len(&mut out, 1).unwrap();
    write_array_len(&mut out, 7).unwrap();
    write_str(&mut out, "BlockStored").unwrap();
    let contents = contents(&le(tokens));
    write_array_len(&mut out, contents.len() as u32).unwrap();
    for (i, content) in contents.iter().enumerate() {
        // Chained, as an engine's names are.
        write_uint(&mut out, content.wrapping_add(i as u64) >> 1 ^ worker as u64).unwrap();
    }
    write_nil(&mut out).unwrap();
    write_array_len(&mut out, tokens.len() as u32).unwrap();
    for token in tokens {
        write_uint(&mut out, u64::from(*token)).unwrap();
    }
    write_uint(&mut out, BLOCK as u64).unwrap();
    write_nil(&mut out).unwrap();
    write_str(&mut out, "GPU").unwrap();
    write_uint(&mut out, 0).unwrap();
    out.into()
}

impl Publisher {
    pub async fn new() -> Self {
        let mut socket = PubSocket::new();
        let endpoint = socket.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        Self { socket, endpoint, sequence: 0 }
    }

    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The number of the next message.
    pub fn next_sequence(&self) -> u64 {
        self.sequence
    }

    pub async fn publish(&mut self, payload: Bytes) {
        let mut message = ZmqMessage::from(Bytes::new());
        message.push_back(Bytes::copy_from_slice(&self.sequence.to_be_bytes()));
        message.push_back(payload);
        self.sequence += 1;
        self.socket.send(message).await.unwrap();
    }
}
