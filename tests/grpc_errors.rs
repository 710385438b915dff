//! Requests that cannot be answered are refused with the field's name and what is known.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod serve_support;

use kvtap::block::Grid;
use kvtap::hash::Seed;
use kvtap::proto::v1;
use kvtap::proto::v1::match_request::Prompt;
use kvtap::serve::Options;
use serve_support::{Server, by_tokens, request};
use tonic::Code;

const TOKENS: [u32; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

async fn server() -> Server {
    let server = Server::start().await;
    server.worker("llama", "a", 0).store(Grid::new(4).unwrap(), &TOKENS, Seed::PLAIN);
    server.worker("llama", "b", 0).store(Grid::new(8).unwrap(), &TOKENS, Seed::PLAIN);
    let _idle = server.worker("mistral", "c", 0);
    server
}

#[tokio::test]
async fn each_bad_field_is_named_with_what_is_known() {
    let server = server().await;
    let good = || by_tokens("llama", &TOKENS);
    let hashes = || request("llama", Prompt::ContentHashes(v1::HashList { hashes: vec![1] }));
    let raw = |form: fn(bytes::Bytes) -> Prompt, len| request("llama", form(vec![0; len].into()));
    let names = |n| vec![String::new(); n];
    let cases = [
        (
            v1::MatchRequest { model: String::new(), ..good() },
            Code::InvalidArgument,
            "model: required; known: llama, mistral",
        ),
        (by_tokens("gpt", &TOKENS), Code::NotFound, "model: no worker serves \"gpt\"; known: llama, mistral"),
        (v1::MatchRequest { prompt: None, ..good() }, Code::InvalidArgument, "prompt: required, in one of tokens_le"),
        (raw(Prompt::TokensLe, 7), Code::InvalidArgument, "tokens_le: 7 bytes, not a multiple of 4"),
        (raw(Prompt::ContentHashesLe, 12), Code::InvalidArgument, "content_hashes_le: 12 bytes, not a multiple of 8"),
        (raw(Prompt::PrefixHashesLe, 9), Code::InvalidArgument, "prefix_hashes_le: 9 bytes, not a multiple of 8"),
        (
            v1::MatchRequest { block_size: 32, ..good() },
            Code::NotFound,
            "block_size: no worker of the model has 32; known: 4, 8",
        ),
        (
            v1::MatchRequest { block_size: 1 << 17, ..good() },
            Code::InvalidArgument,
            "block_size: 131072 is not between 1 and 65536",
        ),
        (hashes(), Code::InvalidArgument, "block_size: required with content hashes"),
        (
            v1::MatchRequest { extra_keys: vec![vec![1].into()], ..good() },
            Code::InvalidArgument,
            "block_size: required with extra_keys",
        ),
        (
            v1::MatchRequest { lora_name: "l".into(), block_size: 4, ..hashes() },
            Code::InvalidArgument,
            "lora_name: only with tokens",
        ),
        (
            v1::MatchRequest { cache_salt: "s".into(), block_size: 4, ..hashes() },
            Code::InvalidArgument,
            "cache_salt: only with tokens",
        ),
        (v1::MatchRequest { workers: names(4097), ..good() }, Code::InvalidArgument, "workers: more than 4096 entries"),
        (v1::MatchRequest { ranks: vec![0; 4097], ..good() }, Code::InvalidArgument, "ranks: more than 4096 entries"),
    ];
    let mut client = server.client().await;
    for (request, code, message) in cases {
        let status = client.r#match(request).await.expect_err(message);
        assert_eq!(status.code(), code, "{status:?}");
        assert!(status.message().starts_with(message), "{:?} does not begin with {message:?}", status.message());
    }
    server.stop().await;
}

#[tokio::test]
async fn known_models_are_shown_up_to_a_bound() {
    let server = Server::start().await;
    let workers: Vec<_> = (0..30).map(|i| server.worker(&format!("{i:02}{}", "x".repeat(500)), "w", 0)).collect();
    let status = server.client().await.r#match(by_tokens(&"y".repeat(10_000), &[])).await.unwrap_err();
    assert!(status.message().ends_with(" and 20 more"), "{}", status.message());
    assert!(status.message().len() < 2_000, "{}", status.message().len());
    drop(workers);
    server.stop().await;
}

#[tokio::test]
async fn nothing_of_a_prompt_comes_back_in_a_refusal() {
    let server = server().await;
    let request = v1::MatchRequest { cache_salt: "sesame".into(), ..by_tokens("gpt", &[4_242_424]) };
    let status = server.client().await.r#match(request).await.unwrap_err();
    assert!(!status.message().contains("sesame") && !status.message().contains("4242424"), "{}", status.message());
    server.stop().await;
}

#[tokio::test]
async fn an_over_long_query_is_refused_with_the_limit_named() {
    let server = server().await;
    let hundred_million = Prompt::TokensLe(vec![0; 400_000_000].into());
    let mut client = server.client().await;

    let status = client.r#match(request("llama", hundred_million)).await.unwrap_err();

    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    assert_eq!(
        status.message(),
        "prompt: the message is larger than the limit of 16777216 bytes (4194304 tokens as tokens_le)"
    );
    // The connection has survived it.
    client.r#match(by_tokens("llama", &TOKENS)).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn an_over_long_query_ends_a_stream_in_the_same_words() {
    let options = Options { max_message_bytes: 1024, ..Options::default() };
    let server = Server::start_with(options, Vec::new()).await;
    let _worker = server.worker("m", "w", 0);
    let requests = [8, 512]
        .map(|tokens| v1::MatchStreamRequest { id: tokens, request: Some(by_tokens("m", &vec![0; tokens as usize])) });
    let mut client = server.client().await;
    let mut answers = client.match_stream(tokio_stream::iter(requests)).await.unwrap().into_inner();
    assert_eq!(answers.message().await.unwrap().unwrap().id, 8);
    let status = answers.message().await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(
        status.message(),
        "prompt: the message is larger than the limit of 1024 bytes (256 tokens as tokens_le)"
    );
    server.stop().await;
}
