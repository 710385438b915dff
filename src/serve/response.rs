//! Answers and reports, as messages; and reports back from messages, for the reading commands.

use std::collections::BTreeMap;

use super::matching::{Answer, RankAnswer, Who};
use crate::admin::report::{Queue, RankReport, TierBlocks, millis};
use crate::block::Grid;
use crate::feed::status::State;
use crate::proto::v1;

/// A whole answer; `brief`: without what a score does not need.
pub(super) fn match_response(model: &str, brief: bool, answer: Answer) -> v1::MatchResponse {
    let mut matches: Vec<_> = answer.ranks.into_iter().map(|rank| rank_match(model, rank)).collect();
    if brief {
        matches.iter_mut().for_each(shorten);
    }
    let grids = answer.grids.iter().map(|(grid, blocks)| grid_use(*grid, *blocks)).collect();
    v1::MatchResponse { model: model.to_owned(), grids, matches }
}

/// Leaves out what `MatchRequest.brief` says.
fn shorten(found: &mut v1::RankMatch) {
    if let Some(who) = &mut found.worker_rank {
        who.model.clear();
    }
    (found.tiers, found.leading, found.leading_within, found.grid) = (None, None, None, None);
    (found.held_blocks, found.asked_blocks) = (0, 0);
    if found.state() == v1::FeedState::Live {
        found.why.clear();
    }
}

/// What one rank holds.
pub(super) fn rank_match(model: &str, answer: RankAnswer) -> v1::RankMatch {
    let matched_tokens = answer.tokens(answer.held.blocks);
    let (state, why) = answer.standing();
    let (why, heard) = (why.to_owned(), answer.feed.as_ref().and_then(|feed| feed.last_heard));
    let held = answer.held;
    v1::RankMatch {
        worker_rank: Some(worker_rank(model, answer.who)),
        matched_blocks: held.blocks,
        matched_tokens,
        device_blocks: held.device,
        tiers: Some(tiers(TierBlocks::of(&held.tiers))),
        state: state.into(),
        why,
        epoch: held.stamp.epoch,
        last_seq: held.stamp.sequence,
        age_ms: heard.map(|heard| millis(heard.elapsed())),
        held_blocks: held.held,
        partial: held.partial,
        cut_by_unknown_group: held.cut_by_unknown_group,
        grid: answer.grid.map(grid),
        asked_blocks: answer.asked,
        leading: Some(tiers(TierBlocks::leading(&held.lead))),
        leading_within: Some(tiers(TierBlocks::within(&held.within, held.blocks))),
    }
}

fn worker_rank(model: &str, who: Who) -> v1::WorkerRank {
    match who {
        Who::Nobody(name, _) => nobody(model, name),
        Who::Rank(entry) => v1::WorkerRank::from(&entry.identity),
    }
}

/// A name that nobody answers to.
pub(super) fn nobody(model: &str, worker: String) -> v1::WorkerRank {
    v1::WorkerRank { worker, model: model.to_owned(), ..v1::WorkerRank::default() }
}

fn grid_use(of: Grid, blocks: u64) -> v1::GridUse {
    v1::GridUse { grid: Some(grid(of)), blocks }
}

const fn grid(grid: Grid) -> v1::Grid {
    v1::Grid { block_size: grid.size(), lookahead: grid.lookahead }
}

const fn tiers(blocks: TierBlocks) -> v1::TierBlocks {
    let TierBlocks { device, host, disk, external, other } = blocks;
    v1::TierBlocks { device, host, disk, external, other }
}

/// A state's word, the same as [`State::name`]; `unknown` for a name that nobody has, and for states of later
/// versions.
pub const fn state_name(state: v1::FeedState) -> &'static str {
    match state {
        v1::FeedState::Unspecified => "unknown",
        v1::FeedState::Connecting => State::Connecting.name(),
        v1::FeedState::Replaying => State::Replaying.name(),
        v1::FeedState::Live => State::Live.name(),
        v1::FeedState::Incomplete => State::Incomplete.name(),
        v1::FeedState::Degraded => State::Degraded.name(),
        v1::FeedState::Gone => State::Gone.name(),
    }
}

