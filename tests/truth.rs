//! What a real engine said it had cached, against what kvtap answers: recorded runs of real engines are published
//! over libzmq, the binary follows them, and a router in another language asks before each prompt that the engine
//! counted itself.
//!
//! An engine computes at least the last token of a prompt anew, so what it counts is what is held of the prompt without
//! its last token. Of a plain model that is `block_size * min(leading held blocks, (tokens - 1) / block_size)` too; of a
//! model with a sliding window it need not be, because the shorter prefix needs other blocks of the window.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod tap_support;

use std::io::{BufRead, BufReader};

use serde_json::{Value, json};
use tap_support::kvtap::Kvtap;
use tap_support::peer::Peer;
use tap_support::{capture, eventually, fixture, only, router};

/// A request that kvtap and the engine do not agree on: its number, its kind, kvtap's tokens, the engine's.
type Miss<'a> = (u64, &'a str, u64, u64);

/// One recorded run.
struct Run {
    file: String,
    block_size: u64,
    /// Blocks that its engine can hold.
    capacity: u64,
}

/// A run being followed.
struct Tap {
    run: Run,
    engine: Peer,
    kvtap: Kvtap,
    router: Peer,
    found: Found,
}

/// What the comparisons have come to so far.
#[derive(Default)]
struct Found {
    requests: usize,
    misses: Vec<(u64, String, u64, u64)>,
    capped_late: Vec<u64>,
    waited: usize,
    most_held: u64,
}

/// What a whole run must come to.
#[derive(Default)]
struct Expected<'a> {
    /// Requests that were compared.
    requests: usize,
    /// Those that are not exact.
    misses: &'a [Miss<'a>],
    /// Those for which capping the answer for the whole prompt is not enough.
    capped_late: &'a [u64],
    /// How many were answered while blocks waited for parents, so that the answer said it is incomplete.
    waited: usize,
    /// Gaps that were recovered from.
    gaps: u64,
}

// === impl Run ===

impl Run {
    fn open(name: &str) -> Self {
        let file = format!("truth/{name}.jsonl");
        let mut first = String::new();
        BufReader::new(std::fs::File::open(fixture(&file)).unwrap()).read_line(&mut first).unwrap();
        let start: Value = serde_json::from_str(&first).unwrap();
        // One block of the pool is never given out.
        let capacity = start["num_gpu_blocks"].as_u64().unwrap() - 1;
        Self { file, block_size: start["block_size"].as_u64().unwrap(), capacity }
    }
}

// === impl Tap ===

impl Tap {
    /// Starts everything. `late`: the engine has published before anybody listens, and does not answer replays yet.
    async fn start(name: &str, copies: &str, late: bool) -> Self {
        let run = Run::open(name);
        let mut engine = capture(&run.file, &[]).await;
        let ports = engine.line().await;
        if late {
            engine.ask("bury").await;
            engine.ask("hold").await;
        }
        let settings = format!(
            "feeds:\n  - {{ worker: pod-a, model: tiny, engine: vllm, copies: {copies},\n      \
             endpoint: \"tcp://127.0.0.1:{}\", replay: \"tcp://127.0.0.1:{}\" }}\n",
            ports["pub"], ports["replay"]
        );
        let kvtap = Kvtap::start(&settings).await;
        let router = router(&kvtap.grpc).await;
        engine.ask("subscribers 1").await;
        Self { run, engine, kvtap, router, found: Found::default() }
    }

    /// One answer for a request's first `tokens` tokens.
    async fn ask(&mut self, request: &Value, tokens: usize) -> Value {
        let query = json!({
            "model": "tiny",
            "tokens": request["prompt_token_ids"].as_array().unwrap()[..tokens],
            "salt": request["cache_salt"],
            "lora": request["lora_name"],
        });
        only(&self.router.ask_json(&query).await["workers"]).clone()
    }

    /// What the router is told of the one worker.
    async fn report(&mut self) -> Value {
        only(&self.router.ask_json(&json!({"list": true})).await["workers"]).clone()
    }

    /// Publishes up to the next request; `None` where no request is left.
    async fn publish(&mut self) -> Option<Value> {
        let step = self.engine.ask("request").await;
        (!step["request"].is_null()).then_some(step)
    }

