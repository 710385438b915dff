//! `Explain`: every cause of a missing block, told by itself.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod serve_support;

use kvtap::block::{Grid, Group, GroupRule, Tier};
use kvtap::feed::status::{Entry, State};
use kvtap::hash::{EngineHash, PrefixHash, Seed};
use kvtap::index::Copies;
use kvtap::normalize::{Normalizer, Options};
use kvtap::proto::v1;
use kvtap::proto::v1::cause::Cause;
use kvtap::proto::v1::explain_service_client::ExplainServiceClient;
use kvtap::proto::v1::match_request::Prompt;
use kvtap::wire::{Batch, Dialect, decode};
use kvtap::worker::{Identity, Stamp};
use serve_support::{PATIENCE, Server, Worker, by_tokens, contents, request};
use tonic::{Code, Status};

fn grid() -> Grid {
    Grid::new(4).unwrap()
}

fn tokens(blocks: u32) -> Vec<u32> {
    (0..blocks * 4).collect()
}

fn prompt(blocks: u32) -> v1::MatchRequest {
    v1::MatchRequest { workers: vec!["pod-a".to_owned()], ..by_tokens("m", &tokens(blocks)) }
}

async fn explain(server: &Server, request: v1::MatchRequest) -> Result<v1::RankExplanation, Status> {
    let mut client = ExplainServiceClient::new(server.channel().await);
    let mut ranks = client.explain(v1::ExplainRequest { request: Some(request) }).await?.into_inner().ranks;
    assert_eq!(ranks.len(), 1, "{ranks:?}");
    Ok(ranks.remove(0))
}

