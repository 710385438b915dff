//! `Explain`: the first block that a worker lacks of a prompt, and why.
//!
//! What is looked at, the likeliest cause first: the block size; what the groups of a hybrid model cut; what is
//! remembered of removals ([`watch`](super::watch)); the same tokens without LoRA name or salt; blocks that wait for
//! their parent; the bounds; and, always where it is so, that the feed has not told everything.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tonic::{Request, Response, Status};

use super::error::QueryError;
use super::limits::Limiter;
use super::matching::{Absence, RankAnswer, Who, answer};
use super::query::deadline;
use super::request::{Prompt, Query, weight};
use super::response::rank_match;
use super::watch::{Found, Hub};
use crate::admin::Rpc;
use crate::admin::report::millis;
use crate::block::Grid;
use crate::feed::status::{Entry, State};
use crate::hash::{ContentHash, PrefixHash, Seed};
use crate::index::Chain;
use crate::normalize::{Asked, Waiting};
use crate::proto::v1;
use crate::proto::v1::cause::Cause as Of;
use crate::proto::v1::explain_service_server::ExplainService;
use crate::worker::Stamp;

/// Answers `kvtap.v1.ExplainService`.
#[derive(Clone, Debug)]
pub(super) struct Explains {
    pub(super) hub: Arc<Hub>,
    pub(super) limiter: Limiter,
}

/// The prompt's blocks on one grid.
struct Blocks {
    contents: Option<Vec<ContentHash>>,
    prefixes: Vec<PrefixHash>,
}

#[tonic::async_trait]
impl ExplainService for Explains {
    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Result<Response<v1::ExplainResponse>, Status> {
        let begun = Instant::now();
        let deadline = deadline(&request);
        let request = request.into_inner().request.ok_or(QueryError::NoRequest);
        let explained = match &request {
            // A prompt is hashed for each namespace that it may be held in.
            Ok(request) => self.limiter.work(weight(request) * 4, || self.explained(request, deadline)).await,
            Err(error) => Err(error.clone()),
        };
        let code = explained.as_ref().map_or_else(QueryError::code_name, |_| "ok");
        self.hub.metrics.record(Rpc::Explain, code, begun.elapsed());
        Ok(Response::new(explained?))
    }
}

// === impl Explains ===

impl Explains {
    fn explained(
        &self,
        request: &v1::MatchRequest,
        deadline: Option<Instant>,
    ) -> Result<v1::ExplainResponse, QueryError> {
        let [worker] = &*request.workers else { return Err(QueryError::NotOneWorker { got: request.workers.len() }) };
        // A rank on another block size is to be explained, not left out.
        let mut query = Query::new(request, deadline)?;
        let asked_size = query.block_size.take();
        query.top_k = usize::MAX;
        query.min_blocks = 0;
        let mut ranks = answer(&self.hub.fleet, &query)?.ranks;
        ranks.sort_by_key(|rank| match &rank.who {
            Who::Rank(entry) => entry.identity.rank,
            Who::Nobody(..) => u32::MAX,
        });
        let explained = ranks.into_iter().map(|rank| match &rank.who {
            Who::Nobody(_, Absence::Name) => Err(QueryError::unknown_worker(worker)),
            Who::Nobody(_, Absence::Ranks) => Err(QueryError::UnknownRanks),
            Who::Rank(entry) => {
                let entry = Arc::clone(entry);
                Ok(self.rank(request, &query, asked_size.map(std::num::NonZero::get), &entry, rank))
            }
        });
        Ok(v1::ExplainResponse { ranks: explained.collect::<Result<_, _>>()? })
    }

