//! What one look at a server found, and what has changed since the look before.

use std::collections::{BTreeMap, VecDeque};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::admin::report::{RankReport, millis};

/// One look at a server.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Look {
    /// When, in milliseconds since the Unix epoch.
    pub(super) unix_ms: u64,
    pub(super) version: String,
    pub(super) uptime_ms: u64,
    /// Feeds that are live.
    pub(super) live: usize,
    /// By attention: what is not live first, then by name.
    pub(super) workers: Vec<Seen>,
}

/// One feed, with how busy it was since the look before.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Seen {
    #[serde(flatten)]
    pub(super) report: RankReport,
    /// Events applied a second; absent at the first look, and after a restart of the server.
    pub(super) events_per_second: Option<f64>,
}

/// What several looks have shown.
#[derive(Debug, Default)]
pub(super) struct Watched {
    pub(super) last: Option<Look>,
    /// Changes of state that were noticed, the newest first.
    pub(super) happenings: VecDeque<String>,
}

/// How many happenings are kept.
const HAPPENINGS: usize = 50;

/// States in the order in which a person wants to hear of them.
const BY_ATTENTION: [&str; 6] = ["gone", "incomplete", "degraded", "connecting", "replaying", "live"];

type Key = (String, String, u32);

// === impl Watched ===

impl Watched {
    /// Takes in what a server said, and compares it with what it said before.
    pub(super) fn take(&mut self, reports: Vec<RankReport>, version: String, uptime_ms: u64) -> &Look {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis);
        let before = self.last.take();
        // A server that has been up for less than before is another one: its counts began anew.
        let same_server = before.as_ref().filter(|before| before.uptime_ms < uptime_ms);
        let elapsed = same_server.map_or(0, |before| uptime_ms - before.uptime_ms);
        let known: BTreeMap<Key, &RankReport> =
            before.iter().flat_map(|before| &before.workers).map(|seen| (key(&seen.report), &seen.report)).collect();

        let mut happenings = Vec::new();
        let mut workers: Vec<Seen> = reports
            .into_iter()
            .map(|report| {
                let was = known.get(&key(&report));
                match was {
                    Some(was) if was.state != report.state => {
                        happenings.push(format!("{}: {} → {}: {}", who(&report), was.state, report.state, report.why));
                    }
                    Some(was) if was.epoch != report.epoch => {
                        happenings.push(format!("{}: epoch {} → {}", who(&report), was.epoch, report.epoch));
                    }
                    None if before.is_some() => happenings.push(format!("{}: new, {}", who(&report), report.state)),
                    _ => {}
                }
                let events = was.and_then(|was| report.events.checked_sub(was.events)).filter(|_| elapsed > 0);
                let events_per_second = events.map(|events| events as f64 * 1000.0 / elapsed as f64);
                Seen { report, events_per_second }
            })
            .collect();
        let present: std::collections::BTreeSet<Key> = workers.iter().map(|seen| key(&seen.report)).collect();
        for (key, report) in known {
            if !present.contains(&key) {
                happenings.push(format!("{}: withdrawn", who(report)));
            }
        }
        for happening in happenings {
            self.happenings.push_front(happening);
        }
        self.happenings.truncate(HAPPENINGS);

        let attention = |state: &str| BY_ATTENTION.iter().position(|word| *word == state);
        workers.sort_by(|Seen { report: a, .. }, Seen { report: b, .. }| {
            (attention(&a.state), &a.worker, a.rank).cmp(&(attention(&b.state), &b.worker, b.rank))
        });
        let live = workers.iter().filter(|seen| seen.report.state == "live").count();
        self.last.insert(Look { unix_ms: now, version, uptime_ms, live, workers })
    }
}

fn key(report: &RankReport) -> Key {
    (report.worker.clone(), report.model.clone(), report.rank)
}

/// What a feed is called in a sentence.
pub(super) fn who(report: &RankReport) -> String {
    format!("{} rank {}", report.worker, report.rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(worker: &str, state: &str, events: u64) -> RankReport {
        RankReport { worker: worker.to_owned(), state: state.to_owned(), events, epoch: 1, ..RankReport::default() }
    }

    #[test]
    fn rates_are_those_since_the_look_before_by_the_server_s_own_clock() {
        let mut watched = Watched::default();
        let look = watched.take(vec![report("a", "live", 100)], "1".to_owned(), 10_000);
        assert_eq!(look.workers[0].events_per_second, None);
        let look = watched.take(vec![report("a", "live", 150)], "1".to_owned(), 10_500);
        assert_eq!(look.workers[0].events_per_second, Some(100.0));
        // A restarted server counts anew.
        let look = watched.take(vec![report("a", "live", 900)], "1".to_owned(), 300);
        assert_eq!(look.workers[0].events_per_second, None);
    }

    #[test]
    fn what_wants_attention_comes_first() {
        let mut watched = Watched::default();
        let reports = vec![report("c", "live", 0), report("b", "live", 0), report("z", "incomplete", 0)];
        let look = watched.take(reports, "1".to_owned(), 1);
        let names: Vec<_> = look.workers.iter().map(|seen| seen.report.worker.as_str()).collect();
        assert_eq!((names, look.live), (vec!["z", "b", "c"], 2));
    }

    #[test]
    fn changes_between_two_looks_are_told() {
        let mut watched = Watched::default();
        watched.take(vec![report("a", "live", 0), report("b", "live", 0), report("c", "live", 0)], "1".to_owned(), 1);
        assert!(watched.happenings.is_empty());
        let restarted = RankReport { epoch: 2, ..report("b", "live", 0) };
        watched.take(vec![report("a", "gone", 0), restarted, report("d", "connecting", 0)], "1".to_owned(), 2);
        assert_eq!(
            watched.happenings.make_contiguous(),
            ["c rank 0: withdrawn", "d rank 0: new, connecting", "b rank 0: epoch 1 → 2", "a rank 0: live → gone: "]
        );
    }
}
