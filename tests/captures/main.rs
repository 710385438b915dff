//! Every captured message of every release, published by libzmq and followed by the binary, leads to exactly the
//! matches that the reference model gives, as a router in another language reads them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

mod lives;
mod oracle;
mod refused;
#[path = "../tap_support/mod.rs"]
mod tap_support;

use std::collections::{BTreeMap, BTreeSet};

use kvtap::block::Grid;
use serde_json::{Value, json};

use lives::Life;
use oracle::{Oracle, Prompt};
use refused::*;
use tap_support::kvtap::Kvtap;
use tap_support::peer::Peer;
use tap_support::{capture, eventually, only, router};

/// Whether a capture's own engine names a page by its tokens alone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Naming {
    Chained,
    Unchained,
}

/// A capture being followed.
struct Tap {
    engine: Peer,
    kvtap: Kvtap,
    router: Peer,
    compared: usize,
    /// Of these, answers that are not zero.
    matched: usize,
}

// === impl Tap ===

impl Tap {
    async fn start(name: &str, promised: Option<u64>) -> Self {
        let mut engine = capture(&format!("wire/{name}.jsonl"), &[]).await;
        let ports = engine.line().await;
        let word = name.split('-').next().unwrap();
        let promised = promised.map(|size| format!("block_size: {size}, ")).unwrap_or_default();
        let settings = format!(
            "feeds:\n  - {{ worker: pod-a, model: m, engine: {word}, {promised}\n      \
             endpoint: \"tcp://127.0.0.1:{}\", replay: \"tcp://127.0.0.1:{}\" }}\n",
            ports["pub"], ports["replay"]
        );
        let kvtap = Kvtap::start(&settings).await;
        let router = router(&kvtap.grpc).await;
        engine.ask("subscribers 1").await;
        Self { engine, kvtap, router, compared: 0, matched: 0 }
    }

    async fn report(&mut self) -> Value {
        only(&self.router.ask_json(&json!({"list": true})).await["workers"]).clone()
    }

    /// Asks for all of `prompts`, and compares each answer with the model's.
    async fn compare(&mut self, oracle: &Oracle, prompts: &BTreeSet<Prompt>, context: &str) {
        let hex = |key: &Vec<u8>| key.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let query = |prompt: &Prompt| {
            json!({
                "model": "m",
                "tokens": prompt.tokens,
                "lora": prompt.lora,
                "salt": prompt.salt,
                "extra_keys": prompt.keys.iter().map(hex).collect::<Vec<_>>(),
            })
        };
        let answers = self.router.ask_all(prompts.iter().map(query)).await;
        for (prompt, answer) in prompts.iter().zip(answers) {
            let held = only(&answer["workers"]);
            let got = (held["matched_blocks"].as_u64().unwrap(), held["device_blocks"].as_u64().unwrap());
            let (blocks, device) = oracle.answer(prompt);
            assert_eq!(got, (blocks.into(), device.into()), "{context}: {} tokens: {held}", prompt.tokens.len());
            self.compared += 1;
            self.matched += usize::from(blocks > 0);
        }
    }
}

/// Follows a capture, life by life, and compares after each message.
async fn follow(name: &str, naming: Naming, refusals: &[&[Refusal]]) {
    let lives = lives::lives(&lives::lines(name));
    follow_as(name, naming, &lives, None, refusals).await;
}