    fn rank(
        &self,
        request: &v1::MatchRequest,
        query: &Query<'_>,
        asked_size: Option<u32>,
        entry: &Entry,
        rank: RankAnswer,
    ) -> v1::RankExplanation {
        let grid = rank.grid;
        let blocks = grid.map(|grid| Blocks::of(&query.prompt, grid));
        let at = rank.held.blocks as usize;
        let prefix = blocks.as_ref().and_then(|blocks| blocks.prefixes.get(at).copied());
        let content = blocks.as_ref().and_then(|blocks| blocks.contents.as_ref()?.get(at).copied());
        let mut causes = Vec::new();
        let is_all = grid.is_some() && prefix.is_none();
        if let (Some(asked), Some(grid)) = (asked_size, grid)
            && asked != grid.size()
        {
            let text = format!("this worker's blocks have {} tokens, not {asked}", grid.size());
            causes.push(cause(text, Of::OtherBlockSize(v1::OtherBlockSize { block_size: grid.size() })));
        }
        let remembered = self.hub.remembered(entry.rank);
        if !is_all {
            match grid.zip(blocks.as_ref()) {
                None => {
                    let text = "this worker has stored nothing yet, so its block size is not known".to_owned();
                    causes.push(cause(text, Of::NothingStored(v1::NothingStored {})));
                }
                Some((grid, blocks)) => {
                    self.cut_by_groups(query, grid, blocks, &rank, &mut causes);
                    self.other_namespaces(request, query, grid, &rank, &mut causes);
                    let found = prefix.zip(remembered.as_ref()).and_then(|(p, known)| known.find(p, at as u64));
                    causes.extend(found.map(removal));
                }
            }
            causes.extend(waiting(request, query, entry, grid.zip(blocks.as_ref()), at));
            self.unsure(entry, &mut causes);
            if causes.is_empty() {
                let text = "it was not stored in this epoch, as far as removals are remembered".to_owned();
                causes.push(cause(text, Of::NeverStored(v1::NeverStored {})));
            }
        }
        v1::RankExplanation {
            missing_block: (!is_all).then_some(at as u64),
            content_hash: content.map(|content| content.0),
            prefix_hash: prefix.map(|prefix| prefix.0),
            r#match: Some(rank_match(query.model, rank)),
            causes,
            remembered_since_unix_ms: unix_ms(remembered.map_or_else(SystemTime::now, |known| known.since)),
        }
    }

    /// The prefix groups hold more than the engine can re-use.
    fn cut_by_groups(
        &self,
        query: &Query<'_>,
        grid: Grid,
        blocks: &Blocks,
        rank: &RankAnswer,
        causes: &mut Vec<v1::Cause>,
    ) {
        let mut scores = Vec::new();
        self.hub.fleet.index.score_chain(query.model, grid, Chain::Prefix(&blocks.prefixes), &mut scores);
        let held = scores.iter().find(|score| score.rank == rank.held.rank).map_or(0, |score| score.blocks);
        if held > rank.held.blocks {
            let unknown_rule = rank.held.cut_by_unknown_group;
            let why =
                if unknown_rule { "a group whose rule nobody knows" } else { "another group of this hybrid model" };
            let text = format!("{held} leading blocks are held, but {why} does not hold what re-using them needs");
            causes.push(cause(text, Of::CutByGroups(v1::CutByGroups { held_blocks: held, unknown_rule })));
        }
    }

    /// The same tokens are held without the LoRA name, or without the salt, that were asked for.
    fn other_namespaces(
        &self,
        request: &v1::MatchRequest,
        query: &Query<'_>,
        grid: Grid,
        rank: &RankAnswer,
        causes: &mut Vec<v1::Cause>,
    ) {
        let Prompt::Tokens { tokens_le, keys, .. } = &query.prompt else { return };
        let (lora, salt) = (request.lora_name.as_str(), request.cache_salt.as_str());
        for (no_lora, no_salt) in [(false, true), (true, false), (true, true)] {
            if (no_lora && lora.is_empty()) || (no_salt && salt.is_empty()) {
                continue;
            }
            let seed = Seed::new(Some(lora).filter(|_| !no_lora), Some(salt).filter(|_| !no_salt));
            let other = Prompt::Tokens { tokens_le: Cow::Borrowed(tokens_le), seed, keys };
            let mut contents = Vec::new();
            let mut found = Vec::new();
            let listed = [rank.held.rank];
            let chain = other.on(grid, &mut contents);
            self.hub.fleet.index.match_chain(query.model, grid, chain, Some(&listed), &mut found);
            let held = found.first().map_or(0, |held| held.blocks);
            if held > rank.held.blocks {
                let without = match (no_lora, no_salt) {
                    (true, false) => "LoRA name",
                    (false, _) => "cache salt",
                    (true, true) => "LoRA name and cache salt",
                };
                let text = format!("{held} leading blocks of the same tokens are held without the {without}");
                let (without_lora_name, without_cache_salt) = (no_lora, no_salt);
                let namespace = v1::OtherNamespace { held_blocks: held, without_lora_name, without_cache_salt };
                causes.push(cause(text, Of::OtherNamespace(namespace)));
                return;
            }
        }
    }

