//! What `/metrics` exports is what `docs/metrics.md` lists.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kvtap::admin::{Fleet, Metrics, RequestMetrics, Rpc};
use kvtap::feed::drops::Dropped;
use kvtap::feed::status::{Board, Entry};
use kvtap::index::{Index, Limits};
use kvtap::worker::{Identity, RankId};

/// A metric's type and labels, by the name that a query uses.
type Metric = BTreeMap<String, (String, BTreeSet<String>)>;

fn fleet() -> Arc<Fleet> {
    let board = Board::default();
    let identity = Identity {
        worker: "pod-a".into(),
        address: "".into(),
        aliases: Arc::default(),
        model: "a \"quoted\"\nmodel".into(),
        rank: 3,
    };
    let rank = RankId { slot: 0, generation: 0 };
    let entry = Entry::new(rank, identity, "tcp://127.0.0.1:5557".to_owned(), None, "vllm");
    entry.status().last_sequence = Some(7);
    entry.status().last_heard = Some(std::time::Instant::now());
    board.insert(Arc::new(entry));
    Arc::new(Fleet::new(Index::new(Limits::default()), Arc::new(board)))
}

fn exported(text: &str) -> Metric {
    let mut metrics = Metric::new();
    let mut current = (String::new(), String::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            let name = match kind {
                "counter" => format!("{name}_total"),
                "info" => format!("{name}_info"),
                _ => name.to_owned(),
            };
            metrics.insert(name.clone(), (kind.to_owned(), BTreeSet::new()));
            current = (name, kind.to_owned());
        } else if !line.starts_with('#')
            && let Some((name, rest)) = line.split_once('{')
        {
            assert!(name.starts_with(&current.0), "{name} stands under {current:?}");
            let (labels, _) = rest.rsplit_once('}').unwrap();
            let keys = labels.split("\",").filter_map(|label| label.split_once('=')).map(|(key, _)| key.to_owned());
            metrics.get_mut(&current.0).unwrap().1.extend(keys.filter(|key| key != "le"));
        }
    }
    metrics
}

fn documented(page: &str) -> Metric {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `kvtap_"));
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let name = format!("kvtap_{}", cells[0].trim_matches('`'));
        let labels = cells[2].split(", ").filter(|label| !label.is_empty()).map(|label| label.trim_matches('`'));
        assert!(cells.len() > 4 && !cells[3].is_empty() && !cells[4].is_empty(), "{name} has no unit or no meaning");
        (name, (cells[1].to_owned(), labels.map(str::to_owned).collect()))
    })
    .collect()
}

#[test]
fn every_exported_metric_is_documented_with_its_type_and_labels_and_no_other() {
    let text = Metrics::new(&fleet(), &RequestMetrics::new()).encode().unwrap();
    let page = include_str!("../docs/metrics.md");
    let (mut exported, mut documented) = (exported(&text), documented(page));
    // The block size is exported once it is known; nothing in this fleet knows it.
    for metrics in [&mut exported, &mut documented] {
        metrics.get_mut("kvtap_feed_block_size_tokens").unwrap().1.clear();
    }
    assert_eq!(exported, documented);
}

#[test]
fn every_counter_is_there_at_zero_before_anything_happened() {
    let text = Metrics::new(&fleet(), &RequestMetrics::new()).encode().unwrap();
    for line in [
        r#"kvtap_grpc_requests_total{rpc="Match",code="ok"} 0"#,
        r#"kvtap_grpc_requests_total{rpc="MatchStream",code="not_found"} 0"#,
        r#"kvtap_grpc_request_duration_seconds_count{rpc="Match"} 0"#,
        r#"kvtap_match_asked_blocks_total 0"#,
    ] {
        assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
    }
    for series in [
        r#"kvtap_feed_replays_total{worker="pod-a",rank="3",model="a \"quoted\"\nmodel",outcome="timeout"} 0"#,
        r#"kvtap_feed_resets_total{worker="pod-a",rank="3",model="a \"quoted\"\nmodel",cause="digest_differs"} 0"#,
        r#"kvtap_feed_dropped_total{worker="pod-a",rank="3",model="a \"quoted\"\nmodel",reason="bad_hash"} 0"#,
    ] {
        assert!(text.lines().any(|have| have == series), "{series} is not in\n{text}");
    }
}

#[test]
fn a_request_is_counted_under_its_call_and_its_outcome() {
    let requests = RequestMetrics::new();
    let metrics = Metrics::new(&fleet(), &requests);
    requests.record(Rpc::Match, "ok", std::time::Duration::from_micros(30));
    requests.record(Rpc::Match, "not_found", std::time::Duration::from_micros(1));
    requests.record_blocks(12, 9);
    let text = metrics.encode().unwrap();
    for line in [
        r#"kvtap_grpc_requests_total{rpc="Match",code="ok"} 1"#,
        r#"kvtap_grpc_requests_total{rpc="Match",code="not_found"} 1"#,
        r#"kvtap_grpc_request_duration_seconds_bucket{le="0.00005",rpc="Match"} 2"#,
        r#"kvtap_match_asked_blocks_total 12"#,
        r#"kvtap_match_best_blocks_total 9"#,
    ] {
        assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
    }
}

#[test]
fn every_reason_to_drop_is_exported_at_0_from_the_beginning_and_documented() {
    let text = Metrics::new(&fleet(), &RequestMetrics::new()).encode().unwrap();
    let page = include_str!("../docs/metrics.md");
    for word in Dropped::WORDS {
        let line = text.lines().find(|line| line.contains(&format!("reason=\"{word}\"")));
        assert!(line.is_some_and(|line| line.ends_with(" 0")), "{word}: {line:?}");
        assert!(page.contains(&format!("| `{word}` |")), "{word} is not documented");
    }
}