/// Follows the lives of a capture, of an engine whose block size may be promised.
async fn follow_as(name: &str, naming: Naming, lives: &[Life], promised: Option<u64>, refusals: &[&[Refusal]]) {
    let mut refusals: Vec<Refusal> = refusals.concat();
    refusals.sort();
    let lines = lives::lines(name);
    let mut tap = Tap::start(name, promised).await;
    let mut refused: Vec<(String, &str, u64)> = Vec::new();
    let mut former = BTreeSet::new();
    for (life, epoch) in lives.iter().zip(1..) {
        // Values that were made up carry names that were made up too, which no engine's hash function gives.
        let own = |line: &usize| lines[*line]["source"] == "engine" && has_store(&lines[*line]);
        let unchained = naming == Naming::Unchained && life.lines.iter().any(own);
        let numbers: Vec<String> = life.lines.iter().map(usize::to_string).collect();
        tap.engine.ask(&format!("life {}", numbers.join(" "))).await;
        let mut oracle = Oracle::new(unchained, promised);
        for (number, line) in life.lines.iter().enumerate() {
            let line = &lines[*line];
            let context = format!("{name} {}", line["name"].as_str().unwrap());
            tap.engine.ask("next 1").await;
            oracle.apply(line);
            let here = |report: &Value| (&report["epoch"], &report["last_seq"]) == (&json!(epoch), &json!(number));
            let report = eventually(&format!("at {context}"), async || tap.report().await, here).await;
            let state = match (oracle.orphans(), unchained && oracle.grid().is_some()) {
                (1.., _) => "incomplete",
                (0, true) => "degraded",
                (0, false) if oracle.conflict => "degraded",
                (0, false) => "live",
            };
            assert_eq!(
                (&report["state"], &report["orphans"], &report["blocks"]),
                (&json!(state), &json!(oracle.orphans()), &json!(oracle.blocks())),
                "{context}: {report}"
            );
            let chains = oracle.chains.clone();
            tap.compare(&oracle, &chains, &context).await;
        }
        if let Some(grid) = oracle.grid() {
            let mut asked: BTreeSet<Prompt> = oracle.chains.iter().flat_map(|chain| neighbours(chain, grid)).collect();
            // Nothing of a dead engine answers.
            asked.extend(former.iter().cloned());
            former.extend(oracle.chains.iter().cloned());
            tap.compare(&oracle, &asked, &format!("{name}, end of life {epoch}")).await;
        }
        refused.extend(oracle.refused.into_iter().map(|((line, reason), count)| (line, reason, count)));
    }

    refused.sort();
    let found: Vec<(&str, &str, u64)> = refused.iter().map(|(line, reason, n)| (line.as_str(), *reason, *n)).collect();
    assert_eq!(found, refusals, "{name}: refused");
    let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
    for (_, reason, count) in &refusals {
        *expected.entry(reason).or_default() += count;
    }
    let report = tap.kvtap.worker().await;
    let dropped = report["dropped"].as_object().unwrap().iter();
    let dropped: BTreeMap<&str, u64> =
        dropped.map(|(reason, count)| (reason.as_str(), count.as_u64().unwrap())).filter(|(_, n)| *n > 0).collect();
    assert_eq!(dropped, expected, "{name}: {report}");
    assert_eq!(report["gaps"], 0);
    assert!(tap.matched > 25, "{name}: {} answers of {} are not zero", tap.matched, tap.compared);
    println!("{name}: {} lines, {} answers compared, {} of them not zero", lines.len(), tap.compared, tap.matched);
}

fn has_store(line: &Value) -> bool {
    line["expect"]["events"].as_array().unwrap().iter().any(|event| event["type"] == "stored")
}

/// A chain's prefixes, and prompts that look like it and are not it.
fn neighbours(chain: &Prompt, grid: Grid) -> Vec<Prompt> {
    let blocks = grid.blocks(chain.tokens.len());
    // Of a very long chain not each prefix: the answers are as long as the question.
    let step = |n: &usize| *n < 32 || n.is_multiple_of(32);
    let mut all: Vec<Prompt> = (1..blocks).filter(step).map(|n| chain.first(n, grid)).collect();
    let size = grid.size() as usize;
    let mut other = |change: &dyn Fn(&mut Prompt)| {
        let mut prompt = chain.clone();
        change(&mut prompt);
        all.push(prompt);
    };
    other(&|prompt| prompt.tokens.extend(std::iter::repeat_n(7, size)));
    other(&|prompt| prompt.tokens[0] ^= 1);
    other(&|prompt| prompt.tokens[(blocks - 1) * size] ^= 1);
    other(&|prompt| prompt.tokens.rotate_left(size));
    other(&|prompt| prompt.salt = Some("somebody else".to_owned()));
    other(&|prompt| prompt.salt = None);
    other(&|prompt| prompt.lora = Some("another-adapter".to_owned()));
    other(&|prompt| prompt.lora = None);
    other(&|prompt| prompt.keys.clear());
    other(&|prompt| prompt.keys = vec![b"other".to_vec()]);
    all
}

macro_rules! captures {
    ($($test:ident: $file:literal, $naming:ident, [$($refusals:expr),*];)*) => {
        $(#[tokio::test]
        async fn $test() {
            follow($file, Naming::$naming, &[$($refusals),*]).await;
        })*
    };
}

