//! Matches, asked for by a real client over a real socket.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod serve_support;

use std::sync::Arc;

use kvtap::block::{Grid, Group, GroupRule, Tier};
use kvtap::feed::status::{Entry, Origin, State};
use kvtap::hash::{ContentHash, PrefixHash, Seed};
use kvtap::proto::v1;
use kvtap::proto::v1::FeedState;
use kvtap::proto::v1::match_request::Prompt;
use kvtap::proto::v1::query_service_client::QueryServiceClient;
use kvtap::worker::{Identity, RankId, Stamp};
use serve_support::{Server, by_tokens, contents, depths, le, request};

fn grid(size: u64) -> Grid {
    Grid::new(size).unwrap()
}

fn prompt(tokens: u32) -> Vec<u32> {
    (0..tokens).collect()
}

async fn ask(server: &Server, request: v1::MatchRequest) -> v1::MatchResponse {
    server.client().await.r#match(request).await.unwrap().into_inner()
}

#[tokio::test]
async fn the_deepest_match_comes_first_and_says_what_it_rests_on() {
    let server = Server::start().await;
    let mut short = server.worker("m", "a-short", 0);
    let mut deep = server.named_worker("m", "b-deep", 1, "10.0.0.2:8000", &["http://b"]);
    short.store(grid(16), &prompt(32), Seed::PLAIN);
    deep.store(grid(16), &prompt(80), Seed::PLAIN);
    deep.store(grid(16), &[9; 16], Seed::PLAIN);

    let response = ask(&server, by_tokens("m", &prompt(100))).await;

    assert_eq!(depths(&response), [("b-deep", 1, 5), ("a-short", 0, 2)]);
    assert_eq!(response.model, "m");
    let used = v1::GridUse { grid: Some(v1::Grid { block_size: 16, lookahead: 0 }), blocks: 6 };
    assert_eq!(response.grids, [used]);
    let best = &response.matches[0];
    let who = best.worker_rank.as_ref().unwrap();
    assert_eq!((who.address.as_str(), who.aliases.as_slice()), ("10.0.0.2:8000", &["http://b".to_owned()][..]));
    assert_eq!((best.matched_tokens, best.device_blocks, best.held_blocks), (80, 5, 6));
    assert_eq!(best.tiers, Some(v1::TierBlocks { device: 5, ..Default::default() }));
    assert_eq!((best.state(), best.why.as_str()), (FeedState::Live, "every message has been applied"));
    assert_eq!((best.epoch, best.last_seq), (1, Some(1)));
    assert!(best.age_ms.is_some());
    assert_eq!((best.partial, best.cut_by_unknown_group, best.asked_blocks), (false, false, 6));
    server.stop().await;
}

