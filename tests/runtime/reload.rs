//! The configuration file changes under a running `kvtap serve`.

use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::engine::{Engine, assert_untouched, report, workers_are};
use crate::tap_support::eventually;
use crate::tap_support::kvtap::{Kvtap, on_free_ports};

/// Mounts a ConfigMap as the kubelet does: `kvtap.yaml` leads to `..data`, that to a folder of this version.
fn mount(folder: &Path, version: &str, content: &str) {
    let versioned = folder.join(format!("..{version}"));
    std::fs::create_dir(&versioned).unwrap();
    std::fs::write(versioned.join("kvtap.yaml"), content).unwrap();
    let before = std::fs::read_link(folder.join("..data")).ok();
    symlink(format!("..{version}"), folder.join("..data_tmp")).unwrap();
    std::fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    match before {
        Some(before) => std::fs::remove_dir_all(folder.join(before)).unwrap(),
        None => symlink("..data/kvtap.yaml", folder.join("kvtap.yaml")).unwrap(),
    }
}

fn feeds(entries: &[String]) -> String {
    if entries.is_empty() { String::new() } else { format!("feeds:\n{}", entries.concat()) }
}

/// Puts other settings into the file in place.
fn rewrite(kvtap: &Kvtap, settings: &str) {
    std::fs::write(kvtap.folder.path().join("kvtap.yaml"), on_free_ports(settings)).unwrap();
}

/// `/status`' word on the configuration, once it is `wanted`.
async fn config_is(kvtap: &Kvtap, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    eventually(what, async || kvtap.status().await["config"].clone(), wanted).await
}

async fn reloads(kvtap: &Kvtap, outcome: &str) -> f64 {
    kvtap.metric(&format!("kvtap_config_reloads_total{{outcome=\"{outcome}\"}}")).await
}

#[tokio::test]
async fn a_swapped_config_map_adds_changes_and_withdraws_feeds_and_leaves_the_rest_alone() {
    let (mut stays, goes, mut comes) = (Engine::start().await, Engine::start().await, Engine::start().await);
    let folder = tempfile::tempdir().unwrap();
    mount(folder.path(), "1", "");
    let settings = feeds(&[stays.feed("stays", ""), goes.feed("goes", "")]);
    let kvtap = Kvtap::start_in(folder, &settings).await;
    stays.publish(&kvtap, "stays").await;
    workers_are(&kvtap, &["goes", "stays"]).await;

    let settings = feeds(&[comes.feed("comes", ""), stays.feed("stays", "")]);
    mount(kvtap.folder.path(), "2", &on_free_ports(&settings));
    workers_are(&kvtap, &["comes", "stays"]).await;
    comes.publish(&kvtap, "comes").await;
    assert_untouched(&kvtap, "stays").await;

    let settings = feeds(&[comes.feed("comes", ", block_size: 4"), stays.feed("stays", "")]);
    mount(kvtap.folder.path(), "3", &on_free_ports(&settings));
    let begun_anew = |report: &Value| report["messages"] == 0;
    eventually("begun anew", async || report(&kvtap, "comes").await, begun_anew).await;
    assert_untouched(&kvtap, "stays").await;
    config_is(&kvtap, "applied", |config| config["ok"] == true).await;
    assert_eq!(reloads(&kvtap, "applied").await, 2.0);
    assert_eq!(kvtap.metric("kvtap_roster_changes_total{change=\"changed\"}").await, 1.0);
    assert_eq!(kvtap.metric("kvtap_roster_changes_total{change=\"withdrawn\"}").await, 1.0);
}

#[tokio::test]
async fn a_file_rewritten_in_place_and_one_renamed_over_it_are_noticed() {
    let engine = Engine::start().await;
    let kvtap = Kvtap::start(&feeds(&[engine.feed("a", "")])).await;
    rewrite(&kvtap, &feeds(&[engine.feed("b", "")]));
    workers_are(&kvtap, &["b"]).await;
    // As editors do.
    let file = kvtap.folder.path().join("kvtap.yaml");
    let other = kvtap.folder.path().join(".kvtap.yaml.swp");
    std::fs::write(&other, on_free_ports(&feeds(&[engine.feed("c", "")]))).unwrap();
    std::fs::rename(&other, &file).unwrap();
    workers_are(&kvtap, &["c"]).await;
}

