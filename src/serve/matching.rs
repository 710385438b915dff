//! From a checked query to who holds how much of it.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::error::{Known, QueryError};
use super::request::{Prompt, Query};
use crate::admin::Fleet;
use crate::block::Grid;
use crate::feed::status::{Entry, State};
use crate::hash::ContentHash;
use crate::index::{Chain, RankMatch, RankUsage};
use crate::proto::v1;
use crate::worker::RankId;

/// What a query came to.
#[derive(Debug)]
pub(super) struct Answer {
    /// How the prompt was cut: each grid with the prompt's full blocks on it, ascending.
    pub(super) grids: Vec<(Grid, u64)>,
    /// The ranks, deepest match first.
    pub(super) ranks: Vec<RankAnswer>,
}

/// What one rank holds, and how far that can be trusted.
#[derive(Debug)]
pub(super) struct RankAnswer {
    /// Who.
    pub(super) who: Who,
    /// The rank's grid, once known.
    pub(super) grid: Option<Grid>,
    /// The prompt's full blocks on it.
    pub(super) asked: u64,
    /// How much is held; zeros where nothing is.
    pub(super) held: RankMatch,
    /// Where the feed stands; `None` for a name that nobody answers to.
    pub(super) feed: Option<Feed>,
}

/// Whom an answer is about.
#[derive(Debug)]
pub(super) enum Who {
    /// A rank of the fleet.
    Rank(Arc<Entry>),
    /// A name that was asked for, and whom nobody answers.
    Nobody(String, Absence),
}

/// Why nobody answers to a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Absence {
    /// No worker of the model has it.
    Name,
    /// Its worker has none of the ranks that were asked for.
    Ranks,
}

/// Where a feed stands.
#[derive(Debug)]
pub(super) struct Feed {
    /// The state.
    pub(super) state: State,
    /// Why. Most feeds of an answer share it.
    pub(super) why: Arc<str>,
    /// When it was last heard.
    pub(super) last_heard: Option<Instant>,
}

/// Who is asked.
struct Asked<'a> {
    entries: Vec<Arc<Entry>>,
    /// Names that nobody answers to.
    nobody: Vec<(&'a str, Absence)>,
    /// Whether the query named whom to ask.
    filtered: bool,
}

/// What an entry says where a feed became live between the reading of its state and of what it holds.
const BECAME_LIVE: &str = "the feed became live while it was asked: ask again";

/// Asks the fleet.
pub(super) fn answer(fleet: &Fleet, query: &Query<'_>) -> Result<Answer, QueryError> {
    loop {
        if let Some(answer) = answer_once(fleet, query)? {
            return Ok(answer);
        }
    }
}

/// The answer, unless a rank that was asked has come to a grid since the grids were looked at.
fn answer_once(fleet: &Fleet, query: &Query<'_>) -> Result<Option<Answer>, QueryError> {
    let asked = Asked::new(fleet, query)?;
    let grids = grids(fleet, query)?;
    let live: Vec<_> = asked.entries.iter().map(|entry| entry.live_since()).collect();
    // Listed ranks come back whatever they hold, and with it why: a match that an unknown group cut to nothing is not
    // the same as nothing.
    let everybody = asked.filtered || query.min_blocks == 0;
    let candidates: Option<Vec<RankId>> = everybody.then(|| asked.entries.iter().map(|entry| entry.rank).collect());

    // On each grid.
    let mut found: Vec<Vec<RankMatch>> = Vec::with_capacity(grids.len());
    let mut used = Vec::with_capacity(grids.len());
    let mut contents = Vec::new();
    for grid in &grids {
        // A prompt is hashed once for each grid: that is what takes time, and where giving up saves some.
        if query.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(QueryError::Deadline);
        }
        let chain = query.prompt.on(*grid, &mut contents);
        used.push((*grid, len(chain) as u64));
        let mut out = Vec::new();
        fleet.index.match_chain(query.model, *grid, chain, candidates.as_deref(), &mut out);
        found.push(out);
    }
    // A candidate comes back from every grid; what it holds is on its own. Places are sorted: a match is large.
    let mut places = Vec::with_capacity(found.iter().map(Vec::len).sum());
    for (i, on_grid) in found.iter().enumerate() {
        let order = |held: &RankMatch| (held.rank, Reverse(held.blocks), !held.cut_by_unknown_group);
        places.extend(on_grid.iter().enumerate().map(|(place, held)| (order(held), i, place)));
    }
    places.sort_unstable();

    let mut ranks = Vec::with_capacity(asked.entries.len());
    let mut why = Arc::from("");
    for (entry, live) in asked.entries.into_iter().zip(live) {
        let first = places.partition_point(|((rank, ..), ..)| *rank < entry.rank);
        let its = places.iter().skip(first).take_while(|((rank, ..), ..)| *rank == entry.rank);
        let mut hits = its.filter_map(|(_, i, place)| Some((found.get(*i)?.get(*place)?, *i)));
        let hit = hits.next();
        let matched = hit.map_or(0, |(held, _)| held.blocks);
        if matched < query.min_blocks && query.workers.is_empty() {
            continue;
        }
        let (held, grid) = match hit {
            Some((held, i)) if held.blocks > 0 => (*held, used.get(i).map(|(grid, _)| *grid)),
            // On which grid a rank holds nothing, only the rank knows.
            _ => {
                let usage = fleet.index.usage(entry.rank).unwrap_or_default();
                let counts = |grid: &Grid| query.block_size.is_none_or(|size| size == grid.block_size);
                if usage.grid.filter(counts).is_some_and(|grid| !grids.contains(&grid)) {
                    return Ok(None);
                }
                // That it holds nothing of the chain is true of the moment in which its own grid was looked at, not of now.
                let is_own =
                    |(_, i): &(&RankMatch, usize)| used.get(*i).is_some_and(|(grid, _)| Some(*grid) == usage.grid);
                let best = hit.filter(|hit| hit.0.cut_by_unknown_group || is_own(hit)).or_else(|| hits.find(is_own));
                (best.map_or_else(|| nothing(entry.rank, &usage), |(held, _)| *held), usage.grid)
            }
        };
        let asked = used.iter().find(|(used, _)| Some(*used) == grid).map_or(0, |(_, blocks)| *blocks);
        let feed = Feed::of(&entry, live, &mut why);
        let wanted = query.states.is_none_or(|states| states & 1 << v1::FeedState::from(feed.state) as u32 != 0);
        // Whoever was asked for by name comes back, with its state and nothing held.
        let (held, asked) = match (wanted, query.workers.is_empty()) {
            (true, _) => (held, asked),
            (false, true) => continue,
            (false, false) => (nothing(entry.rank, &fleet.index.usage(entry.rank).unwrap_or_default()), asked),
        };
        let feed = Some(feed);
        ranks.push(RankAnswer { who: Who::Rank(entry), grid, asked, held, feed });
    }
    ranks.extend(asked.nobody.into_iter().map(|(name, why)| RankAnswer::nobody(name, why)));
    Ok(Some(Answer { grids: used, ranks: deepest_first(ranks, query.top_k) }))
}

