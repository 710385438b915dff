//! Engines found in Kubernetes by a running `kvtap serve`: the API server is one of the test's, over real HTTP; the
//! engines are on libzmq.

use serde_json::{Value, json};

use crate::api::{Api, Command};
use crate::engine::{Engine, assert_untouched, report, workers_are};
use crate::tap_support::eventually;
use crate::tap_support::kvtap::{Kvtap, on_free_ports};

/// The settings of a discovery at `api`; `more` further ones.
fn settings(api: &Api, folder: &std::path::Path, more: &str) -> String {
    let kubeconfig = api.kubeconfig(folder);
    let kubeconfig = kubeconfig.display();
    format!(
        "discovery: {{ selector: kvtap=engine, kubeconfig: \"{kubeconfig}\", engine: vllm, http_port: 8000{more} }}\n"
    )
}

async fn start(api: &Api, more: &str) -> Kvtap {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(api, folder.path(), &format!(", model: m{more}"));
    Kvtap::start_in(folder, &settings).await
}

/// A pod that is Ready, at a loopback address.
fn pod(name: &str, uid: &str, address: &str, port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "ns", "uid": uid,
            "labels": { "kvtap": "engine" },
            "annotations": { "kvtap/port": port.to_string(), "somebody/else": "x" },
        },
        "spec": { "containers": [{ "name": "engine" }] },
        "status": {
            "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    })
}

fn changed(mut pod: Value, pointer: &str, value: Value) -> Value {
    *pod.pointer_mut(pointer).expect(pointer) = value;
    pod
}

fn annotated(mut pod: Value, key: &str, value: &str) -> Value {
    pod["metadata"]["annotations"][key] = json!(value);
    pod
}

async fn synced(kvtap: &Kvtap, wanted: bool) -> Value {
    let synced = |report: &Value| report["synced"] == wanted;
    eventually("synced", async || kvtap.status().await["discovery"].clone(), synced).await
}

async fn failures(kvtap: &Kvtap, reason: &str) -> f64 {
    kvtap.metric(&format!("kvtap_discovery_failures_total{{reason=\"{reason}\"}}")).await
}

/// A pod with an engine that has published three blocks, and the kvtap that has found it.
async fn one_engine(more: &str) -> (Api, Engine, Kvtap) {
    let api = Api::start().await;
    let mut engine = Engine::start_at("127.0.0.2").await;
    api.put("pods", pod("pod-a", "uid-a", "127.0.0.2", engine.port()));
    let kvtap = start(&api, more).await;
    workers_are(&kvtap, &["pod-a"]).await;
    engine.publish(&kvtap, "pod-a").await;
    synced(&kvtap, true).await;
    (api, engine, kvtap)
}

#[tokio::test]
async fn pods_that_are_selected_are_followed_under_their_names_and_withdrawn_when_they_are_deleted() {
    let (api, engine, kvtap) = one_engine("").await;
    let report = report(&kvtap, "pod-a").await;
    assert_eq!(report["address"], "127.0.0.2:8000");
    assert_eq!(report["aliases"], json!(["ns/pod-a"]));
    let entry = kvtap.status().await["roster"][0].clone();
    assert_eq!((&entry["source"], &entry["origin"]), (&json!("discovery"), &json!("pod ns/pod-a")));
    assert_eq!(entry["instance"], "uid-a");

    api.put("pods", pod("pod-b", "uid-b", "127.0.0.3", 5557));
    api.put("pods", changed(pod("stranger", "uid-s", "127.0.0.4", 5557), "/metadata/labels/kvtap", json!("none")));
    workers_are(&kvtap, &["pod-a", "pod-b"]).await;
    // A label that no longer matches is as good as a deletion.
    api.put("pods", changed(pod("pod-b", "uid-b", "127.0.0.3", 5557), "/metadata/labels/kvtap", json!("none")));
    workers_are(&kvtap, &["pod-a"]).await;
    assert_untouched(&kvtap, "pod-a").await;
    // The engine still runs when its pod is deleted: it is withdrawn all the same.
    api.delete("pods", "pod-a");
    workers_are(&kvtap, &[]).await;
    drop(engine);
}

