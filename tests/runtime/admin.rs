//! The Admin service of a running `kvtap serve`, asked by `kvtap admin` and by grpcio.

use serde_json::{Value, json};

use crate::engine::{Engine, assert_untouched, names, report, workers_are};
use crate::libzmq::free_port;
use crate::tap_support::eventually;
use crate::tap_support::kvtap::{Kvtap, json as json_of, on_free_ports, run};
use crate::tap_support::peer::Peer;

/// A server whose Admin service is at a free port, which is returned too.
async fn start(settings: &str) -> (Kvtap, String) {
    let kvtap = Kvtap::start(&format!("admin_rpc: {{ listen: [\"127.0.0.1:0\"] }}\n{settings}")).await;
    let at = kvtap.said("admin rpc listening on ").await;
    (kvtap, at)
}

/// `kvtap admin ... --json`.
async fn admin(at: &str, arguments: &[&str]) -> Value {
    json_of(&[&["admin", "--server", at, "--json"], arguments].concat()).await
}

async fn add(at: &str, worker: &str, endpoint: &str, more: &[&str]) -> Value {
    let arguments = ["add", "--worker", worker, "--model", "m", "--engine", "vllm", "--endpoint", endpoint];
    admin(at, &[&arguments, more].concat()).await
}

#[tokio::test]
async fn there_is_no_admin_service_unless_it_is_configured_and_never_on_the_query_sockets() {
    let kvtap = Kvtap::start("").await;
    let output = run(&["admin", "--server", &kvtap.grpc, "dump"]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(!kvtap.log().iter().any(|line| line.starts_with("admin rpc listening on ")), "{:?}", kvtap.log());

    let (kvtap, _) = start("").await;
    let output = run(&["admin", "--server", &kvtap.grpc, "dump"]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[tokio::test]
async fn on_an_address_that_other_hosts_reach_it_is_refused_at_the_start() {
    for address in ["0.0.0.0:9402", "[::]:9402", "10.1.2.3:9402"] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kvtap.yaml");
        std::fs::write(&file, on_free_ports(&format!("admin_rpc: {{ listen: [\"{address}\"] }}\n"))).unwrap();
        let output = run(&["serve", "--config", file.to_str().unwrap()]).await;
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains("admin_rpc.listen: ") && told.contains("is not local"), "{told}");
    }
}

#[tokio::test]
async fn feeds_are_added_changed_and_removed_and_each_call_can_be_repeated() {
    let mut engine = Engine::start().await;
    let (kvtap, at) = start("").await;
    let added = add(&at, "a", &engine.endpoint, &[]).await;
    assert_eq!((&added["outcome"], &added["entry"]["place"]), (&json!("added"), &json!("running")), "{added}");
    engine.publish(&kvtap, "a").await;
    assert_eq!(add(&at, "a", &engine.endpoint, &[]).await["outcome"], "unchanged");
    assert_untouched(&kvtap, "a").await;

    let more = ["--set", "disconnect_grace=5s", "--ranks", "2", "--first-rank", "4", "--name", "other"];
    let other = free_port().to_string();
    let changed = add(&at, "a", &other, &more).await;
    assert_eq!((&changed["outcome"], &changed["entry"]["ranks"]), (&json!("changed"), &json!([4, 5])), "{changed}");
    let ranks: Vec<Value> = kvtap.workers().await.iter().map(|report| report["rank"].clone()).collect();
    assert_eq!(ranks, [json!(4), json!(5)]);

    assert_eq!(admin(&at, &["remove", "--worker", "a"]).await, json!({ "removed": true, "remaining": [] }));
    assert_eq!(names(&kvtap).await, [""; 0], "withdrawn before the answer");
    assert_eq!(admin(&at, &["remove", "--worker", "a"]).await, json!({ "removed": false, "remaining": [] }));
}

#[tokio::test]
async fn the_file_keeps_its_workers_and_what_was_added_takes_the_place_of_what_it_drops() {
    let mut of_file = Engine::start().await;
    let of_call = free_port().to_string();
    let settings = "admin_rpc: { listen: [\"127.0.0.1:0\"] }\n";
    let with_feed = format!("{settings}feeds:\n{}", of_file.feed("a", ""));
    let kvtap = Kvtap::start(&with_feed).await;
    let at = kvtap.said("admin rpc listening on ").await;
    of_file.publish(&kvtap, "a").await;

    let output =
        run(&["admin", "--server", &at, "--json", "add", "--worker", "a", "--model", "m", "--endpoint", &of_call])
            .await;
    assert_eq!(output.status.code(), Some(1), "what was added does not run: {output:?}");
    let added: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(added["entry"]["place"], "set_aside");
    assert_eq!(added["entry"]["why"], "the configuration file has a worker of that name");
    assert_untouched(&kvtap, "a").await;
    assert_eq!(kvtap.metric("kvtap_roster_entries{source=\"admin\",place=\"set_aside\"}").await, 1.0);
    assert_eq!(kvtap.status().await["roster"][1]["place"], "set_aside");
    assert!(kvtap.log().iter().any(|line| line.contains("set aside")), "{:?}", kvtap.log());

    let dumped = admin(&at, &["dump"]).await;
    let entries: Vec<_> = dumped["entries"].as_array().unwrap().iter().map(|e| (&e["source"], &e["place"])).collect();
    assert_eq!(entries, [(&json!("config"), &json!("running")), (&json!("admin"), &json!("set_aside"))]);

    std::fs::write(kvtap.folder.path().join("kvtap.yaml"), on_free_ports(settings)).unwrap();
    let endpoint = |report: &Value| report["endpoint"] == json!(of_call);
    eventually("the added feed", async || report(&kvtap, "a").await, endpoint).await;
}

#[tokio::test]
async fn a_cleared_worker_has_forgotten_its_blocks_and_is_followed_anew() {
    let (mut cleared, mut other) = (Engine::start().await, Engine::start().await);
    let feeds = format!("feeds:\n{}{}", cleared.feed("cleared", ""), other.feed("other", ""));
    let (kvtap, at) = start(&feeds).await;
    cleared.publish(&kvtap, "cleared").await;
    other.publish(&kvtap, "other").await;
    let answer = admin(&at, &["clear", "--worker", "cleared"]).await;
    assert_eq!(answer, json!({ "worker": "cleared", "ranks": [0] }));
    let forgotten = |report: &Value| report["blocks"] == 0 && report["connected"] == true;
    eventually("followed anew", async || report(&kvtap, "cleared").await, forgotten).await;
    assert_untouched(&kvtap, "other").await;
    let output = run(&["admin", "--server", &at, "clear", "--worker", "nobody"]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "kvtap: worker: nobody wants such a worker\n");
}

#[tokio::test]
async fn another_languages_client_changes_feeds_and_is_told_which_field_is_wrong() {
    let (kvtap, at) = start("").await;
    let mut client = Peer::start("admin_rpc.py", &[&at]).await;
    client.line().await;
    let services = client.ask("services").await;
    let services = services["ok"].to_string();
    assert!(services.contains("kvtap.v1.AdminService") && !services.contains("QueryService"), "{services}");

    let endpoint = free_port().to_string();
    let put =
        json!({ "feed": { "worker": "a", "model": "m", "endpoint": endpoint, "tuning": { "queue_messages": "10" } } });
    assert_eq!(client.ask(&format!("PutFeed {put}")).await["ok"]["outcome"], "OUTCOME_ADDED");
    workers_are(&kvtap, &["a"]).await;
    let dumped = client.ask("Dump {}").await;
    assert_eq!(dumped["ok"]["entries"][0]["source"], "FEED_SOURCE_ADMIN", "{dumped}");

    for (feed, field) in [
        (json!({ "model": "m", "endpoint": endpoint }), "worker: is required"),
        (json!({ "worker": "w", "model": "m", "endpoint": "nowhere" }), "endpoint: "),
        (json!({ "worker": "w", "model": "m", "endpoint": endpoint, "ranks": 4096 }), "ranks: "),
        (json!({ "worker": "w", "model": "${HOME}/m", "endpoint": endpoint, "engine": "none" }), "engine: "),
        (
            json!({ "worker": "w", "model": "m", "endpoint": endpoint, "tuning": { "grace": "1s" } }),
            "grace: no such setting",
        ),
        (
            json!({ "worker": "w", "model": "m", "endpoint": endpoint, "tuning": { "worker": "v" } }),
            "tuning.worker: no such setting",
        ),
    ] {
        let answer = client.ask(&format!("PutFeed {}", json!({ "feed": feed }))).await;
        assert_eq!(answer["failed"], "INVALID_ARGUMENT", "{feed}: {answer}");
        assert!(answer["message"].as_str().unwrap().contains(field), "{feed}: {answer}");
    }
    let answer = client.ask("PutFeed {}").await;
    assert_eq!((&answer["failed"], &answer["message"]), (&json!("INVALID_ARGUMENT"), &json!("feed: is required")));
    let answer = client.ask("ClearWorker {\"worker\": \"a\", \"ranks\": [7]}").await;
    assert_eq!(answer["failed"], "NOT_FOUND", "{answer}");
    let answer = client.ask("RemoveFeed {}").await;
    assert_eq!(answer["message"], "worker: is required");
    workers_are(&kvtap, &["a"]).await;
    // What stands for a variable in the file stands for itself in a call.
    let put = json!({ "feed": { "worker": "a", "model": "${HOME}", "endpoint": endpoint } });
    assert_eq!(client.ask(&format!("PutFeed {put}")).await["ok"]["entry"]["model"], "${HOME}");
}

#[tokio::test]
async fn it_answers_on_a_unix_socket_and_ends_with_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    let socket = format!("unix://{}", path.display());
    let kvtap = Kvtap::start(&format!("admin_rpc: {{ listen: [\"{socket}\"] }}\n")).await;
    kvtap.said(&format!("admin rpc listening on {socket}")).await;
    assert_eq!(admin(&socket, &["dump"]).await, json!({ "entries": [] }));
    let output = run(&["admin", "--server", &socket, "dump"]).await;
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("WORKER  SOURCE  PLACE"), "the table's head");
    kvtap.signal("TERM").await;
    let (status, log) = kvtap.ended().await;
    assert_eq!(status.code(), Some(0), "{log:?}");
    assert!(!path.exists(), "the socket's file is removed");
}
