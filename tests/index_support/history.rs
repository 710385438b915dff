//! What a history is made of, and how random ones are drawn.

use kvtap::block::{GroupRule, Tier};
use kvtap::hash::{EngineHash, PrefixHash};
use kvtap::index::Copies;
use kvtap::index::model::Path;
use proptest::prelude::*;

/// One step of a history.
#[derive(Clone, Debug)]
pub enum Step {
    /// A rank comes, or comes again: then its former life is removed first.
    Register { rank: u8, model: u8, copies: Copies },
    /// A rank goes; its writer is kept and tried again later.
    Unregister { rank: u8 },
    /// What a rank holds is exported, carried through a fresh index, and restored after a reset.
    Carry { rank: u8 },
    /// One transaction, of a rank that comes for it if need be. Without a commit its stamp is not published.
    Batch { rank: u8, ops: Vec<Op>, commit: bool },
}

/// One verb of a transaction.
#[derive(Clone, Debug)]
pub enum Op {
    Grid { size: u8 },
    Note { group: u8, rule: GroupRule, size: u8 },
    Store { under: Option<Pick>, salted: bool, contents: Vec<u8>, naming: Naming, tier: Tier, group: u8, hold: u8 },
    Known { tier: Tier, group: u8, picks: Vec<Pick> },
    Hold { tier: Tier, group: u8, picks: Vec<Pick> },
    Remove { tier: Tier, group: u8, picks: Vec<Pick> },
    Clear,
    Reset,
}

/// One of the names that a rank's history has used, counted from the latest; or its digest form; or a stranger.
#[derive(Clone, Copy, Debug)]
pub struct Pick {
    back: u8,
    form: Form,
}

#[derive(Clone, Copy, Debug)]
pub enum Form {
    AsUsed,
    Wide,
    Stranger,
}

/// How an engine names its blocks.
#[derive(Clone, Copy, Debug)]
pub enum Naming {
    /// By everything before: the usual way.
    Chained,
    /// The same, as digests whose integer forms are the usual names.
    Wide,
    /// By content alone: one name, several places.
    Unchained,
    /// By a number out of a few: names come again for other content.
    Reused(u8),
}

/// What a history is about: weights of its verbs.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    pub ranks: u8,
    /// How often groups are noted, of 10.
    pub notes: u32,
    /// How often blocks are named otherwise than by chain, of 10.
    pub odd_names: u32,
    /// How often what a rank holds is exported and restored, to 60 other steps.
    pub carries: u32,
    pub steps: (usize, usize),
}

// === impl Profile ===

impl Profile {
    pub fn history(self) -> impl Strategy<Value = Vec<Step>> {
        prop::collection::vec(self.step(), self.steps.0..=self.steps.1)
    }

    fn step(self) -> BoxedStrategy<Step> {
        let carry = (0..self.ranks).prop_map(|rank| Step::Carry { rank });
        match self.carries {
            0 => self.change().boxed(),
            carries => prop_oneof![60 => self.change(), carries => carry].boxed(),
        }
    }

    fn change(self) -> impl Strategy<Value = Step> {
        let rank = 0..self.ranks;
        let copies = prop_oneof![3 => Just(Copies::Count), 1 => Just(Copies::Set)];
        prop_oneof![
            1 => (rank.clone(), prop_oneof![5 => Just(0u8), 1 => Just(1)], copies)
                .prop_map(|(rank, model, copies)| Step::Register { rank, model, copies }),
            1 => rank.clone().prop_map(|rank| Step::Unregister { rank }),
            60 => (rank, prop::collection::vec(self.op(), 1..5), prop::bool::weighted(0.9))
                .prop_map(|(rank, ops, commit)| Step::Batch { rank, ops, commit }),
        ]
    }

