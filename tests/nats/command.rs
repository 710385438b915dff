//! `kvtap serve` as an operator runs it: a feed over NATS and a fleet, from one configuration.

use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
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

    let client = server.client().await;
    let deadline = Instant::now() + PATIENCE;
    let mut sequence = 0;
    loop {
        // Until it is subscribed nobody hears; then its first message is not number 0.
        publish(&client, envelope(7, sequence, &[stored(1, 0, 0..2)])).await;
        sequence += 1;
        let told = workers(&address).await;
        let rank = |worker: &str| {
            let workers = told["workers"].as_array().cloned().unwrap_or_default();
            workers.into_iter().find(|rank| rank["worker"] == worker).unwrap_or_default()
        };
        let (dynamo, fleet) = (rank("dyn/1"), rank("pod-a"));
        if dynamo["blocks"] == 2 && fleet["blocks"] == 5 && fleet["state"] == "live" {
            break;
        }
        assert!(Instant::now() < deadline, "{told}");
        sleep(std::time::Duration::from_millis(50)).await;
    }
}
