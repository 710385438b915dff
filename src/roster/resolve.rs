//! Who gets what, where sources disagree. Pure.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::wanted::{Key, Plan, Source, Wanted};

/// What is to run, and what is not.
#[derive(Debug, Default)]
pub(super) struct Resolution {
    pub run: BTreeMap<Key, Chosen>,
    /// For each source, in the order of its [`Wanted`]s: why one is set aside; `None`: it is not.
    pub set_aside: BTreeMap<Source, Vec<Option<String>>>,
}

/// One plan that is to run.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub source: Source,
    pub instance: Arc<str>,
    pub plan: Plan,
}

/// Gives each worker, each rank and each socket to the first that wants it, in the order of the sources. An entry is
/// set aside as a whole.
pub(super) fn resolve(wanted: &BTreeMap<Source, Vec<Wanted>>) -> Resolution {
    let mut resolution = Resolution::default();
    let mut workers: HashMap<Arc<str>, Source> = HashMap::new();
    let mut ranks: HashMap<(Arc<str>, u32), String> = HashMap::new();
    let mut claims: HashMap<String, String> = HashMap::new();
    for (&source, entries) in wanted {
        let verdicts = resolution.set_aside.entry(source).or_default();
        for entry in entries {
            let why = against(source, entry, &workers, &ranks, &claims);
            if why.is_none() {
                workers.insert(Arc::clone(&entry.worker), source);
                ranks.extend(entry.ranks().into_iter().map(|rank| (rank_of(entry, rank), entry.origin.clone())));
                let claimed = entry.plans.iter().filter_map(Plan::claim);
                claims.extend(claimed.map(|claim| (claim, format!("{} ({})", entry.worker, entry.origin))));
                for plan in &entry.plans {
                    let chosen = Chosen { source, instance: Arc::clone(&entry.instance), plan: plan.clone() };
                    resolution.run.insert(plan.key(), chosen);
                }
            }
            verdicts.push(why);
        }
    }
    resolution
}

/// What speaks against an entry, in one sentence.
fn against(
    source: Source,
    entry: &Wanted,
    workers: &HashMap<Arc<str>, Source>,
    ranks: &HashMap<(Arc<str>, u32), String>,
    claims: &HashMap<String, String>,
) -> Option<String> {
    if let Some(owner) = workers.get(&entry.worker).filter(|owner| **owner != source) {
        return Some(format!("{owner} has a worker of that name"));
    }
    let taken = entry.ranks().into_iter().find_map(|rank| Some((rank, ranks.get(&rank_of(entry, rank))?)));
    if let Some((rank, first)) = taken {
        return Some(format!("its rank {rank} is that of {first}"));
    }
    let taken = entry.plans.iter().filter_map(Plan::claim).find_map(|claim| claims.get_key_value(&claim));
    taken.map(|(claim, first)| format!("{claim} is {first}'s already"))
}

fn rank_of(entry: &Wanted, rank: u32) -> (Arc<str>, u32) {
    (Arc::clone(&entry.worker), rank)
}

#[cfg(test)]
mod tests {
    use super::super::wanted::tests_support::{bound, wanted};
    use super::*;

    fn by_source(entries: Vec<(Source, Vec<Wanted>)>) -> Resolution {
        resolve(&entries.into_iter().collect())
    }

    fn running(resolution: &Resolution) -> Vec<(&str, u32, Source)> {
        resolution.run.iter().map(|(key, chosen)| (&*key.worker, key.rank, chosen.source)).collect()
    }

    #[test]
    fn sources_that_agree_on_whose_worker_is_whose_all_get_what_they_want() {
        let resolution = by_source(vec![
            (Source::Discovery, vec![wanted("c", 5900, 2)]),
            (Source::Config, vec![wanted("a", 5700, 1)]),
            (Source::Admin, vec![wanted("b", 5800, 1)]),
        ]);
        let expected = [
            ("a", 0, Source::Config),
            ("b", 0, Source::Admin),
            ("c", 0, Source::Discovery),
            ("c", 1, Source::Discovery),
        ];
        assert_eq!(running(&resolution), expected);
        assert!(resolution.set_aside.values().flatten().all(Option::is_none));
    }

    #[test]
    fn the_file_comes_before_admin_calls_and_those_before_discovery() {
        for (sources, winner) in [
            (vec![Source::Config, Source::Admin, Source::Discovery], Source::Config),
            (vec![Source::Admin, Source::Discovery], Source::Admin),
            (vec![Source::Discovery], Source::Discovery),
        ] {
            let entries = sources.iter().map(|source| (*source, vec![wanted("a", 5700, 1)])).collect();
            let resolution = by_source(entries);
            assert_eq!(running(&resolution), [("a", 0, winner)]);
            for source in sources {
                let why = resolution.set_aside[&source][0].as_deref();
                assert_eq!(why.is_none(), source == winner, "{source:?}: {why:?}");
            }
        }
    }

    #[test]
    fn a_worker_is_one_sources_whole_also_where_ranks_differ() {
        let mut upper = wanted("a", 5700, 1);
        if let Plan::Rank(options) = &mut upper.plans[0] {
            options.identity.rank = 1;
        }
        let resolution =
            by_source(vec![(Source::Config, vec![wanted("a", 5700, 1)]), (Source::Admin, vec![upper.clone()])]);
        assert_eq!(running(&resolution), [("a", 0, Source::Config)]);
        // Within one source a worker's ranks may stand in several entries.
        let resolution = by_source(vec![(Source::Config, vec![wanted("a", 5700, 1), upper])]);
        assert_eq!(running(&resolution), [("a", 0, Source::Config), ("a", 1, Source::Config)]);
    }

    #[test]
    fn of_two_entries_of_one_source_for_one_rank_the_first_counts() {
        let resolution = by_source(vec![(Source::Discovery, vec![wanted("a", 5700, 2), wanted("a", 5800, 1)])]);
        assert_eq!(resolution.run.len(), 2);
        assert_eq!(resolution.set_aside[&Source::Discovery][1].as_deref(), Some("its rank 0 is that of test"));
    }

    #[test]
    fn a_socket_is_bound_for_one_feed_only() {
        let resolution =
            by_source(vec![(Source::Config, vec![bound("a", 5700)]), (Source::Admin, vec![bound("b", 5700)])]);
        assert_eq!(running(&resolution), [("a", 0, Source::Config)]);
        let why = resolution.set_aside[&Source::Admin][0].as_deref();
        assert_eq!(why, Some("tcp://localhost:5700 is a (test)'s already"));
    }
}
