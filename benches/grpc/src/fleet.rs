//! `kvtap serve` as people run it, after 64 engines; and the prompts that they hold.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use tempfile::TempDir;
use tonic::transport::Channel;

use crate::engine::{BLOCK, Publisher, contents, le, stored};
use crate::process::Server;
use crate::v1;
use crate::v1::match_request::Prompt;
use crate::v1::query_service_client::QueryServiceClient;

/// A running kvtap, what it follows, and whoever else follows the same.
pub struct Fleet {
    pub at: String,
    pub rival: Option<(Server, u16)>,
    _process: Server,
    _folder: TempDir,
    _publishers: Vec<Publisher>,
}

/// Engines.
const WORKERS: usize = 64;
/// Prompts that every engine holds, each a different part of each.
const PROMPTS: usize = 4;
/// The length of each, in blocks.
const LENGTH: usize = 4000;

/// The tokens of a prompt.
fn tokens(prompt: usize) -> Vec<u32> {
    let mut state = prompt as u64 + 1;
    let mut token = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u32 % 128_000
    };
    (0..LENGTH * BLOCK).map(|_| token()).collect()
}

/// A folder with the configuration of a kvtap that follows these.
pub fn configured(endpoints: &[&str]) -> (TempDir, String) {
    let mut text = "grpc: { listen: [\"127.0.0.1:0\"] }\nadmin: { listen: \"127.0.0.1:0\" }\nfeeds:\n".to_owned();
    for (worker, endpoint) in endpoints.iter().enumerate() {
        let address = format!("10.0.0.{worker}:8000");
        writeln!(
            text,
            "  - {{ worker: pod-{worker}, address: \"{address}\", model: m, engine: vllm, endpoint: \"{endpoint}\" }}"
        )
        .unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kvtap.yaml");
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap().to_owned();
    (folder, file)
}

impl Fleet {
    /// Starts kvtap, and a rival where there is one, and publishes until both know everything.
    pub async fn start(kvtap: &Path, rival: Option<&str>) -> Self {
        let mut publishers = Vec::new();
        for _ in 0..WORKERS {
            publishers.push(Publisher::new().await);
        }
        let endpoints: Vec<&str> = publishers.iter().map(Publisher::endpoint).collect();
        let (folder, file) = configured(&endpoints);
        let rival = rival.map(|binary| crate::rival::start(binary, &endpoints));
        let (process, at) = Server::start(kvtap, &["serve", "--config", &file], "grpc listening on ");
        let mut fleet = Self { at, rival, _process: process, _folder: folder, _publishers: Vec::new() };
        let prompts: Vec<Vec<u32>> = (0..PROMPTS).map(tokens).collect();
        loop {
            for (worker, publisher) in publishers.iter_mut().enumerate() {
                for prompt in &prompts {
                    // Each holds a part more than the one before.
                    let held = LENGTH * BLOCK * (worker + 1) / WORKERS;
                    publisher.publish(stored(&prompt[..held - held % BLOCK], worker)).await;
                }
            }
            tokio::time::sleep(Duration::from_secs(4)).await;
            if fleet.is_full().await && crate::rival::is_full(&fleet).await {
                fleet._publishers = publishers;
                return fleet;
            }
            eprintln!("publishing again: not everybody has heard everything");
        }
    }

    async fn is_full(&self) -> bool {
        let mut client = QueryServiceClient::new(self.channel().await);
        for request in self.requests(LENGTH) {
            let Ok(answer) = client.r#match(request).await else { return false };
            let held: Vec<usize> = answer.get_ref().matches.iter().map(|held| held.matched_blocks as usize).collect();
            let all = (1..=WORKERS).rev().map(|worker| LENGTH * worker / WORKERS);
            if !held.into_iter().eq(all) {
                return false;
            }
        }
        true
    }

    pub async fn channel(&self) -> Channel {
        crate::load::channel(&self.at).await
    }

    /// The raw tokens of the beginning of each prompt.
    pub fn token_bytes(&self, blocks: usize) -> Vec<Bytes> {
        (0..PROMPTS).map(|prompt| le(&tokens(prompt)[..blocks * BLOCK])).collect()
    }

    /// The same as questions.
    pub fn requests(&self, blocks: usize) -> Vec<v1::MatchRequest> {
        let request = |bytes| v1::MatchRequest {
            model: "m".to_owned(),
            prompt: Some(Prompt::TokensLe(bytes)),
            ..v1::MatchRequest::default()
        };
        self.token_bytes(blocks).into_iter().map(request).collect()
    }

    /// The same by content hashes.
    pub fn hashed(&self, blocks: usize) -> Vec<Vec<u64>> {
        self.token_bytes(blocks).iter().map(|bytes| contents(bytes)).collect()
    }

    /// How large an answer is.
    pub async fn answer_bytes(&self, blocks: usize) -> u32 {
        let mut client = QueryServiceClient::new(self.channel().await);
        let answer = client.r#match(self.requests(blocks).remove(0)).await.unwrap();
        answer.get_ref().encoded_len() as u32
    }
}
