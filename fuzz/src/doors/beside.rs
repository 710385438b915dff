//! A rank beside the one under test, that must not notice anything; and what every answer must keep to.

use std::sync::Arc;

use kvtap::block::{Grid, Group, Tier};
use kvtap::hash::{ContentHash, EngineHash, Seed};
use kvtap::index::{Block, Chain, Copies, Index, Parent, RankMatch, RankUsage};
use kvtap::worker::{RankId, Stamp};

/// The model of both.
pub const MODEL: &str = "model";

/// Blocks that it holds.
const HELD: usize = 5;

/// The other rank.
pub struct Beside {
    index: Arc<Index>,
    rank: RankId,
    /// Keeps the rank registered.
    _writer: kvtap::index::RankWriter,
    before: Seen,
}

/// What it holds and answers.
type Seen = (Option<RankUsage>, Vec<RankMatch>);

// === impl Beside ===

impl Beside {
    /// Puts it into an index.
    pub fn new(index: &Arc<Index>) -> Self {
        let mut writer = index.register(MODEL, Copies::Count).expect("a rank");
        let name = |i: usize| EngineHash::from_u64(i as u64);
        let run: Vec<Block> =
            contents().iter().enumerate().map(|(i, content)| Block { engine: name(i), content: *content }).collect();
        let mut tx = writer.begin().expect("the rank is there");
        tx.set_grid(grid()).expect("the first grid");
        tx.store(Parent::Root(Seed::PLAIN), Tier::Device, Group(0), &run);
        tx.commit(Stamp::default());
        let rank = writer.rank();
        Self { before: seen(index, rank), index: Arc::clone(index), rank, _writer: writer }
    }

    /// Holds it to what it was.
    #[track_caller]
    pub fn unchanged(&self) {
        assert_eq!(seen(&self.index, self.rank), self.before, "another rank's blocks changed");
    }
}

/// No answer is deeper than what is held. What is held is counted by name, and an engine that does not chain its hashes may
/// give several places one name: so many names came `again`.
#[track_caller]
pub fn fair(index: &Index, usage: &RankUsage, rank: RankId, contents: &[ContentHash], again: u64) {
    let Some(grid) = usage.grid else { return };
    assert!(usage.by_tier.iter().all(|tier| *tier <= usage.blocks), "a tier holds more than there is");
    let mut matches = Vec::new();
    index.match_chain(MODEL, grid, Chain::Content(contents), Some(&[rank]), &mut matches);
    let [found] = matches[..] else { panic!("a candidate is answered once, not {} times", matches.len()) };
    assert!(found.blocks as usize <= contents.len() && u64::from(found.blocks) <= usage.blocks + again);
    assert!(found.device <= found.blocks, "more on the device than at all");
    assert!(found.tiers.iter().all(|tier| *tier <= found.blocks));
}

fn grid() -> Grid {
    Grid::new(4).expect("a grid")
}

fn contents() -> Vec<ContentHash> {
    let tokens: Vec<u8> = (0..4 * HELD as u32).flat_map(u32::to_le_bytes).collect();
    grid().plain_contents(&tokens, Seed::PLAIN)
}

fn seen(index: &Index, rank: RankId) -> Seen {
    let mut matches = Vec::new();
    index.match_chain(MODEL, grid(), Chain::Content(&contents()), Some(&[rank]), &mut matches);
    (index.usage(rank), matches)
}