    fn op(self) -> impl Strategy<Value = Op> {
        let names = || (tier(), group(), prop::collection::vec(pick(), 1..5));
        let naming = prop_oneof![
            20 => Just(Naming::Chained),
            2 + self.odd_names => Just(Naming::Wide),
            self.odd_names * 2 => Just(Naming::Unchained),
            self.odd_names * 2 => (0..6u8).prop_map(Naming::Reused),
        ];
        let contents = prop::collection::vec(0..3u8, 1..5);
        let hold = if self.notes > 0 {
            prop_oneof![1 => Just(0u8), 5 => Just(0xff), 2 => any::<u8>()].boxed()
        } else {
            Just(0).boxed()
        };
        let store =
            (prop::option::weighted(0.6, pick()), prop::bool::weighted(0.1), contents, naming, tier(), group(), hold);
        prop_oneof![
            1 => prop_oneof![6 => Just(2u8), 1 => Just(4)].prop_map(|size| Op::Grid { size }),
            1 + self.notes => (prop_oneof![1 => Just(0u8), 6 => Just(1), 2 => Just(2)], rule(), group_size())
                .prop_map(move |(group, rule, size)| match self.notes {
                    0 => Op::Grid { size: 2 },
                    _ => Op::Note { group, rule, size },
                }),
            25 => store.prop_map(|(under, salted, contents, naming, tier, group, hold)| {
                Op::Store { under, salted, contents, naming, tier, group, hold }
            }),
            4 => names().prop_map(|(tier, group, picks)| Op::Known { tier, group, picks }),
            1 + self.notes => names().prop_map(|(tier, group, picks)| Op::Hold { tier, group, picks }),
            10 => names().prop_map(|(tier, group, picks)| Op::Remove { tier, group, picks }),
            8 => prop::collection::vec(pick(), 1..5)
                .prop_map(|picks| Op::Remove { tier: Tier::Device, group: 0, picks }),
            1 => prop_oneof![3 => Just(Op::Clear), 1 => Just(Op::Reset), 8 => Just(Op::Grid { size: 2 })],
        ]
    }
}

fn tier() -> impl Strategy<Value = Tier> {
    prop_oneof![8 => Just(Tier::Device), 3 => Just(Tier::Host), 1 => Just(Tier::Disk), 1 => Just(Tier::Other(1))]
}

fn group() -> impl Strategy<Value = u8> {
    prop_oneof![10 => Just(0u8), 3 => Just(1), 1 => Just(2)]
}

/// Tokens a block of a noted group: most often the grid's own 2.
fn group_size() -> impl Strategy<Value = u8> {
    prop_oneof![6 => Just(2u8), 3 => Just(4), 1 => 1..7u8]
}

fn pick() -> impl Strategy<Value = Pick> {
    let form = prop_oneof![12 => Just(Form::AsUsed), 2 => Just(Form::Wide), 1 => Just(Form::Stranger)];
    (0..24u8, form).prop_map(|(back, form)| Pick { back, form })
}

fn rule() -> impl Strategy<Value = GroupRule> {
    prop_oneof![
        1 => Just(GroupRule::Full),
        1 => Just(GroupRule::Unknown),
        6 => (0..14u32).prop_map(|tokens| GroupRule::Window { tokens }),
    ]
}

// === impl Pick ===

impl Pick {
    pub fn name(self, used: &[EngineHash]) -> EngineHash {
        let back = usize::from(self.back).min(used.len().saturating_sub(1));
        let name = used.len().checked_sub(back + 1).and_then(|i| used.get(i)).copied();
        match (name, self.form) {
            (None, _) | (_, Form::Stranger) => EngineHash::from_u64(0xdead_0000 + u64::from(self.back)),
            (Some(name), Form::AsUsed) => name,
            (Some(name), Form::Wide) => widen(name.low()),
        }
    }
}

// === impl Naming ===

impl Naming {
    pub fn name(self, rank: u8, i: u8, path: &Path) -> EngineHash {
        let last = path.last().expect("a block has a content");
        let chained = PrefixHash::chain(path).last().expect("a block has a prefix").0;
        // Even ranks share their engine's names, as ranks of one engine do; odd ones have their own.
        let own = if rank.is_multiple_of(2) { 0x5555 } else { u64::from(rank) << 32 };
        match self {
            Self::Chained => EngineHash::from_u64(chained ^ own),
            Self::Wide => widen(chained ^ own),
            Self::Unchained => EngineHash::from_u64(last.0 ^ own ^ 0xffff_0000),
            Self::Reused(n) => EngineHash::from_u64(u64::from((n + i) % 6)),
        }
    }
}

/// A digest whose integer form is `low`.
pub fn widen(low: u64) -> EngineHash {
    let mut digest = [7; 32];
    digest[24..].copy_from_slice(&low.to_be_bytes());
    EngineHash::from_bytes(&digest)
}