#[tokio::test]
async fn a_pod_that_is_told_to_end_or_has_ended_is_withdrawn_and_one_that_is_not_ready_is_followed() {
    let (api, engine, kvtap) = one_engine("").await;
    let a = pod("pod-a", "uid-a", "127.0.0.2", engine.port());
    api.put("pods", changed(a.clone(), "/status/conditions/0/status", json!("False")));
    api.put("pods", pod("pod-b", "uid-b", "127.0.0.3", 5557));
    workers_are(&kvtap, &["pod-a", "pod-b"]).await;
    assert_untouched(&kvtap, "pod-a").await;
    api.put("pods", changed(pod("pod-b", "uid-b", "127.0.0.3", 5557), "/status/phase", json!("Failed")));
    workers_are(&kvtap, &["pod-a"]).await;
    let mut ending = a;
    ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    api.put("pods", ending);
    workers_are(&kvtap, &[]).await;
}

#[tokio::test]
async fn a_pod_without_an_address_waits_for_one_and_so_does_one_that_must_be_ready_first() {
    let api = Api::start().await;
    let ready = pod("pod-a", "uid-a", "127.0.0.2", 5557);
    let mut pending = ready.clone();
    pending["status"] = json!({ "phase": "Pending" });
    api.put("pods", pending);
    let kvtap = start(&api, ", not_ready: withdraw").await;
    synced(&kvtap, true).await;
    let waiting = async || kvtap.metric("kvtap_discovery_engines{outcome=\"waiting\"}").await;
    assert_eq!(waiting().await, 1.0);
    let loading = changed(ready.clone(), "/status/conditions/0/status", json!("False"));
    api.put("pods", loading.clone());
    api.put("pods", pod("pod-b", "uid-b", "127.0.0.3", 5557));
    workers_are(&kvtap, &["pod-b"]).await;
    assert_eq!(waiting().await, 1.0);
    api.put("pods", ready);
    workers_are(&kvtap, &["pod-a", "pod-b"]).await;
    api.put("pods", loading);
    workers_are(&kvtap, &["pod-b"]).await;
}

#[tokio::test]
async fn another_pod_of_the_same_name_and_address_is_another_engine() {
    let (api, engine, kvtap) = one_engine("").await;
    // Nobody saw the old one go.
    api.refuse(Some(503));
    api.tell(Command::Cut);
    synced(&kvtap, false).await;
    api.delete("pods", "pod-a");
    api.put("pods", pod("pod-a", "uid-of-the-next", "127.0.0.2", engine.port()));
    api.refuse(None);
    let begun_anew = |report: &Value| report["blocks"] == 0 && report["messages"] == 0;
    eventually("begun anew", async || report(&kvtap, "pod-a").await, begun_anew).await;
    assert_eq!(kvtap.status().await["roster"][0]["instance"], "uid-of-the-next");
}

