//! Dynamo's standalone HTTP indexer, fed by the same sockets and asked the same questions.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::fleet::Fleet;
use crate::load::Target;
use crate::process::{Server, command};
use crate::stats::{Row, table};
use crate::{BLOCKS, ROUNDS, TURN};

/// A connection that is kept.
struct Http {
    stream: TcpStream,
    read: Vec<u8>,
}

/// Starts it on the servers' core.
pub fn start(binary: &str, endpoints: &[&str]) -> (Server, u16) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let workers: Vec<String> = endpoints.iter().enumerate().map(|(worker, at)| format!("{worker}={at}")).collect();
    let server = Server::spawn(command(binary.as_ref(), &[&port.to_string(), "1", &workers.join(",")]));
    (server, port)
}

/// Whether it knows as much as kvtap; true where there is none.
pub async fn is_full(fleet: &Fleet) -> bool {
    let Some((_, port)) = fleet.rival else { return true };
    let Some(mut http) = Http::connect(port).await else { return false };
    for body in bodies(fleet, 4000).0 {
        let answer = http.post("/query", &body).await;
        if !(answer.contains(&format!("\"63\":{{\"0\":{}}}", 4000 * 16)) && answer.contains("\"0\":{\"0\":992}")) {
            return false;
        }
    }
    true
}

/// Questions by tokens, and by hashes.
fn bodies(fleet: &Fleet, blocks: usize) -> (Vec<String>, Vec<String>) {
    let tokens = fleet.token_bytes(blocks).into_iter().map(|bytes| {
        let (tokens, _) = bytes.as_chunks::<4>();
        let ids: Vec<String> = tokens.iter().map(|bytes| u32::from_le_bytes(*bytes).to_string()).collect();
        format!("{{\"token_ids\":[{}],\"model_name\":\"m\"}}", ids.join(","))
    });
    let hashes = fleet.hashed(blocks).into_iter().map(|hashes| {
        let hashes: Vec<String> = hashes.iter().map(|hash| hash.cast_signed().to_string()).collect();
        format!("{{\"block_hashes\":[{}],\"model_name\":\"m\"}}", hashes.join(","))
    });
    (tokens.collect(), hashes.collect())
}

pub async fn run(fleet: &Fleet) {
    let Some((_, port)) = fleet.rival else { return };
    for blocks in BLOCKS {
        let (by_tokens, by_hash) = bodies(fleet, blocks);
        let theirs = [("/query", &by_tokens), ("/query_by_hash", &by_hash)];
        let mut ours = Target::kvtap("Match, tokens", fleet.channel().await, fleet.requests(blocks));
        let mut one = [Row::new(ours.name), Row::new("dynamo /query"), Row::new("dynamo /query_by_hash")];
        let mut eight = [Row::new(ours.name), Row::new("dynamo /query"), Row::new("dynamo /query_by_hash")];
        for _ in 0..ROUNDS {
            one[0].round(ours.latencies(TURN).await);
            eight[0].rate(connections(fleet, blocks).await);
            for (i, (path, bodies)) in theirs.into_iter().enumerate() {
                one[i + 1].round(latencies(port, path, bodies).await);
                eight[i + 1].rate(rate(port, path, bodies).await);
            }
        }
        table(&format!("{blocks} blocks, 64 workers, one call at a time"), &one);
        table(&format!("{blocks} blocks, 64 workers, 8 connections with a call each, requests a second"), &eight);
    }
}

/// kvtap on eight connections.
async fn connections(fleet: &Fleet, blocks: usize) -> f64 {
    let mut callers = JoinSet::new();
    for _ in 0..8 {
        let mut target = Target::kvtap("", fleet.channel().await, fleet.requests(blocks));
        callers.spawn(async move { target.flight(1, TURN).await });
    }
    callers.join_all().await.into_iter().sum()
}

async fn latencies(port: u16, path: &str, bodies: &[String]) -> Vec<Duration> {
    let mut http = Http::connect(port).await.unwrap();
    let (begun, mut times) = (Instant::now(), Vec::new());
    while begun.elapsed() < TURN {
        let call = Instant::now();
        http.post(path, &bodies[times.len() % bodies.len()]).await;
        times.push(call.elapsed());
    }
    times
}

async fn rate(port: u16, path: &'static str, bodies: &[String]) -> f64 {
    let begun = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..8 {
        let bodies = bodies.to_vec();
        callers.spawn(async move {
            let mut http = Http::connect(port).await.unwrap();
            let mut calls = 0;
            while begun.elapsed() < TURN {
                http.post(path, &bodies[calls % bodies.len()]).await;
                calls += 1;
            }
            calls
        });
    }
    let calls: usize = callers.join_all().await.into_iter().sum();
    calls as f64 / begun.elapsed().as_secs_f64()
}

impl Http {
    async fn connect(port: u16) -> Option<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        stream.set_nodelay(true).ok()?;
        Some(Self { stream, read: Vec::new() })
    }

    /// The body of the answer.
    async fn post(&mut self, path: &str, body: &str) -> String {
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        self.stream.write_all(head.as_bytes()).await.unwrap();
        self.stream.write_all(body.as_bytes()).await.unwrap();
        self.read.clear();
        let (head, length) = loop {
            assert!(self.stream.read_buf(&mut self.read).await.unwrap() > 0, "closed");
            if let Some(head) = self.read.windows(4).position(|four| four == b"\r\n\r\n") {
                let text = String::from_utf8_lossy(&self.read[..head]).to_ascii_lowercase();
                assert!(text.starts_with("http/1.1 200"), "{text}");
                let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
                break (head + 4, length.unwrap().trim().parse::<usize>().unwrap());
            }
        };
        while self.read.len() < head + length {
            assert!(self.stream.read_buf(&mut self.read).await.unwrap() > 0, "closed");
        }
        String::from_utf8_lossy(&self.read[head..head + length]).into_owned()
    }
}
