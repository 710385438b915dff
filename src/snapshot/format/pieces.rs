//! The pieces of what an index holds, each a tag and its fields.
//!
//! Most blocks of most ranks follow the block told before them, so a block's tag says what needs no field.

use super::super::bytes::{Cursor, Put};
use super::{Refusal, grid, put_grid, put_rule, rule};
use crate::block::{Group, Tier};
use crate::hash::{ContentHash, EngineHash, PrefixHash, Seed};
use crate::index::{Block, Exported};

/// Bytes of a block whose parent is not the one told before it: most are, or take eight less.
pub(super) const TYPICAL: usize = 25;

const END: u8 = 0;
const RANK: u8 = 1;
const GROUP: u8 = 2;
const OTHER: u8 = 3;
/// A block; what its other bits say is in these flags.
const BLOCK: u8 = 0x80;

/// A block on the way to others; it has the first two flags.
const PASSED: u8 = 0x40;

/// It has no parent.
const ROOT: u8 = 1;
/// Its parent is not the block told before it: a field says which it is.
const ELSEWHERE: u8 = 2;
/// Its seed is not that of the block told before it.
const SEED: u8 = 4;
/// Its name is a long one.
const WIDE: u8 = 8;
/// It is not one copy on the device in group 0.
const ODD: u8 = 16;

/// What the block told before says of the next.
#[derive(Clone, Copy, Debug)]
struct Before {
    at: Option<PrefixHash>,
    seed: Seed,
}

const NOTHING: Before = Before { at: None, seed: Seed::PLAIN };

/// The pieces of a body, read one by one.
#[derive(Debug)]
pub(in super::super) struct Pieces<'a> {
    from: Cursor<'a>,
    before: Before,
    ended: bool,
}

pub(super) fn put(out: &mut Vec<u8>, export: impl FnOnce(&mut dyn FnMut(Exported))) {
    let mut before = NOTHING;
    export(&mut |piece| put_piece(out, piece, &mut before));
    out.byte(END);
}

fn put_piece(out: &mut Vec<u8>, piece: Exported, before: &mut Before) {
    let is = |flag: u8, set: bool| if set { flag } else { 0 };
    match piece {
        Exported::Rank { grid, evicted, partial, too_many_groups } => {
            out.byte(RANK);
            out.option(grid, put_grid);
            out.u64(evicted);
            out.bytes(&[u8::from(partial), u8::from(too_many_groups)]);
        }
        Exported::Group { group, note } => {
            out.byte(GROUP);
            out.u32(group.0);
            out.option(note, |out, (rule, block_size)| {
                put_rule(out, rule);
                out.u32(block_size);
            });
        }
        Exported::Other { group, engine, tier, copies } => {
            out.byte(OTHER);
            out.u32(group.0);
            out.u64(engine.low());
            out.u64(engine.high());
            out.byte(tier.index() as u8);
            out.u32(copies);
        }
        Exported::Passed { content, parent } => {
            let elsewhere = parent.is_some() && parent != before.at;
            out.byte(PASSED | is(ROOT, parent.is_none()) | is(ELSEWHERE, elsewhere));
            out.u64(content.0);
            if let Some(parent) = parent.filter(|_| elsewhere) {
                out.u64(parent.0);
            }
            before.at = Some(PrefixHash::after(parent, content));
        }
        Exported::Block { block, parent, seed, tier, group, copies } => {
            let odd = (tier, group, copies) != (Tier::Device, Group(0), 1);
            let (elsewhere, reseeded) = (parent.is_some() && parent != before.at, seed != before.seed);
            let flags = is(ROOT, parent.is_none())
                | is(ELSEWHERE, elsewhere)
                | is(SEED, reseeded)
                | is(WIDE, block.engine.is_wide())
                | is(ODD, odd);
            out.byte(BLOCK | flags);
            out.u64(block.engine.low());
            out.u64(block.content.0);
            if block.engine.is_wide() {
                out.u64(block.engine.high());
            }
            if let Some(parent) = parent.filter(|_| elsewhere) {
                out.u64(parent.0);
            }
            if reseeded {
                out.u64(seed.0);
            }
            if odd {
                out.byte(tier.index() as u8);
                out.u32(group.0);
                out.u32(copies);
            }
            *before = Before { at: Some(PrefixHash::after(parent, block.content)), seed };
        }
    }
}

// === impl Pieces ===

impl<'a> Pieces<'a> {
    pub(super) fn new(from: Cursor<'a>) -> Self {
        Self { from, before: NOTHING, ended: false }
    }

    pub(super) fn bytes_left(&self) -> usize {
        self.from.0.len()
    }

    /// The next one; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Exported>, Refusal> {
        if self.ended {
            return Ok(None);
        }
        let from = &mut self.from;
        Ok(Some(match from.u8()? {
            END if from.0.is_empty() => {
                self.ended = true;
                return Ok(None);
            }
            RANK => Exported::Rank {
                grid: from.option(grid)?,
                // It goes on being counted from there.
                evicted: from.u64().ok().filter(|evicted| *evicted < u64::MAX / 2).ok_or(Refusal::Malformed)?,
                partial: from.bool()?,
                too_many_groups: from.bool()?,
            },
            GROUP => {
                Exported::Group { group: Group(from.u32()?), note: from.option(|from| Ok((rule(from)?, from.u32()?)))? }
            }
            OTHER => Exported::Other {
                group: Group(from.u32()?),
                engine: EngineHash::from_parts(from.u64()?, from.u64()?),
                tier: tier(from)?,
                copies: from.u32()?,
            },
            tag if tag & BLOCK != 0 => self.block(tag)?,
            tag if tag & !(ROOT | ELSEWHERE) == PASSED => {
                let content = ContentHash(from.u64()?);
                let parent = self.parent(tag)?;
                self.before.at = Some(PrefixHash::after(parent, content));
                Exported::Passed { content, parent }
            }
            _ => return Err(Refusal::Malformed),
        }))
    }

    fn block(&mut self, tag: u8) -> Result<Exported, Refusal> {
        let has = |flag: u8| tag & flag != 0;
        let from = &mut self.from;
        let (low, content) = (from.u64()?, ContentHash(from.u64()?));
        let high = if has(WIDE) { from.u64()? } else { 0 };
        let parent = self.parent(tag)?;
        let from = &mut self.from;
        let seed = if has(SEED) { Seed(from.u64()?) } else { self.before.seed };
        let (tier, group, copies) = match has(ODD) {
            true => (tier(from)?, Group(from.u32()?), from.u32()?),
            false => (Tier::Device, Group(0), 1),
        };
        self.before = Before { at: Some(PrefixHash::after(parent, content)), seed };
        let block = Block { engine: EngineHash::from_parts(low, high), content };
        Ok(Exported::Block { block, parent, seed, tier, group, copies })
    }

    fn parent(&mut self, tag: u8) -> Result<Option<PrefixHash>, Refusal> {
        match (tag & ROOT != 0, tag & ELSEWHERE != 0) {
            (true, false) => Ok(None),
            (false, true) => Ok(Some(PrefixHash(self.from.u64()?))),
            (false, false) => Ok(Some(self.before.at.ok_or(Refusal::Malformed)?)),
            (true, true) => Err(Refusal::Malformed),
        }
    }
}

fn tier(from: &mut Cursor<'_>) -> Result<Tier, Refusal> {
    Tier::all().get(usize::from(from.u8()?)).copied().ok_or(Refusal::Malformed)
}