/// Explains until the first cause is `wanted`: what is remembered of removals comes a moment after them.
async fn until(server: &Server, request: v1::MatchRequest, wanted: impl Fn(&Cause) -> bool) -> v1::RankExplanation {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let explained = explain(server, request.clone()).await.unwrap();
        if explained.causes.first().and_then(|cause| cause.cause.as_ref()).is_some_and(&wanted) {
            return explained;
        }
        assert!(tokio::time::Instant::now() < deadline, "never: {explained:?}");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// The causes without their sentences.
fn causes(explained: &v1::RankExplanation) -> Vec<Cause> {
    explained.causes.iter().map(|cause| cause.cause.clone().unwrap()).collect()
}

/// The names that [`Worker::store`] gives to the blocks of a prompt.
fn names(blocks: u32) -> Vec<EngineHash> {
    let name = |(i, content): (usize, &kvtap::hash::ContentHash)| {
        EngineHash::from_u64(content.0.wrapping_mul(31).wrapping_add(i as u64))
    };
    contents(grid(), &tokens(blocks), Seed::PLAIN).iter().enumerate().map(name).collect()
}

fn change(worker: &mut Worker, sequence: u64, act: impl FnOnce(&mut kvtap::index::Tx<'_>)) {
    let mut tx = worker.writer.begin().unwrap();
    act(&mut tx);
    tx.commit(Stamp { epoch: 1, sequence: Some(sequence) });
}

#[tokio::test]
async fn a_block_that_was_never_stored_and_a_prompt_that_is_held_whole() {
    let server = Server::start().await;
    let mut worker = server.worker("m", "pod-a", 0);
    worker.store(grid(), &tokens(3), Seed::PLAIN);
    let explained = explain(&server, prompt(5)).await.unwrap();
    assert_eq!(causes(&explained), [Cause::NeverStored(v1::NeverStored {})]);
    assert_eq!(explained.missing_block, Some(3));
    let chain = contents(grid(), &tokens(5), Seed::PLAIN);
    assert_eq!(explained.content_hash, Some(chain[3].0));
    assert_eq!(explained.prefix_hash, Some(PrefixHash::chain(&chain)[3].0));
    let matched = explained.r#match.unwrap();
    assert_eq!((matched.matched_blocks, matched.asked_blocks), (3, 5));

    let whole = explain(&server, prompt(3)).await.unwrap();
    assert_eq!((whole.missing_block, whole.prefix_hash, whole.causes), (None, None, Vec::new()));
}

#[tokio::test]
async fn a_block_that_was_removed_says_by_which_message_and_when() {
    let server = Server::start().await;
    let mut worker = server.worker("m", "pod-a", 0);
    worker.store(grid(), &tokens(5), Seed::PLAIN);
    explain(&server, prompt(5)).await.unwrap();
    change(&mut worker, 7, |tx| {
        tx.remove(Tier::Device, Group(0), &names(5)[2..4]);
    });
    let explained = until(&server, prompt(5), |cause| matches!(cause, Cause::Removed(_))).await;
    let [Cause::Removed(removed)] = &*causes(&explained) else { panic!("{explained:?}") };
    assert_eq!((removed.epoch, removed.sequence, explained.missing_block), (1, Some(7), Some(2)));
    assert!(removed.unix_ms >= explained.remembered_since_unix_ms && explained.remembered_since_unix_ms > 0);
    assert!(explained.causes[0].text.contains("message 7 of epoch 1"), "{explained:?}");
}

#[tokio::test]
async fn a_cleared_cache_and_a_new_life_are_told_apart() {
    let server = Server::start().await;
    let mut worker = server.worker("m", "pod-a", 0);
    worker.store(grid(), &tokens(2), Seed::PLAIN);
    explain(&server, prompt(2)).await.unwrap();
    change(&mut worker, 8, |tx| tx.clear());
    let explained = until(&server, prompt(2), |cause| matches!(cause, Cause::Dropped(_))).await;
    let [Cause::Dropped(dropped)] = &*causes(&explained) else { panic!("{explained:?}") };
    assert_eq!((dropped.sequence, dropped.new_epoch), (Some(8), false));
    change(&mut worker, 9, |tx| tx.reset());
    let explained = until(&server, prompt(2), |cause| matches!(cause, Cause::NothingStored(_))).await;
    assert_eq!((explained.missing_block, explained.prefix_hash), (Some(0), None));
    let other: Vec<u32> = (900..904).collect();
    worker.store(grid(), &other, Seed::PLAIN);
    let wanted = |cause: &Cause| matches!(cause, Cause::Dropped(dropped) if dropped.new_epoch);
    until(&server, prompt(2), wanted).await;
}

#[tokio::test]
async fn the_same_tokens_in_another_namespace() {
    let server = Server::start().await;
    let mut worker = server.worker("m", "pod-a", 0);
    worker.store(grid(), &tokens(2), Seed::new(Some("adapter"), None));
    worker.store(grid(), &tokens(3), Seed::PLAIN);
    let held_without = |lora: &str, salt: &str, held_blocks, without_lora_name, without_cache_salt| {
        let request = v1::MatchRequest { lora_name: lora.to_owned(), cache_salt: salt.to_owned(), ..prompt(4) };
        let expected = v1::OtherNamespace { held_blocks, without_lora_name, without_cache_salt };
        (request, Cause::OtherNamespace(expected))
    };
    for (request, expected) in [
        held_without("", "sesame", 3, false, true),
        held_without("adapter", "sesame", 2, false, true),
        held_without("other", "", 3, true, false),
        held_without("other", "sesame", 3, true, true),
    ] {
        let explained = explain(&server, request).await.unwrap();
        assert_eq!(causes(&explained).first(), Some(&expected), "{explained:?}");
    }
}

#[tokio::test]
async fn another_block_size() {
    let server = Server::start().await;
    server.worker("m", "pod-a", 0).store(grid(), &tokens(2), Seed::PLAIN);
    let explained = explain(&server, v1::MatchRequest { block_size: 16, ..prompt(4) }).await.unwrap();
    let expected = Cause::OtherBlockSize(v1::OtherBlockSize { block_size: 4 });
    assert_eq!((causes(&explained).first(), explained.missing_block), (Some(&expected), Some(2)));
}

#[tokio::test]
async fn blocks_that_a_group_of_a_hybrid_model_does_not_let_the_engine_re_use() {
    let server = Server::start().await;
    let mut worker = server.worker("m", "pod-a", 0);
    worker.store(grid(), &tokens(3), Seed::PLAIN);
    change(&mut worker, 5, |tx| tx.note_group(Group(1), GroupRule::Window { tokens: 9 }, 4));
    let explained = explain(&server, prompt(3)).await.unwrap();
    let expected = v1::CutByGroups { held_blocks: 3, unknown_rule: false };
    assert_eq!(causes(&explained).first(), Some(&Cause::CutByGroups(expected)), "{explained:?}");
    change(&mut worker, 6, |tx| tx.note_group(Group(2), GroupRule::Unknown, 4));
    change(&mut worker, 7, |tx| tx.hold(Tier::Device, Group(1), &names(3)));
    let explained = explain(&server, prompt(3)).await.unwrap();
    let expected = v1::CutByGroups { held_blocks: 3, unknown_rule: true };
    assert_eq!(causes(&explained).first(), Some(&Cause::CutByGroups(expected)), "{explained:?}");
}

#[tokio::test]
async fn a_feed_that_has_not_told_everything_and_blocks_that_wait() {
    let server = Server::start().await;
    let mut worker = server.worker("m", "pod-a", 0);
    worker.store(grid(), &tokens(1), Seed::PLAIN);
    {
        let mut status = worker.entry.status();
        (status.state, status.why, status.orphans) = (State::Incomplete, "messages are missing".to_owned(), 6);
    }
    let explained = explain(&server, prompt(2)).await.unwrap();
    let [Cause::Orphans(orphans), Cause::FeedIncomplete(incomplete)] = &*causes(&explained) else {
        panic!("{explained:?}")
    };
    assert_eq!(
        (orphans.blocks, incomplete.state(), &*incomplete.why),
        (6, v1::FeedState::Incomplete, "messages are missing")
    );
    assert!(incomplete.since_unix_ms > 0);
}

/// A rank whose events go through a normalizer, as a feed's do.
struct Tapped {
    normalizer: Normalizer,
    entry: std::sync::Arc<Entry>,
    sequence: u64,
}

impl Tapped {
    fn new(server: &Server) -> Self {
        let writer = server.fleet.index.register("m", Copies::Count).unwrap();
        let (rank, worker) = (writer.rank(), "pod-a".into());
        let normalizer = Normalizer::new(writer, Options::default());
        let identity = Identity { worker, address: "".into(), aliases: [].into(), model: "m".into(), rank: 0 };
        let entry = Entry::new(rank, identity, "tcp://127.0.0.1:5557".to_owned(), None, "vllm");
        let entry = std::sync::Arc::new(entry.with_orphans(normalizer.waiting()));
        server.fleet.board.insert(std::sync::Arc::clone(&entry));
        Self { normalizer, entry, sequence: 0 }
    }

    /// A store of `blocks` of a prompt, each called by its number and 100, under the one before the first; `more` is
    /// laid over it.
    fn store(&mut self, tokens: &[u32], blocks: std::ops::Range<u32>, more: serde_json::Value) {
        let part = &tokens[blocks.start as usize * 4..blocks.end as usize * 4];
        let parent = blocks.start.checked_sub(1).map(|parent| parent + 100);
        let names: Vec<u32> = blocks.map(|block| block + 100).collect();
        let mut event = serde_json::json!({
            "type": "BlockStored", "block_hashes": names, "parent_block_hash": parent, "token_ids": part,
            "block_size": 4, "lora_id": null, "medium": "GPU", "lora_name": null,
        });
        event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.send(event);
    }

    fn send(&mut self, event: serde_json::Value) {
        let payload = rmp_serde::to_vec(&serde_json::json!([0.5, [event], 0])).unwrap();
        let mut batch = Batch::default();
        decode(Dialect::Auto, &payload, &mut batch).unwrap();
        let applied = self.normalizer.apply(&batch, Stamp { epoch: 1, sequence: Some(self.sequence) }).unwrap();
        self.sequence += 1;
        let mut status = self.entry.status();
        (status.state, status.orphans) = (State::Live, applied.orphans);
    }
}

#[tokio::test]
async fn a_block_without_its_parent_is_told_with_the_parents_name() {
    let server = Server::start().await;
    let mut tapped = Tapped::new(&server);
    let none = serde_json::json!({});
    tapped.store(&tokens(9), 0..2, none.clone());
    // The message with blocks 2 and 3 never came; those with 4 to 6, and 8, did.
    tapped.store(&tokens(9), 8..9, none.clone());
    tapped.store(&tokens(9), 4..7, none.clone());
    let orphans = |first_block, prompt_blocks, parent| v1::Orphans {
        blocks: 4,
        first_block: Some(first_block),
        prompt_blocks,
        parent_engine_hash: Some(parent),
    };
    let explained = explain(&server, prompt(9)).await.unwrap();
    assert_eq!(
        (explained.missing_block, causes(&explained)),
        (Some(2), vec![Cause::Orphans(orphans(4, 3, 103))]),
        "{explained:?}"
    );
    let text =
        "3 blocks from block 4 on wait for a parent that was never heard of; the engine calls it 0x0000000000000067";
    assert_eq!(explained.causes[0].text, text);

    // By content hashes it is found, too; of a prefix nobody can say what waits.
    let hashes = contents(grid(), &tokens(9), Seed::PLAIN);
    let by = |form| v1::MatchRequest { workers: vec!["pod-a".to_owned()], ..request("m", form) };
    let list = v1::HashList { hashes: hashes.iter().map(|hash| hash.0).collect() };
    let explained = explain(&server, by(Prompt::ContentHashes(list))).await.unwrap();
    assert_eq!(causes(&explained), [Cause::Orphans(orphans(4, 3, 103))]);
    let list = v1::HashList { hashes: PrefixHash::chain(&hashes).iter().map(|hash| hash.0).collect() };
    let explained = explain(&server, by(Prompt::PrefixHashes(list))).await.unwrap();
    assert_eq!(causes(&explained), [Cause::Orphans(v1::Orphans { blocks: 4, ..v1::Orphans::default() })]);

    // The prompt is not told what of other prompts waits.
    let other: Vec<u32> = (5_000..5_032).collect();
    let other = v1::MatchRequest { workers: vec!["pod-a".to_owned()], ..by_tokens("m", &other) };
    let explained = explain(&server, other).await.unwrap();
    assert_eq!(causes(&explained), [Cause::Orphans(v1::Orphans { blocks: 4, ..v1::Orphans::default() })]);

    // What was removed while it waited is not told, and nothing is once the parent has come.
    tapped.send(serde_json::json!({"type": "BlockRemoved", "block_hashes": [105], "medium": "GPU"}));
    let explained = explain(&server, prompt(9)).await.unwrap();
    assert_eq!(causes(&explained), [Cause::Orphans(v1::Orphans { blocks: 3, ..orphans(4, 2, 103) })]);
    tapped.store(&tokens(9), 2..4, none);
    let explained = explain(&server, prompt(9)).await.unwrap();
    assert_eq!(explained.missing_block, Some(5));
    let waits = Cause::Orphans(v1::Orphans { blocks: 1, ..orphans(8, 1, 107) });
    assert_eq!(causes(&explained).last(), Some(&waits));
}

#[tokio::test]
async fn what_waits_with_another_adapter_is_not_the_same_prompt() {
    let server = Server::start().await;
    let mut tapped = Tapped::new(&server);
    tapped.store(&tokens(4), 0..1, serde_json::json!({}));
    tapped.store(&tokens(4), 2..4, serde_json::json!({"lora_name": "adapter"}));
    let first = async |lora_name: &str| {
        let request = v1::MatchRequest { lora_name: lora_name.to_owned(), ..prompt(4) };
        let explained = explain(&server, request).await.unwrap();
        let of = causes(&explained).into_iter().find_map(|cause| match cause {
            Cause::Orphans(orphans) => Some((orphans.first_block, orphans.parent_engine_hash)),
            _ => None,
        });
        of.unwrap()
    };
    assert_eq!(first("").await, (None, None));
    assert_eq!(first("adapter").await, (Some(2), Some(101)));
}

#[tokio::test]
async fn what_cannot_be_explained_is_refused_by_the_name_of_the_field() {
    let server = Server::start().await;
    server.worker("m", "pod-a", 0).store(grid(), &tokens(1), Seed::PLAIN);
    let nobody = v1::MatchRequest { workers: vec!["pod-z".to_owned()], ..prompt(1) };
    let everybody = v1::MatchRequest { workers: Vec::new(), ..prompt(1) };
    let unknown = v1::MatchRequest { model: "x".to_owned(), ..prompt(1) };
    let nothing = v1::MatchRequest { prompt: None, ..prompt(1) };
    for (request, code, field) in [
        (nobody, Code::NotFound, "workers"),
        (everybody, Code::InvalidArgument, "workers"),
        (unknown, Code::NotFound, "model"),
        (nothing, Code::InvalidArgument, "prompt"),
    ] {
        let status = explain(&server, request).await.unwrap_err();
        assert_eq!((status.code(), status.message().starts_with(field)), (code, true), "{status:?}");
    }
}

#[tokio::test]
async fn the_command_says_the_same_as_text_and_as_json() {
    let server = Server::start().await;
    server.worker("m", "pod-a", 0).store(grid(), &tokens(2), Seed::PLAIN);
    let address = server.address.to_string();
    let run = async |worker: &str, json: bool| {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_kvtap"));
        command.args(["explain", "--server", &address, "--model", "m", "--worker", worker]);
        command.args(["--tokens", "0,1,2,3,4,5,6,7,8,9,10,11", "--block-size", "16"]).args(json.then_some("--json"));
        tokio::time::timeout(PATIENCE, command.kill_on_drop(true).output()).await.unwrap().unwrap()
    };
    let output = run("pod-a", true).await;
    let explained: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rank = &explained["ranks"][0];
    assert_eq!((&rank["worker"], &rank["missing_block"]), (&"pod-a".into(), &2.into()), "{explained}");
    assert_eq!(
        (&rank["causes"][0]["cause"], &rank["causes"][0]["block_size"]),
        (&"other_block_size".into(), &4.into())
    );
    let output = run("pod-a", false).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && text.starts_with("pod-a/0 holds 2 of 3 blocks; block 2 is missing:\n"),
        "{text}"
    );
    let output = run("pod-z", true).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}
