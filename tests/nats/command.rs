//! `kvtap serve` as an operator runs it: a feed over NATS and a fleet, from one configuration.

use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use crate::dynamo::publish;
use crate::fleet::{Member, options};
use crate::server::{PATIENCE, Server};
use crate::tap::{envelope, stored};

async fn workers(address: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_kvtap"))
        .args(["workers", "--server", address, "--json"])
        .output()
        .await
        .unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// `kvtap serve`, once it answers, and where.
async fn serve(config: &std::path::Path) -> (Child, String) {
    let mut kvtap = Command::new(env!("CARGO_BIN_EXE_kvtap"));
    // The tests' own variables are no settings.
    let ours = std::env::vars_os().map(|(name, _)| name).filter(|name| name.to_string_lossy().starts_with("KVTAP_"));
    ours.for_each(|name| {
        kvtap.env_remove(name);
    });
    let mut kvtap = kvtap
        .args(["serve", "--config", config.to_str().unwrap()])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(kvtap.stderr.take().unwrap()).lines();
    let address = loop {
        let line = lines.next_line().await.unwrap().expect("it serves");
        if let Some(address) = line.strip_prefix("grpc listening on ") {
            break address.to_owned();
        }
    };
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (kvtap, address)
}

/// What is told of a worker.
fn rank(told: &Value, worker: &str) -> Value {
    let workers = told["workers"].as_array().cloned().unwrap_or_default();
    workers.into_iter().find(|rank| rank["worker"] == worker).unwrap_or_default()
}

#[tokio::test]
async fn a_feed_over_nats_comes_changes_and_goes_with_the_configuration_and_others_stay_as_they_are() {
    let server = Server::start().await;
    let config = server.folder().join("kvtap.yaml");
    let write = |feeds: &[(&str, &str)]| {
        let feeds = feeds.iter().map(|(worker, subject)| {
            format!(
                "  - {{ worker: {worker}, model: m, engine: dynamo, endpoint: \"{}\", subject: \"{subject}\", block_size: 4 }}\n",
                server.url()
            )
        });
        let feeds: String = feeds.collect();
        let text =
            format!("grpc: {{ listen: [\"127.0.0.1:0\"] }}\nadmin: {{ listen: \"127.0.0.1:0\" }}\nfeeds:\n{feeds}");
        std::fs::write(&config, text).unwrap();
    };
    write(&[("one", "one.>"), ("two", "two.>")]);
    let (_kvtap, address) = serve(&config).await;
    let client = server.client().await;
    let says = async |subject: &str, publisher: u64, sequence: u64| {
        let blocks = sequence as u32..sequence as u32 + 1;
        client.publish(subject.to_owned(), envelope(publisher, sequence, &[stored(1, 0, blocks)])).await.unwrap();
        client.flush().await.unwrap();
    };
    let until = async |worker: &str, what: &str, is: &dyn Fn(&Value) -> bool| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let told = workers(&address).await;
            if is(&rank(&told, worker)) {
                return;
            }
            assert!(Instant::now() < deadline, "{worker} is never {what}: {told}");
            sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let live = |blocks: u64| move |rank: &Value| rank["state"] == "live" && rank["blocks"] == blocks;
    for worker in ["one", "two"] {
        until(worker, "subscribed", &|rank| rank["state"] == "live").await;
        says(&format!("{worker}.x"), 7, 0).await;
        until(&format!("{worker}/1"), "live", &live(1)).await;
    }

    write(&[("one", "one.>"), ("two", "other.>"), ("three", "three.>")]);
    until("three", "subscribed", &|rank| rank["state"] == "live").await;
    until("two/1", "withdrawn", &Value::is_null).await;
    until("two", "subscribed again", &|rank| rank["state"] == "live").await;
    says("other.x", 9, 0).await;
    until("two/1", "live on its new subject", &live(1)).await;
    // The one that was not touched has missed nothing.
    says("one.x", 7, 1).await;
    until("one/1", "live with both", &live(2)).await;

    write(&[("one", "one.>")]);
    until("three", "gone", &Value::is_null).await;
    until("two/1", "gone", &Value::is_null).await;
    says("one.x", 7, 2).await;
    until("one/1", "live with all", &live(3)).await;
}

#[tokio::test]
async fn a_server_follows_dynamo_and_a_fleet_as_its_configuration_says() {
    let server = Server::start().await;
    let owner = Member::join(options(&server.url()));
    let mut engine = owner.engine("pod-a", 0);
    engine.deepen(0, 5);

    let config = server.folder().join("kvtap.yaml");
    let text = format!(
        "grpc: {{ listen: [\"127.0.0.1:0\"] }}\nadmin: {{ listen: \"127.0.0.1:0\" }}\n\
         relay: {{ servers: \"{url}\", publish: false }}\n\
         feeds:\n  - {{ worker: dyn, model: m, engine: dynamo, endpoint: \"{url}\", subject: \"namespace.>\", block_size: 4 }}\n",
        url = server.url()
    );
    std::fs::write(&config, text).unwrap();
    let (_kvtap, address) = serve(&config).await;

    let client = server.client().await;
    let deadline = Instant::now() + PATIENCE;
    let mut sequence = 0;
    loop {
        // Until it is subscribed nobody hears; then its first message is not number 0.
        publish(&client, envelope(7, sequence, &[stored(1, 0, 0..2)])).await;
        sequence += 1;
        let told = workers(&address).await;
        let (dynamo, fleet) = (rank(&told, "dyn/1"), rank(&told, "pod-a"));
        if dynamo["blocks"] == 2 && fleet["blocks"] == 5 && fleet["state"] == "live" {
            break;
        }
        assert!(Instant::now() < deadline, "{told}");
        sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_simulated_fleet_lives_through_a_day_and_its_follower_ends_equal() {
    let server = Server::start().await;
    let output = Command::new(env!("CARGO_BIN_EXE_kvtap"))
        .args(["sim", "--json", "--nats", &server.url(), "--workers", "20", "--day", "3", "--rate", "2"])
        .args(["--restarts", "6", "--blocks", "512"])
        .output()
        .await
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((&last["workers"], &last["equal"]), (&20.into(), &20.into()), "{last}");
    assert!(last["messages"].as_u64().unwrap() > 0 && last["owner"]["published_bytes"].as_u64().unwrap() > 0, "{last}");
}