    /// Waits until everything up to `step` counts, and compares the answer for its prompt with the engine's.
    async fn compare(&mut self, step: &Value) {
        let (request, last) = (&step["request"], &step["last_seq"]);
        let length = request["prompt_token_ids"].as_array().unwrap().len();
        let waits = |shown: &Value| shown["state"] == "incomplete" && shown["orphans"] != 0;
        let arrived = |report: &Value| report["last_seq"] == *last && (report["state"] == "live" || waits(report));
        let report = eventually(&format!("live at {last}"), async || self.report().await, arrived).await;
        let answer = self.ask(request, length - 1).await;
        assert_eq!((&answer["last_seq"], &answer["state"]), (last, &report["state"]), "{answer}");
        let whole = self.ask(request, length).await;

        let size = self.run.block_size;
        let ours = answer["matched_tokens"].as_u64().unwrap();
        assert_eq!(ours, size * answer["matched_blocks"].as_u64().unwrap());
        let capped = size * whole["matched_blocks"].as_u64().unwrap().min((length as u64 - 1) / size);
        let theirs = request["num_cached_tokens"].as_u64().unwrap();
        let id = request["id"].as_u64().unwrap();
        self.found.requests += 1;
        self.found.waited += usize::from(waits(&report));
        self.found.most_held = self.found.most_held.max(answer["held_blocks"].as_u64().unwrap());
        if ours != theirs {
            let kind = request["kind"].as_str().unwrap().to_owned();
            self.found.misses.push((id, kind, ours, theirs));
        }
        if capped != ours {
            self.found.capped_late.push(id);
        }
    }

    /// Compares what is left, and asserts what the whole run came to. Nothing of it may have been dropped.
    async fn finish(mut self, expected: Expected<'_>) -> Found {
        while let Some(step) = self.publish().await {
            self.compare(&step).await;
        }
        let Self { run, kvtap, found, .. } = self;
        let miss = |(id, kind, ours, theirs): &'_ (u64, String, u64, u64)| format!("{id} {kind}: {ours}, not {theirs}");
        let misses: Vec<String> = found.misses.iter().map(miss).collect();
        let wanted: Vec<String> =
            expected.misses.iter().map(|(id, kind, us, them)| miss(&(*id, (*kind).to_owned(), *us, *them))).collect();
        let exact = found.requests - misses.len();
        assert_eq!(misses, wanted, "{exact} of {} are exact", found.requests);
        assert_eq!(found.requests, expected.requests);
        assert_eq!(found.capped_late, expected.capped_late, "capped late");
        assert_eq!(found.waited, expected.waited, "answered while blocks waited");
        let report = kvtap.worker().await;
        assert_eq!((&report["gaps"], &report["epoch"]), (&json!(expected.gaps), &json!(1)), "{report}");
        println!("{}: {exact} of {} requests are exact; {}", run.file, found.requests, report["dropped"]);
        if expected.waited == 0 {
            let dropped = report["dropped"].as_object().unwrap();
            assert!(dropped.values().all(|count| *count == 0) && report["orphans"] == 0, "{report}");
        }
        found
    }

    /// [`Tap::finish`], of an engine that announces a block only when it stores one: kvtap never holds more of them
    /// than fit into the engine.
    async fn finish_within_capacity(self, expected: Expected<'_>) {
        let capacity = self.run.capacity;
        let found = self.finish(expected).await;
        assert!(found.most_held <= capacity, "{} blocks of {capacity}", found.most_held);
    }

    /// Waits until the engine was asked for one more replay than `before`, which it holds back.
    async fn asked_for_a_replay(&mut self, before: usize) -> Vec<Value> {
        let asked = |answer: &Value| answer["replays"].as_u64() > Some(before as u64);
        let answer = eventually("a replay", async || self.engine.ask("replays").await, asked).await;
        answer["starts"].as_array().unwrap()[before..].to_vec()
    }

    /// Messages are missing and have not come: the answer says so, and rests on `last`, the last before them.
    async fn knows_that_it_lacks(&mut self, step: &Value, last: Value) {
        let length = step["request"]["prompt_token_ids"].as_array().unwrap().len();
        let answer = self.ask(&step["request"], length).await;
        assert_eq!((&answer["state"], &answer["last_seq"]), (&json!("replaying"), &last), "{answer}");
        if last.is_null() {
            assert_eq!(answer["matched_blocks"], 0);
        }
    }
}

