//! `kvtap sim`: simulated engine ranks on real sockets, under a seeded load; or a fleet of them on a NATS server.

mod fleet;

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{self, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::{Failure, Outcome, signals};
use crate::block::Grid;
use crate::feed::nats::NatsEndpoint;
use crate::sim::encode::Dialect;
use crate::sim::engine::{Config, Engine};
use crate::sim::faults::Fault;
use crate::sim::load::{Driver, Load, Profile, Tally};
use crate::sim::pool::{HashForm, Prompt};
use crate::sim::publisher::{Attach, PublishError, ReplayLayout};

/// How long a simulated engine takes for one step when its requests arrive at a rate.
const STEP: Duration = Duration::from_millis(10);

/// Whole blocks of the prompt that is held for whoever looks on, and the smallest pool that has room for it.
const EXAMPLE_BLOCKS: usize = 2;
const EXAMPLE_POOL: u32 = 128;

/// Runs simulated vLLM ranks: real cache policy, real wire bytes, real ZMQ sockets.
///
/// Prints one line per rank once its sockets are open, and a `kvtap match` command that finds a prompt it holds. Then runs
/// the load until it is done or Ctrl-C, and prints one line per rank with the engine's own counts.
#[derive(Clone, Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  kvtap sim
      one rank on free ports, as fast as it can, until Ctrl-C
  kvtap sim --endpoint 'tcp://*:5557' --replay 'tcp://*:6557' --ranks 2 --rate 20
      rank 0 on 5557 and 6557, rank 1 on 5558 and 6558, 20 requests a second each
  kvtap sim --requests 200 --fault drop=5@50 --fault restart@120
      five messages that only a replay can give after request 50, a new process after request 120
  kvtap sim --nats nats://127.0.0.1:4222 --workers 1000 --day 60 --restarts 30
      no sockets: a fleet of 1,000 pods whose events one kvtap publishes and another follows, through a day of a minute;
      exit code 1 where the follower does not end equal

Faults: drop=N (only a replay has them)  lose=N (nobody has them)  duplicate=N  delay=NxMS  burn  forget (the replay ring)
        stall  resume  stop  restart  restart-in-place (the sockets stay open)")]
pub struct Args {
    /// PUB endpoint: tcp://HOST:PORT (rank r: PORT + r; 0 is any free port) or ipc://PATH
    #[arg(long, value_name = "ENDPOINT", default_value = "tcp://127.0.0.1:0")]
    pub endpoint: String,
    /// Replay endpoint, in the same form; `none` for an engine without replay
    #[arg(long, value_name = "ENDPOINT", default_value = "tcp://127.0.0.1:0")]
    pub replay: String,
    /// Connect the PUB socket instead of binding it, as vLLM does where its endpoint has no wildcard
    #[arg(long)]
    pub connect: bool,
    /// First frame of each message
    #[arg(long, default_value = "")]
    pub topic: String,
    /// Data-parallel ranks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub ranks: u16,
    /// Tokens a block
    #[arg(long, value_name = "TOKENS", default_value = "16", value_parser = block_size)]
    pub block_size: NonZeroUsize,
    /// Blocks of each rank's pool
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(2..=1 << 24))]
    pub blocks: u32,
    /// Model name, for the lines printed here: engines do not send it
    #[arg(long, default_value = "sim")]
    pub model: String,
    /// Shape of events and replies
    #[arg(long, value_enum, default_value_t = Encoding::Map)]
    pub encoding: Encoding,
    /// Form of block hashes
    #[arg(long, value_enum, default_value_t = Hashes::Int)]
    pub hashes: Hashes,
    /// Messages that a replay can reach back
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub buffer_steps: usize,
    /// Seed of the load and of the engines' block names
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Requests a second and rank; as fast as possible if not given (of a fleet: 0.2, its mean over the day)
    #[arg(long, value_name = "R", value_parser = positive)]
    pub rate: Option<f64>,
    /// Requests a rank; without end if not given
    #[arg(long, value_name = "N")]
    pub requests: Option<u64>,
    /// Requests that run at the same time on a rank
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub concurrency: usize,
    /// LoRA adapters in the load
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub adapters: u32,
    /// Tenants with a cache salt in the load
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub tenants: u32,
    /// A fault after the n-th request of each rank; may be given again
    #[arg(long = "fault", value_name = "FAULT@REQUEST")]
    pub faults: Vec<FaultAt>,
    /// A fleet on these NATS servers, in place of sockets
    #[arg(long, value_name = "URL")]
    pub nats: Option<NatsEndpoint>,
    /// Of a fleet: its pods
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub workers: u32,
    /// Of a fleet: how long a day is, in seconds. Its load is least at both ends and most in the middle
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = positive)]
    pub day: f64,
    /// Of a fleet: pods that restart in a day, every second one with its sidecar
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub restarts: u32,
    /// Seconds to stay once all requests are done, so that subscribers can drain and replays are answered
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = positive)]
    pub linger: f64,
    /// One JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// The wire shapes that can be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Encoding {
    /// vLLM 0.26 to 0.32: maps, replay replies with a topic
    Map,
    /// vLLM 0.33: maps with a wide header
    #[value(name = "map-0.33")]
    Map33,
    /// vLLM 0.24 and 0.25: maps, replay replies without a topic
    #[value(name = "map-0.24")]
    Map24,
    /// vLLM 0.22 and 0.23: positional arrays
    Array,
    /// vLLM 0.17 to 0.19: positional arrays without cache groups
    #[value(name = "array-0.19")]
    Array19,
}