    /// What of the picture itself is not certain.
    fn unsure(&self, entry: &Entry, causes: &mut Vec<v1::Cause>) {
        let status = entry.status();
        let (state, since, why) = (status.state, status.since, status.why.clone());
        drop(status);
        let evicted = self.hub.fleet.index.usage(entry.rank).map_or(0, |usage| usage.evicted);
        if evicted > 0 {
            let text = format!("a bound has made kvtap forget {evicted} blocks of this worker");
            causes.push(cause(text, Of::Bounded(v1::Bounded { evicted_blocks: evicted })));
        }
        if state != State::Live {
            let text = format!("the feed is {}: {why}", state.name());
            let since_unix_ms = unix_ms(since);
            let incomplete = v1::FeedIncomplete { state: v1::FeedState::from(state).into(), since_unix_ms, why };
            causes.push(cause(text, Of::FeedIncomplete(incomplete)));
        }
    }
}

/// Blocks that wait for a parent: those of the prompt from `at` on, and which parent that is.
fn waiting(
    request: &v1::MatchRequest,
    query: &Query<'_>,
    entry: &Entry,
    cut: Option<(Grid, &Blocks)>,
    at: usize,
) -> Option<v1::Cause> {
    let blocks = entry.status().orphans;
    if blocks == 0 {
        return None;
    }
    let namespace = match &query.prompt {
        Prompt::Tokens { seed, .. } => Some((*seed, request.lora_name.as_str())),
        Prompt::Contents(_) | Prompt::Prefixes(_) => None,
    };
    let found = cut.and_then(|(grid, blocks)| {
        let contents = blocks.contents.as_deref()?;
        entry.orphans.find(Asked { grid, contents, from: at, namespace })
    });
    let Some(Waiting { first, blocks: many, parent }) = found else {
        let text = format!("{blocks} blocks wait for a parent that is not known; this one may be among them");
        return Some(cause(text, Of::Orphans(v1::Orphans { blocks, ..v1::Orphans::default() })));
    };
    let which = match many {
        1 => format!("block {first} waits"),
        _ => format!("{many} blocks from block {first} on wait"),
    };
    let parent = parent.low();
    let text = format!("{which} for a parent that was never heard of; the engine calls it {parent:#018x}");
    let (first_block, prompt_blocks) = (Some(first as u64), many as u64);
    let orphans = v1::Orphans { blocks, first_block, prompt_blocks, parent_engine_hash: Some(parent) };
    Some(cause(text, Of::Orphans(orphans)))
}

const fn cause(text: String, of: Of) -> v1::Cause {
    v1::Cause { text, cause: Some(of) }
}

fn removal(found: Found) -> v1::Cause {
    let by = |stamp: Stamp| match stamp.sequence {
        Some(sequence) => format!("message {sequence} of epoch {}", stamp.epoch),
        None => format!("epoch {}", stamp.epoch),
    };
    match found {
        Found::Removed(stamp, at) => {
            let (epoch, sequence, unix_ms) = (stamp.epoch, stamp.sequence, unix_ms(at));
            let text = format!("it was removed by {}", by(stamp));
            cause(text, Of::Removed(v1::Removed { epoch, sequence, unix_ms }))
        }
        Found::Dropped { stamp, at, new_epoch } => {
            let (epoch, sequence, unix_ms) = (stamp.epoch, stamp.sequence, unix_ms(at));
            let what = if new_epoch {
                "everything was dropped when a new life began with"
            } else {
                "the cache was cleared by"
            };
            let text = format!("{what} {}, and this block was not stored since", by(stamp));
            cause(text, Of::Dropped(v1::Dropped { epoch, sequence, unix_ms, new_epoch }))
        }
    }
}

fn unix_ms(at: SystemTime) -> u64 {
    millis(at.duration_since(UNIX_EPOCH).unwrap_or_default())
}

// === impl Blocks ===

impl Blocks {
    fn of(prompt: &Prompt<'_>, grid: Grid) -> Self {
        let mut contents = Vec::new();
        match prompt.on(grid, &mut contents) {
            Chain::Content(chain) => Self { prefixes: PrefixHash::chain(chain), contents: Some(chain.to_vec()) },
            Chain::Prefix(chain) => Self { prefixes: chain.to_vec(), contents: None },
        }
    }
}