/// The first `most` in order.
fn deepest_first(ranks: Vec<RankAnswer>, most: usize) -> Vec<RankAnswer> {
    // Keys and places are sorted, since a rank's answer is large; and names are looked at where all else is equal.
    let mut order: Vec<_> = ranks.iter().enumerate().map(|(place, rank)| (rank.depth(), rank.name(), place)).collect();
    order.sort_unstable();
    let order: Vec<usize> = order.iter().take(most).map(|(.., place)| *place).collect();
    let mut ranks: Vec<_> = ranks.into_iter().map(Some).collect();
    let mut sorted = Vec::with_capacity(order.len());
    sorted.extend(order.into_iter().filter_map(|place| ranks.get_mut(place)?.take()));
    sorted
}

/// The grids to answer on, ascending.
fn grids(fleet: &Fleet, query: &Query<'_>) -> Result<Vec<Grid>, QueryError> {
    let mut grids = fleet.index.grids(query.model).unwrap_or_default();
    if let Some(size) = query.block_size {
        let known = |grids: &[Grid]| Known::of(sizes(grids));
        if !grids.is_empty() && !grids.iter().any(|grid| grid.block_size == size) {
            return Err(QueryError::UnknownBlockSize { got: size.get(), known: known(&grids) });
        }
        grids.retain(|grid| grid.block_size == size);
        if grids.is_empty() {
            // Nobody has stored a block yet: the answer is zeros, of the prompt as the caller cuts it.
            grids.push(Grid { block_size: size, lookahead: 0 });
        }
    } else if let Some(field) = query.prompt.needs_block_size() {
        let sizes = sizes(&grids);
        if sizes.len() > 1 {
            return Err(QueryError::NoBlockSize { field, known: Known::of(sizes) });
        }
    }
    Ok(grids)
}

/// The distinct block sizes of `grids`, which are ascending.
fn sizes(grids: &[Grid]) -> Vec<u32> {
    let mut sizes: Vec<_> = grids.iter().map(|grid| grid.size()).collect();
    sizes.dedup();
    sizes
}

/// A match of nothing, with what is known of the rank.
fn nothing(rank: RankId, usage: &RankUsage) -> RankMatch {
    RankMatch {
        rank,
        stamp: usage.stamp,
        blocks: 0,
        device: 0,
        tiers: Default::default(),
        lead: Default::default(),
        within: Default::default(),
        held: usage.blocks,
        partial: usage.evicted > 0,
        cut_by_unknown_group: false,
    }
}

// === impl Asked ===