#[tokio::test]
async fn annotations_say_what_the_configuration_does_not_and_what_cannot_be_used_costs_that_pod() {
    let api = Api::start().await;
    let full = pod("pod-a", "uid-a", "127.0.0.2", 6000);
    let annotations = [
        ("kvtap/model", "other"),
        ("kvtap/engine", "sglang"),
        ("kvtap/ranks", "2"),
        ("kvtap/first-rank", "2"),
        ("kvtap/replay-port", "6100"),
        ("kvtap/http-port", "9000"),
        ("kvtap/block-size", "16"),
    ];
    let full = annotations.iter().fold(full, |pod, (key, value)| annotated(pod, key, value));
    api.put("pods", full);
    let polled = annotated(pod("pod-t", "uid-t", "127.0.0.3", 6001), "kvtap/engine", "trtllm");
    api.put("pods", annotated(polled, "kvtap/events-path", "/kv_cache_events"));
    let wrong = annotated(pod("pod-w", "uid-w", "127.0.0.4", 6002), "kvtap/ranks", "many");
    api.put("pods", wrong);
    api.put("pods", annotated(pod("pod-u", "uid-u", "127.0.0.5", 6003), "kvtap/rank", "1"));
    api.put("pods", annotated(pod("pod-v", "uid-v", "127.0.0.6", 6004), "kvtap/port", "0"));
    api.put("pods", annotated(pod("pod-x", "uid-x", "127.0.0.7\nx", 6005), "kvtap/model", "${HOME}"));
    let kvtap = start(&api, "").await;
    workers_are(&kvtap, &["pod-a", "pod-t"]).await;
    let workers = kvtap.workers().await;
    let of_a: Vec<_> = workers.iter().filter(|report| report["worker"] == "pod-a").collect();
    let endpoints: Vec<_> = of_a.iter().map(|report| (&report["rank"], &report["endpoint"])).collect();
    let expected = [(&json!(2), &json!("tcp://127.0.0.2:6002")), (&json!(3), &json!("tcp://127.0.0.2:6003"))];
    assert_eq!(endpoints, expected);
    assert_eq!(of_a[0]["replay_endpoint"], "tcp://127.0.0.2:6102");
    assert_eq!((&of_a[0]["model"], &of_a[0]["engine"]), (&json!("other"), &json!("sglang")));
    assert_eq!(of_a[0]["address"], "127.0.0.2:9000");
    let of_t = report(&kvtap, "pod-t").await;
    assert_eq!(of_t["endpoint"], "http://127.0.0.3:6001/kv_cache_events");

    let refused = synced(&kvtap, true).await["refused"].clone();
    let refused: Vec<&str> = refused.as_array().unwrap().iter().map(|what| what.as_str().unwrap()).collect();
    let expected = [
        "pod ns/pod-u: kvtap/rank: no such annotation",
        "pod ns/pod-v: kvtap/port: expected a port, 1 to 65535, not `0`",
        "pod ns/pod-w: ranks: expected 1 to 1024 ranks, not `many`",
        "pod ns/pod-x: its address is no IP address",
    ];
    assert_eq!(refused, expected);
    assert_eq!(kvtap.metric("kvtap_discovery_engines{outcome=\"refused\"}").await, 4.0);
    api.put("pods", pod("pod-w", "uid-w", "127.0.0.4", 6002));
    workers_are(&kvtap, &["pod-a", "pod-t", "pod-w"]).await;
}

#[tokio::test]
async fn a_watch_that_breaks_off_in_a_line_or_ends_is_taken_up_where_it_was_without_a_new_list() {
    let (api, _engine, kvtap) = one_engine("").await;
    let (lists, _) = api.granted();
    for (command, name) in [(Command::Cut, "pod-b"), (Command::Close, "pod-c")] {
        let (_, watches) = api.granted();
        api.tell(command);
        api.put("pods", pod(name, name, "127.0.0.3", 5557));
        eventually("watched again", async || api.granted().1, |now| *now > watches).await;
        eventually("found", async || report(&kvtap, name).await, |report| !report.is_null()).await;
    }
    assert_eq!(api.granted().0, lists);
    assert_untouched(&kvtap, "pod-a").await;
}

/// Does something while kvtap, whose watch has ended, waits for the answer to the next.
async fn away_meanwhile(api: &Api, what: impl FnOnce()) {
    api.hold_watches(true);
    api.tell(Command::Close);
    eventually("away", async || api.held(), |held| *held == 1).await;
    what();
    api.hold_watches(false);
}

#[tokio::test]
async fn a_forgotten_version_has_the_list_made_anew_and_what_went_meanwhile_is_withdrawn() {
    let (api, _engine, kvtap) = one_engine("").await;
    api.put("pods", pod("pod-b", "uid-b", "127.0.0.3", 5557));
    workers_are(&kvtap, &["pod-a", "pod-b"]).await;
    let (lists, _) = api.granted();
    away_meanwhile(&api, || {
        api.delete("pods", "pod-b");
        api.compact();
    })
    .await;
    workers_are(&kvtap, &["pod-a"]).await;
    eventually("listed anew", async || api.granted().0, |now| *now == lists + 1).await;
    // Said on the stream that time, this time by the status of the watch: servers do both.
    away_meanwhile(&api, || {
        api.fail_watches(&[410]);
        api.put("pods", pod("pod-b", "uid-b", "127.0.0.3", 5557));
    })
    .await;
    workers_are(&kvtap, &["pod-a", "pod-b"]).await;
    eventually("listed anew", async || api.granted().0, |now| *now == lists + 2).await;
    // And in the middle of a watch.
    synced(&kvtap, true).await;
    api.tell(Command::Gone);
    eventually("listed anew", async || api.granted().0, |now| *now == lists + 3).await;
    assert_eq!(failures(&kvtap, "expired").await, 3.0);
    synced(&kvtap, true).await;
    assert_untouched(&kvtap, "pod-a").await;
}

