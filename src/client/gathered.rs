//! What many servers know, as one answer.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::connect::ClientError;
use crate::proto::v1;

/// One answer from many servers.
#[derive(Clone, PartialEq, Debug)]
pub struct Gathered {
    /// The answer, in the order and under the bounds that a single server's has.
    pub response: v1::MatchResponse,
    /// How many servers answered.
    pub answered: usize,
    /// Of whom nothing came, by server; the answer is partial where there is anybody.
    pub missing: Vec<Missing>,
}

/// A server of which nothing came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    /// Its address, as it was given.
    pub server: String,
    /// Why.
    pub error: ClientError,
}

// === impl Gathered ===

impl Gathered {
    /// Puts answers to `request` together.
    pub(super) fn of(request: &v1::MatchRequest, responses: Vec<v1::MatchResponse>, mut missing: Vec<Missing>) -> Self {
        let answered = responses.len();
        let mut grids: BTreeMap<(u32, u32), v1::GridUse> = BTreeMap::new();
        let mut ranks: BTreeMap<(String, u32), v1::RankMatch> = BTreeMap::new();
        for response in responses {
            for used in response.grids {
                let grid = used.grid.unwrap_or_default();
                grids.insert((grid.block_size, grid.lookahead), used);
            }
            for found in response.matches {
                let who = found.worker_rank.clone().unwrap_or_default();
                match ranks.entry((who.worker, who.rank)) {
                    std::collections::btree_map::Entry::Vacant(place) => {
                        place.insert(found);
                    }
                    std::collections::btree_map::Entry::Occupied(mut known) if trust(&found) > trust(known.get()) => {
                        known.insert(found);
                    }
                    std::collections::btree_map::Entry::Occupied(_) => {}
                }
            }
        }
        drop_strangers(&mut ranks);
        let mut matches: Vec<_> = ranks.into_values().collect();
        matches.sort_by_cached_key(order);
        if request.top_k > 0 {
            matches.truncate(request.top_k as usize);
        }
        missing.sort_by(|a, b| a.server.cmp(&b.server));
        let response =
            v1::MatchResponse { model: request.model.clone(), grids: grids.into_values().collect(), matches };
        Self { response, answered, missing }
    }
}

/// A name that one server knows is nobody to another: what the one that knows says counts.
fn drop_strangers(ranks: &mut BTreeMap<(String, u32), v1::RankMatch>) {
    let known: Vec<v1::WorkerRank> = ranks
        .values()
        .filter(|found| found.state() != v1::FeedState::Unspecified)
        .filter_map(|found| found.worker_rank.clone())
        .collect();
    ranks.retain(|(name, _), found| {
        found.state() != v1::FeedState::Unspecified
            || !known.iter().any(|who| who.worker == *name || who.address == *name || who.aliases.contains(name))
    });
}

/// Of two pictures of one rank, which is the better: the surer, then the later.
fn trust(found: &v1::RankMatch) -> (u8, Option<u64>) {
    let sure = match found.state() {
        v1::FeedState::Live => 6,
        v1::FeedState::Degraded => 5,
        v1::FeedState::Incomplete => 4,
        v1::FeedState::Replaying => 3,
        v1::FeedState::Connecting => 2,
        v1::FeedState::Gone => 1,
        v1::FeedState::Unspecified => 0,
    };
    // Epochs are counted by each server for itself; sequence numbers are the engine's.
    (sure, found.last_seq)
}

/// Deepest first, then most on device, then by name: a server's own order.
fn order(found: &v1::RankMatch) -> (Reverse<u64>, Reverse<u64>, String, u32) {
    // A brief answer names no grid; what lies on the device is matched.
    let size = found.matched_tokens.checked_div(found.matched_blocks.into()).unwrap_or(0);
    let who = found.worker_rank.clone().unwrap_or_default();
    (Reverse(found.matched_tokens), Reverse(u64::from(found.device_blocks) * size), who.worker, who.rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(worker: &str, tokens: u64, state: v1::FeedState, seq: u64) -> v1::RankMatch {
        v1::RankMatch {
            worker_rank: Some(v1::WorkerRank {
                worker: worker.to_owned(),
                aliases: vec![format!("http://{worker}")],
                ..Default::default()
            }),
            matched_tokens: tokens,
            state: state.into(),
            last_seq: Some(seq),
            ..Default::default()
        }
    }

    fn gathered(request: &v1::MatchRequest, answers: Vec<Vec<v1::RankMatch>>) -> Vec<(String, u64)> {
        let responses =
            answers.into_iter().map(|matches| v1::MatchResponse { matches, ..Default::default() }).collect();
        let matches = Gathered::of(request, responses, Vec::new()).response.matches;
        matches.into_iter().map(|held| (held.worker_rank.unwrap().worker, held.matched_tokens)).collect()
    }

    #[test]
    fn answers_are_put_together_deepest_first_and_cut_like_one() {
        use v1::FeedState::Live;
        let answers = vec![
            vec![found("a", 16, Live, 1), found("b", 0, Live, 1)],
            vec![found("c", 48, Live, 1)],
            vec![found("d", 16, Live, 1)],
        ];
        let all = gathered(&v1::MatchRequest::default(), answers.clone());
        assert_eq!(all, [("c".into(), 48), ("a".into(), 16), ("d".into(), 16), ("b".into(), 0)]);
        let two = gathered(&v1::MatchRequest { top_k: 2, ..Default::default() }, answers);
        assert_eq!(two, [("c".into(), 48), ("a".into(), 16)]);
    }

    #[test]
    fn brief_answers_are_put_in_the_same_order() {
        let on_device = |worker, blocks, device| v1::RankMatch {
            matched_blocks: blocks,
            device_blocks: device,
            ..found(worker, 96, v1::FeedState::Live, 1)
        };
        // The same tokens on blocks of 16, of 32 and of 16, of which 32, 64 and 48 lie on the device.
        let answers = vec![vec![on_device("a", 6, 2), on_device("b", 3, 2)], vec![on_device("c", 6, 3)]];
        let order = gathered(&v1::MatchRequest { brief: true, ..Default::default() }, answers);
        assert_eq!(order, [("b".into(), 96), ("c".into(), 96), ("a".into(), 96)]);
    }

    #[test]
    fn of_two_pictures_of_one_rank_the_surer_and_then_the_later_counts() {
        use v1::FeedState::{Incomplete, Live};
        let answers = vec![
            vec![found("a", 96, Incomplete, 9), found("b", 16, Live, 3)],
            vec![found("a", 32, Live, 7), found("b", 32, Live, 4)],
        ];
        assert_eq!(gathered(&v1::MatchRequest::default(), answers), [("a".into(), 32), ("b".into(), 32)]);
    }

    #[test]
    fn a_name_that_one_server_knows_is_not_nobody() {
        use v1::FeedState::{Live, Unspecified};
        let answers = vec![
            vec![found("a", 16, Live, 1), found("x", 0, Unspecified, 0)],
            vec![found("a", 0, Unspecified, 0), found("http://a", 0, Unspecified, 0), found("x", 0, Unspecified, 0)],
        ];
        assert_eq!(gathered(&v1::MatchRequest::default(), answers), [("a".into(), 16), ("x".into(), 0)]);
    }
}