/// A report as a message.
pub(super) fn rank_report(report: RankReport) -> v1::RankReport {
    let states = (1..).map_while(|number| v1::FeedState::try_from(number).ok());
    let state = states.into_iter().find(|state| state_name(*state) == report.state).unwrap_or_default();
    v1::RankReport {
        worker_rank: Some(v1::WorkerRank {
            worker: report.worker,
            address: report.address,
            aliases: report.aliases,
            model: report.model,
            rank: report.rank,
        }),
        engine: report.engine,
        endpoint: report.endpoint,
        replay_endpoint: report.replay_endpoint.unwrap_or_default(),
        connected: report.connected,
        state: state.into(),
        why: report.why,
        since_unix_ms: report.since_unix_ms,
        epoch: report.epoch,
        last_seq: report.last_seq,
        age_ms: report.age_ms,
        grid: report.block_size.map(|block_size| v1::Grid { block_size, lookahead: report.lookahead }),
        groups: report.groups,
        blocks: report.blocks,
        tiers: Some(tiers(report.tiers)),
        window_blocks: report.window_blocks,
        extra_copies: report.extra_copies,
        memory_bytes: report.memory_bytes,
        evicted_blocks: report.evicted_blocks,
        orphans: report.orphans,
        messages: report.messages,
        received_bytes: report.received_bytes,
        events: report.events,
        gaps: report.gaps,
        missed: report.missed,
        duplicates: report.duplicates,
        replays: report.replay_outcomes,
        resets: report.resets,
        dropped: report.dropped,
        snapshots: report.snapshots,
        snapshots_refused: report.snapshots_refused,
        queue: Some(v1::Queue {
            messages: report.queue.messages,
            bytes: report.queue.bytes,
            limit_messages: report.queue.limit_messages,
            limit_bytes: report.queue.limit_bytes,
        }),
    }
}

/// A report from a message: what the server made it of.
pub fn report_of(message: v1::RankReport) -> RankReport {
    let state = message.state();
    let who = message.worker_rank.unwrap_or_default();
    let tiers = message.tiers.unwrap_or_default();
    let queue = message.queue.unwrap_or_default();
    let total = |counts: &BTreeMap<String, u64>| counts.values().sum();
    RankReport {
        worker: who.worker,
        address: who.address,
        aliases: who.aliases,
        model: who.model,
        rank: who.rank,
        state: state_name(state).to_owned(),
        why: message.why,
        since_unix_ms: message.since_unix_ms,
        epoch: message.epoch,
        last_seq: message.last_seq,
        age_ms: message.age_ms,
        blocks: message.blocks,
        tiers: TierBlocks {
            device: tiers.device,
            host: tiers.host,
            disk: tiers.disk,
            external: tiers.external,
            other: tiers.other,
        },
        block_size: message.grid.map(|grid| grid.block_size),
        lookahead: message.grid.map_or(0, |grid| grid.lookahead),
        groups: message.groups,
        window_blocks: message.window_blocks,
        extra_copies: message.extra_copies,
        memory_bytes: message.memory_bytes,
        evicted_blocks: message.evicted_blocks,
        orphans: message.orphans,
        gaps: message.gaps,
        missed: message.missed,
        duplicates: message.duplicates,
        replays: total(&message.replays),
        replay_outcomes: message.replays,
        resets: message.resets,
        dropped: message.dropped,
        snapshots: message.snapshots,
        snapshots_refused: message.snapshots_refused,
        messages: message.messages,
        received_bytes: message.received_bytes,
        events: message.events,
        queue: Queue {
            messages: queue.messages,
            bytes: queue.bytes,
            limit_messages: queue.limit_messages,
            limit_bytes: queue.limit_bytes,
        },
        connected: message.connected,
        engine: message.engine,
        endpoint: message.endpoint,
        replay_endpoint: Some(message.replay_endpoint).filter(|endpoint| !endpoint.is_empty()),
    }
}
