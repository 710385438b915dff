//! The examples, run as somebody who reads them runs them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

mod serve_support;
mod tap_support;

use kvtap::block::Grid;
use kvtap::hash::Seed;
use serde_json::{Value, json};
use serve_support::Server;

use tap_support::peer::Peer;

/// Two workers, of which `b` holds the first 16 tokens of [`prompt`].
async fn fleet() -> Server {
    let server = Server::start().await;
    let _idle = server.named_worker("m", "a", 0, "10.0.0.1:80", &[]);
    let mut b = server.named_worker("m", "b", 0, "10.0.0.2:80", &[]);
    b.store(Grid::new(4).unwrap(), &prompt()[..16], Seed::PLAIN);
    server
}

fn prompt() -> Vec<u32> {
    (0..20).collect()
}

async fn example(name: &str, arguments: &[&str]) -> Peer {
    Peer::start(&format!("../../examples/{name}"), arguments).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_router_goes_where_the_prompt_is_until_that_is_too_busy() {
    let server = fleet().await;
    let address = server.address.to_string();
    let arguments = ["--server", &address, "--model", "m", "--worker", "a", "--worker", "b", "--deadline", "30"];
    let mut router = example("router.py", &arguments).await;
    let query = json!({"tokens": prompt()});
    let first = router.ask_json(&query).await;
    assert_eq!(first["worker"], "b", "{first}");
    assert_eq!((&first["matched_tokens"], &first["address"]), (&json!(16), &json!("10.0.0.2:80")));
    // Now b has 20 tokens before it and would compute 4; a has none and would compute 20.
    assert_eq!(router.ask_json(&query).await["worker"], "a");
    router.tell(&json!({"done": "b", "tokens": 20}).to_string()).await;
    assert_eq!(router.ask_json(&query).await["worker"], "b");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_router_goes_by_load_where_kvtap_does_not_answer() {
    let arguments = ["--server", "127.0.0.1:1", "--model", "m", "--worker", "a", "--worker", "b"];
    let mut router = example("router.py", &arguments).await;
    let query = json!({"tokens": prompt()});
    let picked = [router.ask_json(&query).await, router.ask_json(&query).await];
    assert_eq!(picked.map(|picked| picked["worker"].clone()), [json!("a"), json!("b")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_endpoint_picker_names_the_endpoint_that_holds_the_prompt() {
    let server = fleet().await;
    let mut picker =
        example("endpoint_picker.py", &["--listen", "127.0.0.1:0", "--server", &server.address.to_string()]).await;
    let listening = picker.line().await;
    let mut gateway = Peer::start("ext_proc_gateway.py", &["--picker", listening["listening"].as_str().unwrap()]).await;
    let ask = |prompt: Value, candidates: &[&str]| json!({"body": {"model": "m", "prompt": prompt}, "candidates": candidates});
    let both = ["10.0.0.1:80", "10.0.0.2:80"];
    // A first answer may take longer than the picker waits: the connection is made for it.
    tap_support::eventually(
        "the holder",
        async || gateway.ask_json(&ask(json!(prompt()), &both)).await,
        |answer| answer["endpoint"] == "10.0.0.2:80" && answer["metadata"] == "10.0.0.2:80",
    )
    .await;
    // Only what is offered is picked, whatever else holds the prompt.
    assert_eq!(gateway.ask_json(&ask(json!(prompt()), &both[..1])).await["endpoint"], both[0]);
    assert_eq!(gateway.ask_json(&ask(json!("text"), &both)).await["endpoint"], both[0]);
    assert_eq!(gateway.ask_json(&ask(json!(prompt()), &[])).await["status"], 503);
    server.stop().await;
}