#[tokio::test]
async fn turns_repeats_salts_evictions_and_resets_are_answered_as_the_engine_counts() {
    let tap = Tap::start("main32", "count", false).await;
    // An idle engine publishes a reset with its next step only, and this request is what that step is for.
    let misses = &[(254, "first_after_reset", 96, 0)];
    tap.finish_within_capacity(Expected { requests: 332, misses, ..Expected::default() }).await;
}

#[tokio::test]
async fn base_and_adapter_are_told_apart_as_the_engine_does() {
    let tap = Tap::start("lora", "count", false).await;
    tap.finish_within_capacity(Expected { requests: 100, ..Expected::default() }).await;
}

#[tokio::test]
async fn blocks_named_by_sixteen_bytes_are_answered_as_the_engine_counts() {
    let tap = Tap::start("xxh_bytes", "count", false).await;
    // Again the first request after a reset.
    let misses = &[(79, "first_after_reset", 32, 0)];
    tap.finish_within_capacity(Expected { requests: 70, misses, ..Expected::default() }).await;
}

#[tokio::test]
async fn announced_cache_hits_grow_the_counts_of_a_feed_that_counts_copies() {
    let tap = Tap::start("full_mode", "count", false).await;
    // Each hit that was announced again leaves a count that no removal takes away: some blocks stay for ever.
    let misses = &[
        (63, "turn", 96, 0),
        (81, "after_pressure", 256, 0),
        (91, "new", 384, 0),
        (100, "old", 160, 96),
        (122, "turn", 32, 0),
        (129, "new", 96, 0),
        (130, "turn", 576, 0),
        (133, "old", 64, 32),
        (181, "old", 160, 0),
    ];
    tap.finish(Expected { requests: 200, misses, ..Expected::default() }).await;
}

#[tokio::test]
async fn announced_cache_hits_never_overstate_a_feed_that_keeps_sets() {
    let tap = Tap::start("full_mode", "set", false).await;
    // The removal of one physical copy takes a block away that has another.
    let misses = &[(134, "prefix", 0, 128), (142, "decode", 0, 32), (170, "turn", 0, 128)];
    let expected = Expected { requests: 200, misses, waited: 20, ..Expected::default() };
    let found = tap.finish(expected).await;
    assert!(found.misses.iter().all(|(_, _, ours, theirs)| ours < theirs));
}

#[tokio::test]
async fn a_sliding_window_beside_full_attention_cuts_matches_as_the_engine_does() {
    let tap = Tap::start("hybrid", "count", false).await;
    tap.finish_within_capacity(Expected { requests: 200, capped_late: &[245], ..Expected::default() }).await;
}

#[tokio::test]
async fn a_late_subscriber_and_one_that_lost_messages_are_exact_after_the_replay_and_never_live_before() {
    // 264 messages are in the replay buffer only, before kvtap is there; one more comes live.
    let mut tap = Tap::start("v22_late", "count", true).await;
    assert_eq!(tap.asked_for_a_replay(0).await, [0]);
    let step = tap.publish().await.unwrap();
    assert_eq!(step["last_seq"], 264);
    tap.knows_that_it_lacks(&step, Value::Null).await;
    tap.engine.ask("release").await;
    tap.compare(&step).await;

    // The live feed loses 137 messages; the next one shows it.
    let before = loop {
        let step = tap.publish().await.unwrap();
        tap.compare(&step).await;
        if step["last_seq"] == 349 {
            break tap.engine.ask("replays").await["replays"].as_u64().unwrap() as usize;
        }
    };
    tap.engine.ask("hold").await;
    let step = tap.publish().await.unwrap();
    assert_eq!(step["last_seq"], 490);
    // Asked from the last message that kvtap has, to see that it is the same engine still.
    assert_eq!(tap.asked_for_a_replay(before).await, [352]);
    tap.knows_that_it_lacks(&step, json!(352)).await;
    tap.engine.ask("release").await;
    tap.compare(&step).await;
    tap.finish_within_capacity(Expected { requests: 60, gaps: 1, ..Expected::default() }).await;
}