/// The forms of block hashes that can be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Hashes {
    /// Unsigned 64-bit integers
    Int,
    /// Digests of 16 bytes
    Bytes,
}

/// A fault and the request after which it comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultAt {
    /// What goes wrong.
    pub fault: Fault,
    /// After how many requests.
    pub request: u64,
}

/// Runs the command until its load is done, or Ctrl-C or SIGTERM ends it.
///
/// # Errors
/// [`Failure::Usage`] for an endpoint that is none, [`Failure::Failed`] for one that cannot be had.
pub async fn run(args: Args) -> Outcome {
    let stop = CancellationToken::new();
    let watch = tokio::spawn(signals::cancel(stop.clone()));
    let outcome = simulate(args, &mut io::stdout(), stop).await;
    watch.abort();
    Ok(outcome?)
}

/// Why a simulation ends early.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// A rank's sockets.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// Nobody reads what is printed.
    #[error("cannot print: {0}")]
    Print(#[from] io::Error),
    /// The fleet's index or an engine's own bytes.
    #[error("the fleet failed: {0}")]
    Fleet(String),
    /// The follower is not what the engines are.
    #[error("the follower does not hold what the engines hold")]
    Unequal,
    /// A rank's task ended without a result.
    #[error("a rank failed: {0}")]
    Rank(#[from] tokio::task::JoinError),
}

/// [`run`], with somewhere else to print and something else to stop it.
///
/// # Errors
/// [`SimError`].
pub async fn simulate(args: Args, out: &mut impl Write, stop: CancellationToken) -> Result<(), SimError> {
    if let Some(servers) = args.nats.clone() {
        return fleet::simulate(&args, servers, out, stop).await;
    }
    let mut engines = Vec::new();
    for rank in 0..args.ranks {
        let mut engine = Engine::start(config(&args), rank).await?;
        let held = example(&args);
        if let Some(prompt) = &held {
            hold(&mut engine, prompt).await?;
        }
        announce(&args, &engine, held.as_ref(), out)?;
        engines.push(engine);
    }
    if let Some(prompt) = example(&args).filter(|_| !args.json) {
        let (model, tokens) = (&args.model, prompt.tokens.len());
        writeln!(out, "held while it runs, for a kvtap that follows it as {model}:")?;
        writeln!(out, "  seq 1 {tokens} | kvtap match --server 127.0.0.1:9400 --model {model} --tokens-file -")?;
    }
    out.flush()?;

    let mut ranks = JoinSet::new();
    for engine in engines {
        ranks.spawn(drive(engine, args.clone(), stop.clone()));
    }
    let mut done = Vec::new();
    while let Some(rank) = ranks.join_next().await {
        done.push(rank??);
    }
    done.sort_by_key(|(engine, _)| engine.rank());
    for (engine, tally) in &done {
        conclude(&args, engine, tally, out)?;
    }
    out.flush()?;
    if !stop.is_cancelled() {
        tokio::select! {
            () = stop.cancelled() => {}
            () = time::sleep(Duration::from_secs_f64(args.linger)) => {}
        }
    }
    Ok(())
}

/// A prompt that every rank holds for as long as it lives, so that whoever looks on has something to ask for. Without a
/// replay nobody who comes late would hear of it, and a small pool has no room to spare.
fn example(args: &Args) -> Option<Prompt> {
    let tokens = args.block_size.get().saturating_mul(EXAMPLE_BLOCKS).saturating_add(1);
    let last = u32::try_from(tokens).ok()?;
    let fits = args.replay != "none" && args.blocks >= EXAMPLE_POOL;
    fits.then(|| Prompt { tokens: (1..=last).collect(), ..Prompt::default() })
}

/// Begins a request that never ends.
async fn hold(engine: &mut Engine, prompt: &Prompt) -> Result<(), PublishError> {
    // A pool with no room left holds nothing more; what is asked then matches nothing, which is the truth.
    if engine.admit(prompt.clone()).is_ok() {
        engine.step().await?;
    }
    Ok(())
}

fn config(args: &Args) -> Config {
    let (dialect, layout) = match args.encoding {
        Encoding::Map => (Dialect::Map24, ReplayLayout::WithTopic),
        Encoding::Map33 => (Dialect::Map33, ReplayLayout::WithTopic),
        Encoding::Map24 => (Dialect::Map24, ReplayLayout::Plain),
        Encoding::Array => (Dialect::Array22, ReplayLayout::Plain),
        Encoding::Array19 => (Dialect::Array19, ReplayLayout::Plain),
    };
    Config {
        endpoint: args.endpoint.clone(),
        replay: (args.replay != "none").then(|| args.replay.clone()),
        attach: if args.connect { Attach::Connect } else { Attach::Bind },
        topic: args.topic.clone(),
        buffer_steps: args.buffer_steps,
        layout,
        dialect,
        blocks: args.blocks,
        block_size: args.block_size,
        hash_form: match args.hashes {
            Hashes::Int => HashForm::Int,
            Hashes::Bytes => HashForm::Bytes,
        },
        seed: args.seed,
    }
}

/// Runs one rank's load to its end.
async fn drive(mut engine: Engine, args: Args, stop: CancellationToken) -> Result<(Engine, Tally), PublishError> {
    let profile = Profile { adapters: args.adapters, tenants: args.tenants, ..Profile::default() };
    let seed = args.seed.wrapping_add(u64::from(engine.rank()));
    let mut driver = Driver::new(Load::new(profile, seed), args.concurrency);
    let mut stopped = false;
    let mut arrivals = args.rate.map(|rate| {
        let mut arrivals = time::interval(Duration::from_secs_f64(1.0 / rate));
        arrivals.set_missed_tick_behavior(MissedTickBehavior::Burst);
        arrivals
    });
    let mut request = 0;
    while args.requests.is_none_or(|requests| request < requests) && !stop.is_cancelled() {
        if let Some(arrivals) = &mut arrivals {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = arrivals.tick() => {}
                () = time::sleep(STEP), if !driver.is_idle() && !stopped => {
                    driver.step(&mut engine).await?;
                    continue;
                }
            }
        }
        request += 1;
        if !stopped {
            driver.admit(&mut engine).await?;
            if arrivals.is_none() {
                driver.step(&mut engine).await?;
            }
        }
        for at in args.faults.iter().filter(|at| at.request == request) {
            engine.fault(at.fault).await?;
            stopped = match at.fault {
                Fault::Stop => true,
                Fault::Restart => false,
                _ => stopped,
            };
            if let (Fault::Restart | Fault::RestartInPlace, Some(prompt)) = (at.fault, example(&args)) {
                hold(&mut engine, &prompt).await?;
            }
        }
        // As fast as possible is not a reason to keep the sockets from running.
        tokio::task::yield_now().await;
    }
    if !stopped && !stop.is_cancelled() {
        driver.drain(&mut engine).await?;
    }
    Ok((engine, driver.tally()))
}