#[tokio::test]
async fn every_form_of_the_same_prompt_has_the_same_answer() {
    let server = Server::start().await;
    server.worker("m", "w", 0).store(grid(4), &prompt(40), Seed::PLAIN);
    let tokens = prompt(43);
    let by_content: Vec<_> = contents(grid(4), &tokens, Seed::PLAIN);
    let by_prefix: Vec<u64> = PrefixHash::chain(&by_content).iter().map(|hash| hash.0).collect();
    let by_content: Vec<u64> = by_content.iter().map(|ContentHash(hash)| *hash).collect();
    let raw = |hashes: &[u64]| hashes.iter().flat_map(|hash| hash.to_le_bytes()).collect::<Vec<_>>().into();
    let forms = [
        Prompt::TokensLe(le(&tokens).into()),
        Prompt::Tokens(v1::TokenList { ids: tokens.clone() }),
        Prompt::ContentHashesLe(raw(&by_content)),
        Prompt::ContentHashes(v1::HashList { hashes: by_content.clone() }),
        Prompt::PrefixHashesLe(raw(&by_prefix)),
        Prompt::PrefixHashes(v1::HashList { hashes: by_prefix.clone() }),
    ];
    for form in forms {
        let response = ask(&server, request("m", form.clone())).await;
        assert_eq!(depths(&response), [("w", 0, 10)], "{form:?}");
        assert_eq!(response.grids[0].blocks, 10, "{form:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn lora_salt_and_extra_keys_keep_equal_tokens_apart() {
    let server = Server::start().await;
    let mut worker = server.worker("m", "w", 0);
    worker.store(grid(4), &prompt(8), Seed::new(Some("adapter"), Some("tenant")));
    let keys = 77u64.to_le_bytes();
    let mut with_keys = Vec::new();
    let key = |i| if i == 1 { &keys[..] } else { &[] };
    grid(4).contents(&le(&prompt(8)), Seed::PLAIN, key, &mut with_keys);
    worker.store_on(Tier::Device, grid(4), &with_keys, Seed::PLAIN);

    let plain = by_tokens("m", &prompt(8));
    let salted = v1::MatchRequest { lora_name: "adapter".to_owned(), cache_salt: "tenant".to_owned(), ..plain.clone() };
    let other_salt = v1::MatchRequest { cache_salt: "other".to_owned(), ..salted.clone() };
    let keyed = v1::MatchRequest { extra_keys: vec![Vec::new().into(), keys.to_vec().into()], ..plain.clone() };
    for (request, blocks) in [(plain, 1), (salted, 2), (other_salt, 0), (keyed, 2)] {
        assert_eq!(depths(&ask(&server, request).await), [("w", 0, blocks)]);
    }
    server.stop().await;
}

#[tokio::test]
async fn workers_of_different_block_sizes_are_each_matched_on_their_own_grid() {
    let server = Server::start().await;
    server.worker("m", "small", 0).store(grid(4), &prompt(40), Seed::PLAIN);
    server.worker("m", "large", 0).store(grid(16), &prompt(48), Seed::PLAIN);

    let response = ask(&server, by_tokens("m", &prompt(50))).await;

    // Deepest in tokens, not in blocks.
    assert_eq!(depths(&response), [("large", 0, 3), ("small", 0, 10)]);
    let sizes: Vec<_> = response.matches.iter().map(|held| held.grid.unwrap().block_size).collect();
    assert_eq!(sizes, [16, 4]);
    let asked: Vec<_> = response.matches.iter().map(|held| held.asked_blocks).collect();
    assert_eq!(asked, [3, 12]);
    let grids: Vec<_> = response.grids.iter().map(|used| (used.grid.unwrap().block_size, used.blocks)).collect();
    assert_eq!(grids, [(4, 12), (16, 3)]);

    let one_size = v1::MatchRequest { block_size: 4, ..by_tokens("m", &prompt(50)) };
    let response = ask(&server, one_size).await;
    assert_eq!(depths(&response), [("small", 0, 10), ("large", 0, 0)]);
    let other = &response.matches[1];
    assert_eq!((other.grid.unwrap().block_size, other.asked_blocks, other.held_blocks), (16, 0, 3));
    server.stop().await;
}

#[tokio::test]
async fn tiers_are_counted_apart_and_device_stops_at_the_first_block_elsewhere() {
    let server = Server::start().await;
    let mut worker = server.worker("m", "w", 0);
    let chain = contents(grid(4), &prompt(24), Seed::PLAIN);
    worker.store_on(Tier::Host, grid(4), &chain, Seed::PLAIN);
    worker.store_on(Tier::Device, grid(4), &chain[..2], Seed::PLAIN);

    let response = ask(&server, by_tokens("m", &prompt(24))).await;

    let held = &response.matches[0];
    assert_eq!((held.matched_blocks, held.device_blocks), (6, 2));
    assert_eq!(held.tiers, Some(v1::TierBlocks { device: 2, host: 6, ..Default::default() }));
    server.stop().await;
}

#[tokio::test]
async fn a_match_that_an_unknown_group_cut_to_nothing_says_so_on_every_grid() {
    let server = Server::start().await;
    let mut cut = server.worker("m", "cut", 0);
    cut.store(grid(4), &prompt(8), Seed::PLAIN);
    let mut tx = cut.writer.begin().unwrap();
    tx.note_group(Group(1), GroupRule::Unknown, 4);
    tx.commit(Stamp { epoch: 1, sequence: Some(1) });
    let one_grid = ask(&server, by_tokens("m", &prompt(8))).await;
    server.worker("m", "other", 0).store(grid(8), &prompt(8), Seed::PLAIN);
    let two_grids = ask(&server, by_tokens("m", &prompt(8))).await;
    for (response, rank) in [(one_grid, 0), (two_grids, 1)] {
        let held = &response.matches[rank];
        assert_eq!((held.matched_blocks, held.cut_by_unknown_group, held.held_blocks), (0, true, 2));
        assert_eq!((held.grid.unwrap().block_size, held.asked_blocks, held.last_seq), (4, 2, Some(1)));
    }
    server.stop().await;
}

#[tokio::test]
async fn asked_for_workers_always_come_back_by_whatever_name_they_were_asked_for() {
    let server = Server::start().await;
    server.named_worker("m", "a", 0, "10.0.0.1:80", &[]).store(grid(4), &prompt(8), Seed::PLAIN);
    let _idle = server.named_worker("m", "b", 0, "10.0.0.2:80", &["http://b"]);
    let _not_asked = server.worker("m", "c", 0);

    let request = v1::MatchRequest {
        workers: ["10.0.0.1:80", "http://b", "nobody"].map(str::to_owned).to_vec(),
        min_blocks: 1,
        ..by_tokens("m", &prompt(8))
    };
    let response = ask(&server, request).await;

    assert_eq!(depths(&response), [("a", 0, 2), ("b", 0, 0), ("nobody", 0, 0)]);
    let states: Vec<_> = response.matches.iter().map(v1::RankMatch::state).collect();
    assert_eq!(states, [FeedState::Live, FeedState::Live, FeedState::Unspecified]);
    server.stop().await;
}

#[tokio::test]
async fn a_worker_asked_for_by_name_comes_back_where_it_has_none_of_the_ranks_asked_for() {
    let server = Server::start().await;
    let _a = [server.named_worker("m", "a", 0, "10.0.0.1:80", &[]), server.worker("m", "a", 3)];
    let _b = [server.named_worker("m", "b", 0, "", &["http://b"]), server.worker("m", "b", 1)];
    let request = v1::MatchRequest {
        workers: ["a", "http://b", "b", "nobody"].map(str::to_owned).to_vec(),
        ranks: vec![3],
        ..by_tokens("m", &prompt(8))
    };
    for brief in [false, true] {
        let response = ask(&server, v1::MatchRequest { brief, ..request.clone() }).await;
        assert_eq!(depths(&response), [("a", 3, 0), ("b", 0, 0), ("http://b", 0, 0), ("nobody", 0, 0)]);
        let why: Vec<_> = response.matches.iter().skip(1).map(|found| (found.state(), &*found.why)).collect();
        let no_rank = (FeedState::Unspecified, "this worker has none of the ranks that were asked for");
        assert_eq!(why, [no_rank, no_rank, (FeedState::Unspecified, "no worker of this model has this name")]);
    }
    server.stop().await;
}

#[tokio::test]
async fn ranks_top_k_and_min_blocks_narrow_the_answer() {
    let server = Server::start().await;
    let mut ranks: Vec<_> = (0..4).map(|rank| server.worker("m", "w", rank)).collect();
    for (worker, tokens) in ranks.iter_mut().zip([4, 8, 12]) {
        worker.store(grid(4), &prompt(tokens), Seed::PLAIN);
    }
    let all = by_tokens("m", &prompt(12));
    let of_rank = v1::MatchRequest { ranks: vec![1, 3], ..all.clone() };
    let top = v1::MatchRequest { top_k: 2, ..all.clone() };
    let at_least = v1::MatchRequest { min_blocks: 2, ..all.clone() };
    for (request, expected) in [
        (all, vec![("w", 2, 3), ("w", 1, 2), ("w", 0, 1), ("w", 3, 0)]),
        (of_rank, vec![("w", 1, 2), ("w", 3, 0)]),
        (top, vec![("w", 2, 3), ("w", 1, 2)]),
        (at_least, vec![("w", 2, 3), ("w", 1, 2)]),
    ] {
        assert_eq!(depths(&ask(&server, request).await), expected);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_brief_answer_is_the_whole_one_without_what_a_score_does_not_need() {
    let server = Server::start().await;
    let mut deep = server.named_worker("m", "b-deep", 1, "10.0.0.2:8000", &["http://b"]);
    deep.store(grid(16), &prompt(80), Seed::PLAIN);
    let idle = server.worker("m", "a-idle", 0);
    idle.entry.status().state = State::Connecting;
    let whole = v1::MatchRequest {
        workers: vec!["http://b".into(), "a-idle".into(), "nobody".into()],
        ..by_tokens("m", &prompt(100))
    };
    let brief = v1::MatchRequest { brief: true, ..whole.clone() };

    let mut expected = ask(&server, whole.clone()).await;
    for found in &mut expected.matches {
        found.worker_rank.as_mut().unwrap().model.clear();
        found.age_ms = None;
        if found.state() == FeedState::Live {
            found.why.clear();
        }
        *found = v1::RankMatch {
            tiers: None,
            leading: None,
            leading_within: None,
            grid: None,
            held_blocks: 0,
            asked_blocks: 0,
            ..found.clone()
        };
    }
    // Whole and brief in turn: neither is the other's. A batch's answers are messages.
    for _ in 0..2 {
        let mut answers = vec![ask(&server, brief.clone()).await];
        let batch = v1::MatchBatchRequest { requests: vec![brief.clone()] };
        let batch = server.client().await.match_batch(batch).await.unwrap().into_inner();
        let Some(v1::match_batch_result::Result::Response(answer)) = batch.results[0].result.clone() else { panic!() };
        answers.push(answer);
        for mut answer in answers {
            answer.matches.iter_mut().for_each(|found| found.age_ms = None);
            assert_eq!(answer, expected);
        }
        assert!(ask(&server, whole.clone()).await.matches.iter().all(|found| found.tiers.is_some()));
    }
    server.stop().await;
}

#[tokio::test]
async fn what_takes_no_prompt_is_no_candidate_unless_it_is_asked_for_by_name() {
    let server = Server::start().await;
    let mut held = server.worker("m", "w", 0);
    held.store(grid(16), &prompt(48), Seed::PLAIN);
    let identity = Identity { worker: "subscription".into(), rank: 1, ..held.entry.identity.clone() };
    let rank = RankId { slot: 1 << 20, generation: 1 };
    let subscription = Entry::new(rank, identity, "nats://n:4222 kv.*".to_owned(), None, "dynamo");
    server.fleet.board.insert(Arc::new(subscription.with_origin(Origin::None)));

    assert_eq!(depths(&ask(&server, by_tokens("m", &prompt(48))).await), [("w", 0, 3)]);
    let named = v1::MatchRequest { workers: vec!["subscription".into()], ..by_tokens("m", &prompt(48)) };
    assert_eq!(depths(&ask(&server, named).await), [("subscription", 1, 0)]);
    server.stop().await;
}

#[tokio::test]
async fn a_model_whose_workers_hold_nothing_yet_is_answered_with_zeros() {
    let server = Server::start().await;
    let idle = server.worker("m", "w", 0);
    idle.entry.status().state = State::Connecting;

    let response = ask(&server, by_tokens("m", &prompt(64))).await;
    assert_eq!(depths(&response), [("w", 0, 0)]);
    assert_eq!((response.matches[0].state(), response.matches[0].grid), (FeedState::Connecting, None));
    assert_eq!(response.grids, []);

    let sized = v1::MatchRequest { block_size: 16, ..by_tokens("m", &prompt(64)) };
    let response = ask(&server, sized).await;
    assert_eq!((depths(&response), response.grids[0].blocks), (vec![("w", 0, 0)], 4));
    server.stop().await;
}

#[tokio::test]
async fn an_empty_prompt_and_one_shorter_than_a_block_match_nothing() {
    let server = Server::start().await;
    server.worker("m", "w", 0).store(grid(16), &prompt(16), Seed::PLAIN);
    for tokens in [0, 15] {
        let response = ask(&server, by_tokens("m", &prompt(tokens))).await;
        assert_eq!((depths(&response), response.grids[0].blocks), (vec![("w", 0, 0)], 0));
    }
    server.stop().await;
}

#[tokio::test]
async fn a_million_tokens_are_answered() {
    let server = Server::start().await;
    let tokens = prompt(1 << 20);
    server.worker("m", "w", 0).store(grid(16), &tokens, Seed::PLAIN);
    for form in [Prompt::TokensLe(le(&tokens).into()), Prompt::Tokens(v1::TokenList { ids: tokens.clone() })] {
        assert_eq!(depths(&ask(&server, request("m", form)).await), [("w", 0, 1 << 16)]);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_stream_answers_in_order_and_a_bad_request_costs_only_itself() {
    use v1::match_stream_response::Result as Outcome;
    let server = Server::start().await;
    server.worker("m", "w", 0).store(grid(4), &prompt(400), Seed::PLAIN);
    let requests = (0..100u32).map(|i| v1::MatchStreamRequest {
        id: u64::from(i) * 3,
        request: match i {
            7 => None,
            8 => Some(by_tokens("other", &[])),
            _ => Some(by_tokens("m", &prompt(4 * i))),
        },
    });
    let requests: Vec<_> = requests.collect();

    let mut answers = server.client().await.match_stream(tokio_stream::iter(requests)).await.unwrap().into_inner();

    for i in 0..100u32 {
        let answer = answers.message().await.unwrap().unwrap();
        assert_eq!(answer.id, u64::from(i) * 3);
        match (i, answer.result.unwrap()) {
            (7, Outcome::Failure(failure)) => {
                assert_eq!((failure.code, failure.message.as_str()), (3, "request: required"));
            }
            (8, Outcome::Failure(failure)) => assert_eq!(failure.code, 5),
            (_, Outcome::Response(response)) => assert_eq!(depths(&response), [("w", 0, i)]),
            (_, other) => panic!("request {i}: {other:?}"),
        }
    }
    assert!(answers.message().await.unwrap().is_none());
    server.stop().await;
}

#[tokio::test]
async fn only_feeds_in_the_states_asked_for_are_matched_and_named_ones_come_back_with_zeros() {
    let server = Server::start().await;
    for (worker, state) in [("a", State::Live), ("b", State::Incomplete), ("c", State::Degraded)] {
        let mut worker = server.worker("m", worker, 0);
        worker.store(grid(16), &prompt(64), Seed::PLAIN);
        worker.entry.status().state = state;
    }
    let states = |states: &[FeedState]| v1::MatchRequest {
        states: states.iter().map(|state| *state as i32).collect(),
        ..by_tokens("m", &prompt(64))
    };
    let live = ask(&server, states(&[FeedState::Live])).await;
    assert_eq!(depths(&live), [("a", 0, 4)]);
    let sure = ask(&server, states(&[FeedState::Live, FeedState::Degraded])).await;
    assert_eq!(depths(&sure), [("a", 0, 4), ("c", 0, 4)]);
    let named = v1::MatchRequest { workers: ["a", "b", "x"].map(str::to_owned).to_vec(), ..states(&[FeedState::Live]) };
    let named = ask(&server, named).await;
    assert_eq!(depths(&named), [("a", 0, 4), ("b", 0, 0), ("x", 0, 0)]);
    assert_eq!((named.matches[1].state(), named.matches[1].held_blocks), (FeedState::Incomplete, 4));
    for bad in [0, 99] {
        let request = v1::MatchRequest { states: vec![bad], ..by_tokens("m", &prompt(64)) };
        let status = server.client().await.r#match(request).await.unwrap_err();
        assert_eq!(status.message(), format!("states: {bad} is no state of a feed"));
    }
    server.stop().await;
}

#[tokio::test]
async fn leading_blocks_are_counted_for_each_tier_alone_and_with_those_nearer_to_the_device() {
    use kvtap::block::Tier::{Device, Disk, Host};
    let server = Server::start().await;
    let mut worker = server.worker("m", "w", 0);
    let chain = serve_support::contents(grid(16), &prompt(160), Seed::PLAIN);
    // device 0..4, host 0..6, disk 8..10: a hole at 6, 7 ends it.
    for (tier, blocks) in [(Device, &chain[..4]), (Host, &chain[..6]), (Disk, &chain[..2])] {
        worker.store_on(tier, grid(16), blocks, Seed::PLAIN);
    }
    let found = ask(&server, by_tokens("m", &prompt(160))).await.matches.remove(0);
    let tiers = |device, host, disk, external, other| Some(v1::TierBlocks { device, host, disk, external, other });
    assert_eq!((found.matched_blocks, found.device_blocks), (6, 4));
    assert_eq!(found.tiers, tiers(4, 6, 2, 0, 0));
    assert_eq!(found.leading, tiers(4, 6, 2, 0, 0));
    assert_eq!(found.leading_within, tiers(4, 6, 6, 6, 6));

    let mut other = server.worker("n", "w", 0);
    other.store_on(Host, grid(16), &chain[..3], Seed::PLAIN);
    other.store_on(Device, grid(16), &chain[..1], Seed::PLAIN);
    let found = ask(&server, by_tokens("n", &prompt(160))).await.matches.remove(0);
    assert_eq!((found.leading, found.leading_within), (tiers(1, 3, 0, 0, 0), tiers(1, 3, 3, 3, 3)));
    server.stop().await;
}

#[tokio::test]
async fn a_batch_answers_each_of_its_requests_in_order() {
    use v1::match_batch_result::Result as Outcome;
    let server = Server::start().await;
    server.worker("m", "w", 0).store(grid(4), &prompt(400), Seed::PLAIN);
    let requests = (0..40).map(|i| by_tokens(if i == 7 { "other" } else { "m" }, &prompt(4 * i))).collect();
    let batch = v1::MatchBatchRequest { requests };
    let results = server.client().await.match_batch(batch).await.unwrap().into_inner().results;
    assert_eq!(results.len(), 40);
    for (i, result) in (0..).zip(results) {
        match (i, result.result.unwrap()) {
            (7, Outcome::Failure(failure)) => assert_eq!(failure.code, 5),
            (_, Outcome::Response(response)) => assert_eq!(depths(&response), [("w", 0, i)]),
            (_, other) => panic!("request {i}: {other:?}"),
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_batch_is_answered_up_to_what_a_client_takes_and_the_rest_of_it_is_refused() {
    use v1::match_batch_result::Result as Outcome;
    let server = Server::start().await;
    let long = "a-name-".repeat(100);
    let _ranks: Vec<_> = (0..64).map(|rank| server.worker("m", &long, rank)).collect();
    let batch = v1::MatchBatchRequest { requests: vec![by_tokens("m", &[]); 200] };
    // A client that was not told to take large messages.
    let mut client = QueryServiceClient::new(server.channel().await);
    let response = client.match_batch(batch).await.unwrap().into_inner();
    let size = prost::Message::encoded_len(&response);
    assert!((3 << 20..4 << 20).contains(&size), "{size} bytes");
    assert_eq!(response.results.len(), 200);
    let (mut answered, mut refused) = (0, 0);
    for result in response.results {
        match result.result.unwrap() {
            Outcome::Response(response) if refused == 0 => {
                assert_eq!(response.matches.len(), 64);
                answered += 1;
            }
            Outcome::Failure(failure) => {
                assert_eq!(failure.code, tonic::Code::ResourceExhausted as i32);
                assert!(
                    failure.message.starts_with("requests: ") && failure.message.contains("3145728"),
                    "{failure:?}"
                );
                refused += 1;
            }
            Outcome::Response(_) => panic!("answered after a refusal"),
        }
    }
    assert!(answered > 0 && refused > 0, "{answered} {refused}");
    server.stop().await;
}

#[tokio::test]
async fn llm_ds_question_is_answered_where_it_is_switched_on() {
    use kvtap::proto::indexer::{GetPodScoresRequest, PodScore, indexer_service_client::IndexerServiceClient};
    use kvtap::serve::{Adapter, Options};
    let question = |prompt: &str, pods: &[&str]| GetPodScoresRequest {
        prompt: prompt.to_owned(),
        model_name: "m".to_owned(),
        pod_identifiers: pods.iter().map(|pod| (*pod).to_owned()).collect(),
    };
    let plain = Server::start().await;
    let mut client = IndexerServiceClient::new(plain.channel().await);
    assert_eq!(client.get_pod_scores(question("1", &[])).await.unwrap_err().code(), tonic::Code::Unimplemented);
    plain.stop().await;

    let options = Options { adapters: vec![Adapter::LlmD], ..Options::default() };
    let server = Server::start_with(options, Vec::new()).await;
    let chain = serve_support::contents(grid(4), &prompt(16), Seed::PLAIN);
    let mut a = server.named_worker("m", "a", 0, "10.0.0.1:80", &[]);
    a.store_on(kvtap::block::Tier::Device, grid(4), &chain[..2], Seed::PLAIN);
    a.store_on(kvtap::block::Tier::Host, grid(4), &chain, Seed::PLAIN);
    server.worker("m", "b", 1).store(grid(4), &prompt(4), Seed::PLAIN);
    let _idle = server.worker("m", "c", 0);
    let tokens: Vec<String> = prompt(16).iter().map(u32::to_string).collect();
    let mut client = IndexerServiceClient::new(server.channel().await);
    let score = |pod: &str, score: f64, rank| PodScore { pod: pod.to_owned(), score, data_parallel_rank: rank };
    let all = client.get_pod_scores(question(&tokens.join(", "), &[])).await.unwrap().into_inner().scores;
    assert_eq!(all, [score("a", 3.6, None), score("b", 1.0, Some(1))]);
    let pods = ["10.0.0.1:80", "c", "x"];
    let asked = client.get_pod_scores(question(&tokens.join(" "), &pods)).await.unwrap().into_inner().scores;
    assert_eq!(asked, [score("10.0.0.1:80", 3.6, None), score("c", 0.0, None), score("x", 0.0, None)]);
    let refused = client.get_pod_scores(question("once upon a time", &[])).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    server.stop().await;
}

#[tokio::test]
async fn list_workers_tells_why_a_score_is_zero() {
    let server = Server::start().await;
    let mut worker = server.named_worker("m", "w", 2, "10.0.0.1:80", &["alias"]);
    worker.store(grid(16), &prompt(64), Seed::PLAIN);
    {
        let mut status = worker.entry.status();
        status.state = State::Incomplete;
        status.why = "3 messages never came".to_owned();
        status.gaps = 1;
        status.missed = 3;
        status.orphans = 5;
        status.replays.insert("short", 2);
        status.dropped.insert("bad_hash", 4);
    }
    let _other = server.worker("other", "o", 0);

    let mut client = server.client().await;
    let all = client.list_workers(v1::ListWorkersRequest::default()).await.unwrap().into_inner();
    assert_eq!(all.workers.len(), 2);
    assert_eq!(all.version, env!("CARGO_PKG_VERSION"));
    let request = v1::ListWorkersRequest { model: "m".to_owned(), workers: vec!["alias".to_owned()] };
    let listed = client.list_workers(request).await.unwrap().into_inner().workers;
    let [report] = listed.as_slice() else { panic!("{listed:?}") };
    assert_eq!(report.worker_rank.as_ref().unwrap().rank, 2);
    assert_eq!((report.state(), report.why.as_str()), (FeedState::Incomplete, "3 messages never came"));
    assert_eq!((report.blocks, report.grid.unwrap().block_size, report.last_seq), (4, 16, Some(0)));
    assert_eq!((report.gaps, report.missed, report.orphans), (1, 3, 5));
    assert_eq!((report.replays["short"], report.dropped["bad_hash"]), (2, 4));
    server.stop().await;
}

/// Sends one message and gives what comes back as it is.
#[derive(Clone, Copy)]
struct Raw;

impl tonic::codec::Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl tonic::codec::Encoder for Raw {
    type Item = Vec<u8>;
    type Error = tonic::Status;

    fn encode(&mut self, item: Vec<u8>, buf: &mut tonic::codec::EncodeBuf<'_>) -> Result<(), tonic::Status> {
        bytes::BufMut::put_slice(buf, &item);
        Ok(())
    }
}

impl tonic::codec::Decoder for Raw {
    type Item = Vec<u8>;
    type Error = tonic::Status;

    fn decode(&mut self, buf: &mut tonic::codec::DecodeBuf<'_>) -> Result<Option<Vec<u8>>, tonic::Status> {
        Ok(Some(bytes::Buf::copy_to_bytes(buf, bytes::Buf::remaining(buf)).into()))
    }
}

#[tokio::test]
async fn an_answer_is_byte_for_byte_what_its_message_encodes_to() {
    use prost::Message;
    let server = Server::start().await;
    let chain = serve_support::contents(grid(4), &prompt(1_200), Seed::PLAIN);
    let long = "w".repeat(200);
    let mut a = server.named_worker("m", &long, 0, "10.0.0.1:80", &["alias", "another"]);
    for (tier, held) in [(Tier::Device, 2), (Tier::Host, 300), (Tier::Disk, 5), (Tier::External, 1)] {
        a.store_on(tier, grid(4), &chain[..held], Seed::PLAIN);
    }
    server.worker("m", "b", 7).store(grid(16), &prompt(64), Seed::PLAIN);
    let idle = server.worker("m", "c", 0);
    {
        let mut status = idle.entry.status();
        (status.state, status.why, status.last_heard) = (State::Incomplete, String::new(), None);
    }
    let named = v1::MatchRequest { workers: vec![long, "nobody".repeat(40)], ..by_tokens("m", &prompt(1_200)) };
    let requests = [by_tokens("m", &prompt(1_200)), by_tokens("m", &[]), named, by_tokens("n", &[])];
    let mut client = tonic::client::Grpc::new(server.channel().await);
    for (id, request) in requests.into_iter().enumerate() {
        client.ready().await.unwrap();
        let path = "/kvtap.v1.QueryService/Match".parse().unwrap();
        let asked = tonic::Request::new(request.encode_to_vec());
        if let Ok(answer) = client.unary(asked, path, Raw).await {
            let answer = answer.into_inner();
            let message = v1::MatchResponse::decode(&*answer).unwrap();
            assert_eq!(message.encode_to_vec(), answer, "{message:?}");
            assert!(message.matches.len() >= 2);
        } else {
            assert_eq!(id, 3, "only the last one's model is unknown");
        }
        client.ready().await.unwrap();
        let path = "/kvtap.v1.QueryService/MatchStream".parse().unwrap();
        let asked = v1::MatchStreamRequest { id: id as u64, request: Some(request) }.encode_to_vec();
        let asked = tonic::Request::new(tokio_stream::iter([asked]));
        let mut answers = client.streaming(asked, path, Raw).await.unwrap().into_inner();
        let answer = answers.message().await.unwrap().unwrap();
        let message = v1::MatchStreamResponse::decode(&*answer).unwrap();
        assert_eq!((message.encode_to_vec(), message.id), (answer, id as u64), "{message:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_worker_that_begins_while_it_is_asked_for_is_answered_for_one_moment() {
    const ROUNDS: u64 = 2_000;
    let server = Server::start().await;
    let mut client = server.client().await;
    for round in 0..ROUNDS {
        // A model of its own each time, so that its grid is new; another worker has another one.
        let (model, asked) = (format!("m{round}"), prompt(80));
        server.worker(&model, "other", 0).store(grid(4), &prompt(8), Seed::PLAIN);
        let mut beginning = server.worker(&model, "w", 0);
        let request = v1::MatchRequest { workers: vec!["w".to_owned()], ..by_tokens(&model, &asked) };
        let storing = tokio::task::spawn_blocking(move || beginning.store(grid(16), &asked, Seed::PLAIN));
        loop {
            let answer = client.r#match(request.clone()).await.unwrap().into_inner();
            let [found] = &answer.matches[..] else { panic!("whoever is asked for by name comes back, once") };
            let blocks = if found.last_seq == Some(0) { 5 } else { 0 };
            assert_eq!((found.matched_blocks, found.held_blocks), (blocks, blocks.into()), "round {round}");
            if blocks > 0 {
                break;
            }
        }
        storing.await.unwrap();
    }
    server.stop().await;
}