#[tokio::test]
async fn a_bookmark_keeps_the_version_young() {
    let (api, _engine, kvtap) = one_engine("").await;
    let (lists, watches) = api.granted();
    // What happens is none of this watch's business, and its version grows old.
    for number in 0..3 {
        api.put("endpointslices", json!({ "metadata": { "name": format!("s{number}"), "labels": {} } }));
    }
    api.tell(Command::Bookmark);
    api.tell(Command::Close);
    api.compact();
    eventually("watched again", async || api.granted().1, |now| *now > watches).await;
    api.put("pods", pod("pod-b", "uid-b", "127.0.0.3", 5557));
    workers_are(&kvtap, &["pod-a", "pod-b"]).await;
    assert_eq!(api.granted().0, lists);
    assert_eq!(failures(&kvtap, "expired").await, 0.0);
}

#[tokio::test]
async fn while_the_server_refuses_or_is_away_what_is_known_stays_and_the_reason_is_told() {
    let (api, _engine, kvtap) = one_engine("").await;
    api.refuse(Some(403));
    api.tell(Command::Cut);
    let report = synced(&kvtap, false).await;
    assert!(report["why"].as_str().unwrap().contains("403"), "{report}");
    assert_untouched(&kvtap, "pod-a").await;
    assert!(failures(&kvtap, "forbidden").await >= 1.0);
    assert_eq!(kvtap.metric("kvtap_discovery_synced").await, 0.0);
    api.refuse(Some(500));
    eventually("another reason", async || failures(&kvtap, "list_failed").await, |count| *count >= 1.0).await;
    api.refuse(None);
    synced(&kvtap, true).await;
    assert_untouched(&kvtap, "pod-a").await;

    drop(api);
    synced(&kvtap, false).await;
    assert_untouched(&kvtap, "pod-a").await;
}

#[tokio::test]
async fn a_server_that_fails_at_the_start_is_asked_again_and_kvtap_answers_meanwhile() {
    let api = Api::start().await;
    for name in ["pod-a", "pod-b", "pod-c", "pod-d", "pod-e"] {
        api.put("pods", pod(name, name, "127.0.0.2", 5557));
    }
    // The second page of the first list, and the second list altogether.
    api.fail_lists(&[0, 500, 403]);
    let kvtap = start(&api, "").await;
    workers_are(&kvtap, &["pod-a", "pod-b", "pod-c", "pod-d", "pod-e"]).await;
    assert_eq!(failures(&kvtap, "list_failed").await, 1.0);
    assert_eq!(failures(&kvtap, "forbidden").await, 1.0);
    assert_eq!(kvtap.metric("kvtap_discovery_lists_total").await, 1.0);
}

#[tokio::test]
async fn what_the_server_never_told_is_found_by_the_next_list() {
    let (api, _engine, kvtap) = one_engine(", resync: 1s").await;
    api.put("pods", pod("pod-b", "uid-b", "127.0.0.3", 5557));
    workers_are(&kvtap, &["pod-a", "pod-b"]).await;
    api.delete_in_silence("pods", "pod-b");
    workers_are(&kvtap, &["pod-a"]).await;
    assert_untouched(&kvtap, "pod-a").await;
}