fn announce(args: &Args, engine: &Engine, held: Option<&Prompt>, out: &mut impl Write) -> io::Result<()> {
    let (rank, endpoint) = (engine.rank(), engine.endpoint());
    if args.json {
        let line = json!({
            "rank": rank, "model": args.model, "block_size": args.block_size, "blocks": args.blocks,
            "publishing_on": endpoint, "replay_on": engine.replay_endpoint(),
            "held_prompt": held.map(|prompt| json!({ "first_token": 1, "last_token": prompt.tokens.len() })),
        });
        return writeln!(out, "{line}");
    }
    match engine.replay_endpoint() {
        Some(replay) => writeln!(out, "rank {rank} of {}: publishing on {endpoint} replay on {replay}", args.model),
        None => writeln!(out, "rank {rank} of {}: publishing on {endpoint} without replay", args.model),
    }
}

fn conclude(args: &Args, engine: &Engine, tally: &Tally, out: &mut impl Write) -> io::Result<()> {
    let (rank, blocks) = (engine.rank(), engine.pool().copies().len());
    let Tally { requests, prompt_tokens, cached_tokens, decoded_tokens, messages, refused, preempted } = *tally;
    if args.json {
        let line = json!({
            "rank": rank, "requests": requests, "prompt_tokens": prompt_tokens, "cached_tokens": cached_tokens,
            "decoded_tokens": decoded_tokens, "messages": messages, "refused": refused, "preempted": preempted,
            "next_sequence": engine.next_sequence(), "blocks_held": blocks,
        });
        return writeln!(out, "{line}");
    }
    writeln!(
        out,
        "rank {rank}: {requests} requests, {cached_tokens} of {prompt_tokens} prompt tokens cached, {messages} messages, \
         {blocks} blocks held"
    )
}

fn block_size(text: &str) -> Result<NonZeroUsize, String> {
    let size: u64 = text.parse().map_err(|_| "expected a number of tokens".to_owned())?;
    let grid = Grid::new(size).map_err(|error| error.to_string())?;
    NonZeroUsize::try_from(grid.block_size).map_err(|error| error.to_string())
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 && number <= 1e6 => Ok(number),
        _ => Err("expected a number above 0, at most 1000000".to_owned()),
    }
}

// === impl SimError ===

impl From<SimError> for Failure {
    fn from(error: SimError) -> Self {
        match error {
            SimError::Publish(PublishError::Endpoint { .. }) => Self::Usage(error.to_string()),
            SimError::Print(error) => error.into(),
            _ => Self::Failed(error.to_string()),
        }
    }
}

// === impl FaultAt ===

impl FromStr for FaultAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (fault, request) = text.rsplit_once('@').ok_or("expected FAULT@REQUEST, for instance restart@100")?;
        Ok(Self {
            fault: fault.parse().map_err(|error| format!("{error}"))?,
            request: request.parse().map_err(|_| format!("`{request}` is not a request number"))?,
        })
    }
}
