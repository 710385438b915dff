//! `kvtap bench`: what this machine does with your own shape of fleet.
//!
//! ```text
//! shape --fleet::Fleet--> wire bytes --frames, decode, normalize, index--> ingest
//!                         prompts    --hash, match--------------------> match, idle and while events are applied
//!                         what is held --snapshot, restore------------> restart
//! ```
//!
//! Everything runs in this process, without sockets and gRPC, on the code that `kvtap serve` runs. Bytes are made before
//! the clock starts. What was measured is then asked whether it is right: every rank must hold its newest prompt in full.

mod fleet;
mod page;
mod restart;

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use self::fleet::{Fleet, Query};
use self::restart::Restart;
use super::{Failure, Outcome, units};
use crate::block::Grid;
use crate::hash::Seed;
use crate::index::{Chain, Index, RankMatch};

/// Measures ingest, matching, memory and restart on this machine, for the shape that is given.
///
/// Use a release build on an idle machine; the figures of a debug build say nothing.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  kvtap bench
      eight workers of one rank, half of each prompt shared
  kvtap bench --workers 64 --ranks 8 --blocks 20000 --prompt-blocks 512 --sharing 0.9 --rate 50000
      a fleet of agents: long prompts that share most of their beginning, 50,000 blocks a second in all
  kvtap bench --workers 1 --blocks 1000000
      how long a restart with a million blocks takes")]