impl<'a> Asked<'a> {
    fn new(fleet: &Fleet, query: &Query<'a>) -> Result<Self, QueryError> {
        let mut entries = fleet.board.of_model(query.model);
        if entries.is_empty() {
            let known = models(fleet);
            return Err(match query.model {
                "" => QueryError::NoModel { known },
                model => QueryError::unknown_model(model, known),
            });
        }
        let mut names: HashMap<&str, Option<Absence>> =
            query.workers.iter().map(|name| (name.as_str(), Some(Absence::Name))).collect();
        entries.retain(|entry| {
            let identity = &entry.identity;
            let is_asked = query.ranks.is_empty() || query.ranks.contains(&identity.rank);
            if names.is_empty() {
                return is_asked && entry.is_a_rank();
            }
            let mut called = false;
            let aliases = identity.aliases.iter().map(String::as_str);
            for name in [&*identity.worker, &*identity.address].into_iter().chain(aliases) {
                if let Some(absence) = names.get_mut(name) {
                    // Another rank of it may answer.
                    *absence = absence.and((!is_asked).then_some(Absence::Ranks));
                    // An address that is not configured is no name.
                    called |= !name.is_empty();
                }
            }
            called && is_asked
        });
        let nobody = names.into_iter().filter_map(|(name, absence)| Some((name, absence?))).collect();
        let filtered = !query.workers.is_empty() || !query.ranks.is_empty();
        Ok(Self { entries, nobody, filtered })
    }
}

/// Every model there is, ascending.
fn models(fleet: &Fleet) -> Known {
    let mut models: Vec<_> = fleet.board.all().iter().map(|entry| Arc::clone(&entry.identity.model)).collect();
    models.sort_unstable();
    models.dedup();
    Known::of(models)
}

// === impl Absence ===

impl Absence {
    /// What an entry says of it.
    const fn why(self) -> &'static str {
        match self {
            Self::Name => "no worker of this model has this name",
            Self::Ranks => "this worker has none of the ranks that were asked for",
        }
    }
}

// === impl RankAnswer ===

impl RankAnswer {
    fn nobody(name: &str, why: Absence) -> Self {
        let rank = RankId { slot: u32::MAX, generation: u32::MAX };
        let held = nothing(rank, &RankUsage::default());
        Self { who: Who::Nobody(name.to_owned(), why), grid: None, asked: 0, held, feed: None }
    }

    /// In which state its feed is, and why; why there is none.
    pub(super) fn standing(&self) -> (v1::FeedState, &str) {
        match (&self.feed, &self.who) {
            (Some(feed), _) => (feed.state.into(), &feed.why),
            (None, Who::Nobody(_, absence)) => (v1::FeedState::Unspecified, absence.why()),
            (None, Who::Rank(_)) => (v1::FeedState::Unspecified, ""),
        }
    }

    /// `blocks` of this rank in tokens.
    pub(super) fn tokens(&self, blocks: u32) -> u64 {
        u64::from(blocks) * self.grid.map_or(0, |grid| u64::from(grid.size()))
    }

    /// Deepest first, in tokens because grids differ; then most on device.
    fn depth(&self) -> (Reverse<u64>, Reverse<u64>) {
        (Reverse(self.tokens(self.held.blocks)), Reverse(self.tokens(self.held.device)))
    }

    /// Then by name.
    fn name(&self) -> (&str, u32) {
        match &self.who {
            Who::Rank(entry) => (&*entry.identity.worker, entry.identity.rank),
            Who::Nobody(name, _) => (name.as_str(), 0),
        }
    }
}

// === impl Feed ===

impl Feed {
    /// Where the feed stands after a match, for which it was `live` before. `last` is why the one before it stands
    /// where it does: it is the same sentence most of the time.
    fn of(entry: &Entry, live: Option<SystemTime>, last: &mut Arc<str>) -> Self {
        let status = entry.status();
        let last_heard = status.last_heard.max(entry.heard());
        if status.state == State::Live && live != Some(status.since) {
            // What was matched may be of the time before.
            return Self { state: State::Replaying, why: BECAME_LIVE.into(), last_heard };
        }
        if **last != *status.why {
            *last = status.why.as_str().into();
        }
        Self { state: status.state, why: Arc::clone(last), last_heard }
    }
}

// === impl Prompt ===

impl Prompt<'_> {
    /// The prompt's blocks on `grid`. `contents` is scratch memory.
    pub(super) fn on<'c>(&'c self, grid: Grid, contents: &'c mut Vec<ContentHash>) -> Chain<'c> {
        match self {
            Self::Tokens { tokens_le, seed, keys } => {
                contents.clear();
                let key = |i: usize| keys.get(i).map_or(&[][..], |key| key.as_ref());
                grid.contents(tokens_le, *seed, key, contents);
                Chain::Content(contents)
            }
            Self::Contents(hashes) => Chain::Content(hashes),
            Self::Prefixes(hashes) => Chain::Prefix(hashes),
        }
    }
}

fn len(chain: Chain<'_>) -> usize {
    match chain {
        Chain::Content(hashes) => hashes.len(),
        Chain::Prefix(hashes) => hashes.len(),
    }
}
