//! A match as JSON, as a table, and as one line.

use std::io::{self, Write};

use serde::Serialize;

use super::table::{Align, Table, age, number};
use crate::admin::report::TierBlocks;
use crate::proto::v1;
use crate::serve::response::state_name;

/// A match. Its JSON field names are relied on by other programs.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    model: String,
    /// Full blocks of the prompt, on the grid of the first worker.
    blocks: u64,
    /// That grid's block size; absent where none is known.
    block_size: Option<u32>,
    workers: Vec<Held>,
    grids: Vec<GridUse>,
}

#[derive(Debug, Serialize)]
struct Held {
    worker: String,
    rank: u32,
    matched_blocks: u32,
    matched_tokens: u64,
    device_blocks: u32,
    state: &'static str,
    epoch: u64,
    last_seq: Option<u64>,
    age_ms: Option<u64>,
    tiers: TierBlocks,
    held_blocks: u64,
    asked_blocks: u64,
    block_size: Option<u32>,
    partial: bool,
    cut_by_unknown_group: bool,
    why: String,
    address: String,
    aliases: Vec<String>,
}

#[derive(Debug, Serialize)]
struct GridUse {
    block_size: u32,
    lookahead: u32,
    blocks: u64,
}

// === impl Answer ===

impl Answer {
    pub(super) fn new(response: v1::MatchResponse) -> Self {
        let grids: Vec<_> = response
            .grids
            .iter()
            .map(|used| {
                let grid = used.grid.unwrap_or_default();
                GridUse { block_size: grid.block_size, lookahead: grid.lookahead, blocks: used.blocks }
            })
            .collect();
        let workers: Vec<_> = response.matches.into_iter().map(Held::new).collect();
        let first = workers.iter().find_map(|held| Some((held.block_size?, held.asked_blocks)));
        let used = first.or_else(|| grids.first().map(|grid| (grid.block_size, grid.blocks)));
        Self {
            model: response.model,
            blocks: used.map_or(0, |(_, blocks)| blocks),
            block_size: used.map(|(size, _)| size),
            workers,
            grids,
        }
    }

    /// A table: who holds how much, and how fresh that is.
    pub(super) fn table(&self, out: &mut impl Write) -> io::Result<()> {
        match self.grids.as_slice() {
            [] => writeln!(out, "{}: no worker's block size is known yet", self.model)?,
            grids => {
                let cuts = grids.iter().map(|grid| format!("{} blocks of {} tokens", grid.blocks, grid.block_size));
                writeln!(out, "{}: {}", self.model, cuts.collect::<Vec<_>>().join(", "))?;
            }
        }
        let mut table = Table::new([
            ("WORKER", Align::Left),
            ("RANK", Align::Right),
            ("MATCHED", Align::Right),
            ("TOKENS", Align::Right),
            ("DEVICE", Align::Right),
            ("HOST", Align::Right),
            ("DISK", Align::Right),
            ("EXT", Align::Right),
            ("OTHER", Align::Right),
            ("HELD", Align::Right),
            ("STATE", Align::Left),
            ("EPOCH", Align::Right),
            ("SEQ", Align::Right),
            ("HEARD", Align::Right),
            ("NOTE", Align::Left),
        ]);
        for held in &self.workers {
            table.row([
                held.worker.clone(),
                held.rank.to_string(),
                format!("{}/{}", held.matched_blocks, held.asked_blocks),
                held.matched_tokens.to_string(),
                held.device_blocks.to_string(),
                held.tiers.host.to_string(),
                held.tiers.disk.to_string(),
                held.tiers.external.to_string(),
                held.tiers.other.to_string(),
                held.held_blocks.to_string(),
                held.state.to_owned(),
                held.epoch.to_string(),
                number(held.last_seq),
                age(held.age_ms),
                held.note(),
            ]);
        }
        table.print(out)
    }

    /// One line: the query's number, what it was cut into, and the ranks that hold anything of it, deepest first.
    pub(super) fn line(&self, number: u64, out: &mut impl Write) -> io::Result<()> {
        let holding = self.workers.iter().filter(|held| held.matched_blocks > 0);
        let ranks: Vec<_> = holding
            .map(|held| {
                let Held { worker, rank, matched_blocks, state, .. } = held;
                format!("{worker} rank {rank} holds {matched_blocks} ({state})")
            })
            .collect();
        let cut = match self.block_size {
            Some(size) => format!("{} blocks of {size} tokens", self.blocks),
            None => "no worker's block size is known yet".to_owned(),
        };
        let ranks = if ranks.is_empty() { "nobody holds any".to_owned() } else { ranks.join(", ") };
        writeln!(out, "{number}: {cut}: {ranks}")
    }
}

// === impl Held ===

impl Held {
    fn new(held: v1::RankMatch) -> Self {
        let state = state_name(held.state());
        let who = held.worker_rank.unwrap_or_default();
        let v1::TierBlocks { device, host, disk, external, other } = held.tiers.unwrap_or_default();
        Self {
            worker: who.worker,
            rank: who.rank,
            matched_blocks: held.matched_blocks,
            matched_tokens: held.matched_tokens,
            device_blocks: held.device_blocks,
            state,
            epoch: held.epoch,
            last_seq: held.last_seq,
            age_ms: held.age_ms,
            tiers: TierBlocks { device, host, disk, external, other },
            held_blocks: held.held_blocks,
            asked_blocks: held.asked_blocks,
            block_size: held.grid.map(|grid| grid.block_size),
            partial: held.partial,
            cut_by_unknown_group: held.cut_by_unknown_group,
            why: held.why,
            address: who.address,
            aliases: who.aliases,
        }
    }

    /// What a reader of the table should know besides the figures.
    fn note(&self) -> String {
        let mut notes = Vec::new();
        if self.partial {
            notes.push("partial: a bound made kvtap forget blocks");
        }
        if self.cut_by_unknown_group {
            notes.push("cut: a cache group's rule is not known");
        }
        if self.state != "live" {
            notes.push(&self.why);
        }
        notes.join("; ")
    }
}