pub struct Args {
    /// Workers.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    workers: u32,
    /// Ranks of each.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: u32,
    /// Blocks that each rank holds.
    #[arg(long, value_name = "N", default_value_t = 32_768, value_parser = clap::value_parser!(u32).range(64..=8_000_000))]
    blocks: u32,
    /// Tokens a block.
    #[arg(long, value_name = "TOKENS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    block_size: u32,
    /// Blocks of a prompt.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    prompt_blocks: u32,
    /// How much of a prompt is the beginning of others too, from 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, value_parser = share)]
    sharing: f64,
    /// Different beginnings.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    beginnings: u32,
    /// Blocks that all engines together store a second while matching is measured under load; as fast as one thread can if
    /// not given.
    #[arg(long, value_name = "R", value_parser = rate)]
    rate: Option<f64>,
    /// How long each measurement takes: 500ms, 3s.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = units::time)]
    duration: Duration,
    /// Seed of everything that is random.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// All that was measured. Its JSON field names are relied on by other programs.
#[derive(Debug, Serialize)]
struct Report {
    shape: Shape,
    /// The build that was measured.
    release_build: bool,
    cores: usize,
    ingest: Ingest,
    /// From a prompt's tokens to the answer: hashing and matching.
    match_idle: Latency,
    /// The same from content hashes: matching alone.
    match_idle_hashed: Latency,
    match_under_load: Latency,
    /// What was applied meanwhile, in blocks stored a second.
    load_blocks_per_second: f64,
    memory: Memory,
    restart: Restart,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Shape {
    workers: u32,
    ranks: u32,
    blocks_per_rank: u32,
    block_size: u32,
    prompt_blocks: u32,
    sharing: f64,
}

/// From a message's frames to what a match sees, on one thread.
#[derive(Clone, Copy, Debug, Serialize)]
struct Ingest {
    /// Into an empty index: nothing is removed.
    fill_blocks_per_second: f64,
    /// Into full caches: every block that is stored has another removed.
    steady_blocks_per_second: f64,
    nanoseconds_per_block: f64,
    bytes_per_block_on_the_wire: f64,
}

/// Of single queries, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Latency {
    queries: usize,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Memory {
    blocks: u64,
    /// By what the process holds more than before, without what the engines here hold themselves.
    resident_bytes_per_block: f64,
}

/// Measures, and prints.
///
/// # Errors
/// [`Failure::Failed`] where something could not be measured, or an answer was wrong.
pub async fn run(args: Args) -> Outcome {
    let json = args.json;
    let report = tokio::task::spawn_blocking(move || measure(&args)).await;
    let report = report.map_err(|error| Failure::Failed(format!("the measurement failed: {error}")))??;
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer(&mut out, &report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        page::print(&report, &mut out)?;
    }
    Ok(out.flush()?)
}

fn measure(args: &Args) -> Result<Report, Failure> {
    let shape = Shape {
        workers: args.workers,
        ranks: args.ranks,
        blocks_per_rank: args.blocks,
        block_size: args.block_size,
        prompt_blocks: args.prompt_blocks,
        sharing: args.sharing,
    };
    let grid = Grid::new(u64::from(args.block_size)).map_err(|error| Failure::Usage(error.to_string()))?;
    let mut fleet = Fleet::new(shape, args.beginnings, args.seed)?;
    let before = resident();
    let (filled, took, _) = fleet.fill()?;
    let grown = resident().saturating_sub(before).saturating_sub(fleet.own_bytes());
    let fill = per_second(filled, took);
    let (steady, took, bytes) = fleet.steady(args.duration)?;
    let ingest = Ingest {
        fill_blocks_per_second: fill,
        steady_blocks_per_second: per_second(steady, took),
        nanoseconds_per_block: took.as_nanos() as f64 / (steady.max(1)) as f64,
        bytes_per_block_on_the_wire: bytes as f64 / steady.max(1) as f64,
    };
    let blocks = fleet.held();
    let memory = Memory { blocks, resident_bytes_per_block: grown as f64 / blocks.max(1) as f64 };
    let queries = fleet.queries(512);
    let index = Arc::clone(&fleet.index);
    let match_idle = ask(&index, grid, &queries, args.duration, false);
    let match_idle_hashed = ask(&index, grid, &queries, args.duration, true);

    let done = AtomicBool::new(false);
    let (match_under_load, load) = thread::scope(|scope| {
        let writer = scope.spawn(|| fleet.load(args.rate, &done));
        let latency = ask(&index, grid, &queries, args.duration, false);
        done.store(true, Ordering::Relaxed);
        (latency, writer.join())
    });
    let load = load.map_err(|_| Failure::Failed("the load's thread failed".to_owned()))??;
    fleet.check(grid)?;
    let restart = restart::measure(&mut fleet, grid)?;
    Ok(Report {
        shape,
        release_build: !cfg!(debug_assertions),
        cores: thread::available_parallelism().map_or(1, usize::from),
        ingest,
        match_idle,
        match_idle_hashed,
        match_under_load,
        load_blocks_per_second: load,
        memory,
        restart,
    })
}

/// Asks for so long, one query after the other.
fn ask(index: &Index, grid: Grid, queries: &[Query], duration: Duration, hashed: bool) -> Latency {
    let mut found: Vec<RankMatch> = Vec::new();
    let mut times = Vec::new();
    let began = Instant::now();
    'asking: loop {
        for query in queries {
            let start = Instant::now();
            if hashed {
                index.match_chain(fleet::MODEL, grid, Chain::Content(&query.contents), None, &mut found);
            } else {
                let contents = grid.plain_contents(&query.tokens_le, Seed::PLAIN);
                index.match_chain(fleet::MODEL, grid, Chain::Content(&contents), None, &mut found);
            }
            times.push(start.elapsed());
            if began.elapsed() >= duration {
                break 'asking;
            }
        }
        if queries.is_empty() {
            break;
        }
    }
    times.sort_unstable();
    let at = |share: f64| {
        let place = (times.len().saturating_sub(1) as f64 * share) as usize;
        times.get(place).map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    Latency { queries: times.len(), p50_us: at(0.5), p99_us: at(0.99), max_us: at(1.0) }
}

fn per_second(count: u64, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64().max(1e-9)
}

/// Memory of this process that is resident, in bytes; 0 where the system does not say.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0) * 1024
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("expected a number from 0 to 1".to_owned()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && (1.0..=1e9).contains(&rate) => Ok(rate),
        _ => Err("expected a number from 1 to 1000000000".to_owned()),
    }
}
