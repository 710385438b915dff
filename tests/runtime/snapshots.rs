//! What becomes of a feed's snapshot when the feed begins anew while the process runs on.

use serde_json::{Value, json};

use crate::engine::report;
use crate::tap_support::eventually;
use crate::tap_support::kvtap::{Kvtap, json as json_of, on_free_ports};
use crate::warm_support::Stand;

#[tokio::test]
async fn a_changed_feed_begins_with_its_snapshot_and_a_cleared_one_without_it() {
    let (stand, folder) = (Stand::new(), tempfile::tempdir().unwrap());
    let settings = |more: &str| {
        format!(
            "snapshot: {{ directory: {}, interval: 1h }}\nadmin_rpc: {{ listen: [\"127.0.0.1:0\"] }}\n\
             feeds:\n  - {{ worker: a, model: m, engine: vllm, endpoint: \"{}\", replay: \"{}\"{more} }}\n",
            folder.path().display(),
            stand.ipc("live"),
            stand.ipc("replay"),
        )
    };
    let mut engine = stand.engine().await;
    let kvtap = Kvtap::start(&settings("")).await;
    let at = kvtap.said("admin rpc listening on ").await;
    for n in 0..5 {
        engine.store(n).await;
    }
    let last = engine.last();
    let live = |report: &Value| report["state"] == "live" && report["last_seq"] == last && report["blocks"] == 5;
    let before = eventually("live", async || report(&kvtap, "a").await, live).await;

    let changed = settings(", disconnect_grace: 1h");
    std::fs::write(kvtap.folder.path().join("kvtap.yaml"), on_free_ports(&changed)).unwrap();
    let restored = |report: &Value| live(report) && report["snapshots"]["restored"] == 1;
    let after = eventually("restored", async || report(&kvtap, "a").await, restored).await;
    assert_eq!(after["epoch"], before["epoch"]);

    let cleared = json_of(&["admin", "--server", &at, "--json", "clear", "--worker", "a"]).await;
    assert_eq!(cleared["ranks"], json!([0]));
    let replayed = |report: &Value| live(report) && report["snapshots"]["restored"] != 1;
    let after = eventually("replayed", async || report(&kvtap, "a").await, replayed).await;
    assert!(after["epoch"].as_u64() > before["epoch"].as_u64(), "no epoch number is used twice: {after}");
}