#[tokio::test]
async fn endpoint_slices_tell_of_the_pods_behind_a_service_and_of_nothing_without_one() {
    let api = Api::start().await;
    let target = |name: &str| json!({ "kind": "Pod", "namespace": "ns", "name": name, "uid": format!("uid-{name}") });
    let slice = |name: &str, family: &str, endpoints: Value| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
            "metadata": { "name": name, "namespace": "ns", "labels": { "kvtap": "engine" }, "annotations": { "kvtap/port": "6000" } },
            "endpoints": endpoints, "ports": [],
        })
    };
    let v4 = |b_conditions: Value| {
        slice(
            "vllm-1",
            "IPv4",
            json!([
                { "addresses": ["127.0.0.2"], "conditions": { "ready": true }, "targetRef": target("pod-a") },
                { "addresses": ["127.0.0.3"], "conditions": b_conditions, "targetRef": target("pod-b") },
                { "addresses": ["127.0.0.9"], "conditions": { "ready": true } },
            ]),
        )
    };
    api.put("endpointslices", v4(json!({ "ready": false })));
    let v6 = json!([{ "addresses": ["::1"], "conditions": {}, "targetRef": target("pod-a") },
                    { "addresses": ["::1"], "conditions": {}, "targetRef": target("pod-c") }]);
    api.put("endpointslices", slice("vllm-2", "IPv6", v6));
    let kvtap = start(&api, ", resource: endpointslices").await;
    workers_are(&kvtap, &["pod-a", "pod-b", "pod-c"]).await;
    let endpoint = async |worker: &str| report(&kvtap, worker).await["endpoint"].clone();
    assert_eq!(endpoint("pod-a").await, "tcp://127.0.0.2:6000");
    assert_eq!(endpoint("pod-c").await, "tcp://[::1]:6000");
    let refused = synced(&kvtap, true).await["refused"].clone();
    assert_eq!(refused, json!(["endpointslice ns/vllm-1: an endpoint belongs to no pod"]));

    api.put("endpointslices", v4(json!({ "ready": false, "serving": true, "terminating": true })));
    workers_are(&kvtap, &["pod-a", "pod-c"]).await;
    api.delete("endpointslices", "vllm-1");
    let at_v6 = |endpoint: &Value| endpoint == "tcp://[::1]:6000";
    eventually("its other address", async || endpoint("pod-a").await, at_v6).await;
}

#[tokio::test]
async fn the_file_comes_before_discovery_and_what_engines_are_can_change_while_it_runs() {
    let api = Api::start().await;
    api.put("pods", pod("pod-a", "uid-a", "127.0.0.2", 5557));
    api.put("pods", pod("pod-b", "uid-b", "127.0.0.3", 5557));
    let folder = tempfile::tempdir().unwrap();
    let of_file = "feeds:\n  - { worker: pod-a, model: m, endpoint: \"tcp://127.0.0.9:1\" }\n";
    let before = settings(&api, folder.path(), ", model: m") + of_file;
    let kvtap = Kvtap::start_in(folder, &before).await;
    workers_are(&kvtap, &["pod-a", "pod-b"]).await;
    assert_eq!(report(&kvtap, "pod-a").await["endpoint"], "tcp://127.0.0.9:1");
    assert_eq!(kvtap.metric("kvtap_roster_entries{source=\"discovery\",place=\"set_aside\"}").await, 1.0);

    let after = settings(&api, kvtap.folder.path(), ", model: other, replay_port: 5558");
    std::fs::write(kvtap.folder.path().join("kvtap.yaml"), on_free_ports(&after)).unwrap();
    let discovered = |report: &Value| {
        report["model"] == "other"
            && report["endpoint"] == "tcp://127.0.0.2:5557"
            && !report["replay_endpoint"].is_null()
    };
    eventually("discovered", async || report(&kvtap, "pod-a").await, discovered).await;
}

#[tokio::test]
async fn without_credentials_it_does_not_start_and_says_which_key_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kvtap.yaml");
    for (setting, told) in
        [("kubeconfig: /nowhere/kubeconfig", "discovery.kubeconfig: "), ("port: 5557", "discovery: ")]
    {
        let settings = format!("discovery: {{ selector: \"a=b\", {setting} }}\n");
        std::fs::write(&file, on_free_ports(&settings)).unwrap();
        let output = crate::tap_support::kvtap::run(&["serve", "--config", file.to_str().unwrap()]).await;
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.lines().any(|line| line.starts_with("kvtap: ") && line.contains(told)), "{said}");
    }
}