captures! {
    vllm_0_9_0_means_what_its_engine_meant: "vllm-0.9.0", Chained,
        [VLLM_REMOVED_AFTER_A_CLEAR, VLLM_REMOVED_WAITING, VLLM_REMOVED_BY_NUMBER, VLLM_WITHOUT_ITS_TOKENS];
    vllm_0_10_2_means_what_its_engine_meant: "vllm-0.10.2", Chained,
        [VLLM_RANKS, VLLM_REMOVED_AFTER_A_CLEAR, VLLM_REMOVED_WAITING, VLLM_WITHOUT_ITS_TOKENS, VLLM_LONG_MEDIUM];
    vllm_0_14_1_means_what_its_engine_meant: "vllm-0.14.1", Chained,
        [VLLM_RANKS, VLLM_REMOVED_AFTER_A_CLEAR, VLLM_REMOVED_WAITING, VLLM_WITHOUT_ITS_TOKENS, VLLM_LONG_MEDIUM, VLLM_NULL_BLOCKS, VLLM_OFFLOADED];
    vllm_0_19_1_means_what_its_engine_meant: "vllm-0.19.1", Chained,
        [VLLM_RANKS, VLLM_REMOVED_AFTER_A_CLEAR, VLLM_REMOVED_WAITING, VLLM_WITHOUT_ITS_TOKENS, VLLM_LONG_MEDIUM, VLLM_NULL_BLOCKS, VLLM_OFFLOADED];
    vllm_0_22_1_means_what_its_engine_meant: "vllm-0.22.1", Chained,
        [VLLM_RANKS, VLLM_REMOVED_AFTER_A_CLEAR, VLLM_REMOVED_WAITING, VLLM_WITHOUT_ITS_TOKENS, VLLM_LONG_MEDIUM, VLLM_OFFLOADED];
    vllm_0_25_1_means_what_its_engine_meant: "vllm-0.25.1", Chained,
        [VLLM_RANKS, VLLM_REMOVED_AFTER_A_CLEAR, VLLM_REMOVED_WAITING, VLLM_WITHOUT_ITS_TOKENS, VLLM_LONG_MEDIUM];
    vllm_0_33_0_means_what_its_engine_meant: "vllm-0.33.0", Chained,
        [VLLM_RANKS, VLLM_REMOVED_AFTER_A_CLEAR, VLLM_REMOVED_WAITING, VLLM_REMOVED_BY_NUMBER, VLLM_WITHOUT_ITS_TOKENS, VLLM_LONG_MEDIUM,
         VLLM_OFFLOADED_PLACEHOLDERS];
    sglang_0_4_10_is_degraded_and_never_overstates: "sglang-0.4.10.post2", Unchained,
        [SGLANG_RANKS, SGLANG_REMOVED_AFTER_A_CLEAR, SGLANG_UNROOTED, SGLANG_REMOVED_BY_NUMBER];
    sglang_0_5_6_means_what_its_engine_meant: "sglang-0.5.6.post2", Chained,
        [SGLANG_RANKS, SGLANG_REMOVED_AFTER_A_CLEAR, SGLANG_REMOVED_WAITING];
    sglang_0_5_10_means_what_its_engine_meant: "sglang-0.5.10.post1", Chained,
        [SGLANG_RANKS, SGLANG_REMOVED_AFTER_A_CLEAR, SGLANG_REMOVED_WAITING];
    sglang_0_5_18_means_what_its_engine_meant: "sglang-0.5.18", Chained,
        [SGLANG_RANKS, SGLANG_REMOVED_AFTER_A_CLEAR, SGLANG_REMOVED_WAITING, SGLANG_MOVED];
    sglang_0_5_23_means_what_its_engine_meant: "sglang-0.5.23", Chained,
        [SGLANG_RANKS, SGLANG_REMOVED_AFTER_A_CLEAR, SGLANG_REMOVED_WAITING, SGLANG_REMOVED_BY_NUMBER, SGLANG_MOVED];
}

#[tokio::test]
async fn blocks_of_another_size_than_promised_are_refused_and_the_others_stand() {
    let name = "sglang-0.5.18";
    let all = [lives::one_life(&lives::lines(name))];
    follow_as(name, Naming::Chained, &all, Some(16), &[SGLANG_RANKS, SGLANG_MOVED, SGLANG_NOT_OF_16]).await;
}