#[tokio::test]
async fn a_faulty_file_leaves_the_old_in_force_and_says_so_until_it_is_mended() {
    let mut engine = Engine::start().await;
    let settings = feeds(&[engine.feed("a", "")]);
    let kvtap = Kvtap::start(&settings).await;
    engine.publish(&kvtap, "a").await;
    assert_eq!(kvtap.metric("kvtap_config_last_read_ok").await, 1.0);
    assert_eq!(reloads(&kvtap, "refused").await, 0.0);

    rewrite(&kvtap, "feeds:\n  - { worker: b, model: m, endpoint: nowhere, ranks: none }\n");
    let config = config_is(&kvtap, "refused", |config| config["ok"] == false).await;
    let faults: Vec<&str> = config["faults"].as_array().unwrap().iter().map(|fault| fault.as_str().unwrap()).collect();
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults[0].contains("feeds[0].endpoint: ") && faults[1].contains("feeds[0].ranks: "), "{faults:?}");
    assert_eq!(kvtap.metric("kvtap_config_last_read_ok").await, 0.0);
    assert_eq!(reloads(&kvtap, "refused").await, 1.0);
    let log = kvtap.log().concat();
    assert!(log.contains("the one before stays in force") && log.contains("feeds[0].endpoint: "), "{log}");
    workers_are(&kvtap, &["a"]).await;
    assert_untouched(&kvtap, "a").await;

    // The file is gone for a moment, as while somebody replaces it in two steps.
    let file = kvtap.folder.path().join("kvtap.yaml");
    std::fs::remove_file(&file).unwrap();
    let missing = |config: &Value| config["faults"].to_string().contains("cannot be opened");
    config_is(&kvtap, "missing", missing).await;
    assert_untouched(&kvtap, "a").await;

    rewrite(&kvtap, &settings);
    config_is(&kvtap, "mended", |config| config["ok"] == true).await;
    assert_eq!(kvtap.metric("kvtap_config_last_read_ok").await, 1.0);
    assert_eq!(reloads(&kvtap, "unchanged").await, 1.0);
    assert_untouched(&kvtap, "a").await;
}

#[tokio::test]
async fn keys_that_need_a_restart_are_named_in_one_line_and_the_rest_is_applied() {
    let engine = Engine::start().await;
    let kvtap = Kvtap::start(&feeds(&[engine.feed("a", "")])).await;
    rewrite(
        &kvtap,
        &format!("grpc: {{ listen: [\"127.0.0.1:1\"], reflection: false }}\n{}", feeds(&[engine.feed("b", "")])),
    );
    workers_are(&kvtap, &["b"]).await;
    let named = |config: &Value| config["needs_restart"] == json!(["grpc.listen", "grpc.reflection"]);
    let config = config_is(&kvtap, "named", named).await;
    assert_eq!(config["ok"], true);
    assert_eq!(kvtap.metric("kvtap_config_restart_needed_keys").await, 2.0);
    let log = kvtap.log();
    let lines: Vec<_> = log.iter().filter(|line| line.contains("grpc.listen, grpc.reflection")).collect();
    assert_eq!(lines.len(), 1, "{log:?}");

    rewrite(&kvtap, &feeds(&[engine.feed("b", "")]));
    config_is(&kvtap, "taken back", |config| config["needs_restart"] == json!([])).await;
}

#[tokio::test]
async fn the_level_of_the_log_changes_while_it_runs() {
    let engine = Engine::start().await;
    let settings =
        |level: &str, worker: &str| format!("log: {{ level: {level} }}\n{}", feeds(&[engine.feed(worker, "")]));
    let kvtap = Kvtap::start(&settings("error", "a")).await;
    let begins = |worker: &str| kvtap.log().iter().any(|line| line.contains("begins.") && line.contains(worker));
    assert!(!begins("worker=a"), "{:?}", kvtap.log());
    rewrite(&kvtap, &settings("info", "b"));
    workers_are(&kvtap, &["b"]).await;
    eventually("told", async || begins("worker=b"), |told| *told).await;
}

#[tokio::test]
async fn a_lower_limit_makes_a_rank_forget_its_oldest_blocks_when_it_stores() {
    let mut engine = Engine::start().await;
    let settings = feeds(&[engine.feed("a", "")]);
    let kvtap = Kvtap::start(&settings).await;
    engine.publish(&kvtap, "a").await;
    rewrite(&kvtap, &format!("limits: {{ blocks_per_rank: 2 }}\n{settings}"));
    eventually("applied", async || reloads(&kvtap, "applied").await, |applied| *applied == 1.0).await;
    engine.publish_one_more().await;
    let bounded = |report: &Value| report["blocks"] == 2 && report["evicted_blocks"] == 2;
    eventually("bounded", async || report(&kvtap, "a").await, bounded).await;
}

#[tokio::test]
async fn a_hangup_has_the_file_read_at_once_and_does_not_end_the_process() {
    let engine = Engine::start().await;
    let kvtap = Kvtap::start(&feeds(&[engine.feed("a", "")])).await;
    kvtap.signal("HUP").await;
    eventually("read again", async || reloads(&kvtap, "unchanged").await, |count| *count == 1.0).await;
    workers_are(&kvtap, &["a"]).await;
}

#[tokio::test]
async fn a_file_without_feeds_withdraws_them_all_and_they_come_back_with_the_next() {
    let engine = Engine::start().await;
    let folder: TempDir = tempfile::tempdir().unwrap();
    mount(folder.path(), "1", "");
    let settings = feeds(&[engine.feed("a", ""), engine.feed("b", ", topic: x")]);
    let kvtap = Kvtap::start_in(folder, &settings).await;
    mount(kvtap.folder.path(), "2", &on_free_ports(""));
    workers_are(&kvtap, &[]).await;
    mount(kvtap.folder.path(), "3", &on_free_ports(&settings));
    workers_are(&kvtap, &["a", "b"]).await;
}
