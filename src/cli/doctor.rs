//! `kvtap doctor`: can kvtap follow this feed exactly, and if not, what is to be mended?
//!
//! ```text
//! arguments, or a configuration --> Target --watch::live--> Live \
//!                                          --past::ask----> Past --judge--> findings, each with its fix --> page, exit code
//! ```
//!
//! It connects as the sidecar does, with the same sockets and decoders, but for the topic: it takes everything, so that it
//! can tell a filter that matches nothing from an engine that says nothing. What it prints names no token, no hash, no
//! salt.

mod finding;
mod judge;
mod page;
mod past;
mod survey;
mod watch;

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join_all;

use self::finding::{Examined, Level};
use super::{Failure, Outcome, units};
use crate::config::{Config, Engine, Env};
use crate::feed::zmq::{Endpoint, EndpointError, Mode, ReplayOptions, SubOptions};
use crate::wire::Dialect;

/// Examines feeds: connects to each as the sidecar would, watches it for a while, asks its replay, and says what is wrong
/// and how to mend it.
///
/// Exit codes: 0 nothing to mend; 1 at least one FAULT, kvtap cannot follow the feed as configured; 2 only WARNINGs, it
/// can, with what they say; 64 bad usage or configuration.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  kvtap doctor tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:5558
      one rank, for five seconds
  kvtap doctor tcp://engine:5557 --replay tcp://engine:5657 --ranks 4 --duration 30s --json
      four ranks, each at its own port
  kvtap doctor --config /etc/kvtap/kvtap.yaml
      every feed that a sidecar would follow

Send a prompt meanwhile: an engine that has nothing to do says nothing.")]
pub struct Args {
    /// The PUB socket of each engine, rank 0: tcp://HOST:PORT or ipc:///PATH.
    #[arg(value_name = "ENDPOINT", required_unless_present = "config")]
    endpoints: Vec<Endpoint>,
    /// The replay socket of each, in the same order.
    #[arg(long, value_name = "ENDPOINT")]
    replay: Vec<Endpoint>,
    /// Data-parallel ranks of each engine: rank r is at port + r.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks: u32,
    /// Listen there instead of connecting: the engine connects.
    #[arg(long)]
    bind: bool,
    /// The topic that the sidecar is configured with: messages whose topic begins so.
    #[arg(long, value_name = "TOPIC", default_value = "", hide_default_value = true)]
    topic: String,
    /// The block size that the sidecar is configured with, in tokens.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    block_size: Option<u64>,
    /// Examine the feeds of this configuration file instead.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["endpoints", "replay", "ranks", "bind", "topic", "block_size"])]
    config: Option<PathBuf>,
    /// How long to watch: 500ms, 5s, 1m.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::time)]
    duration: Duration,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// One rank's feed, as a sidecar would be told to follow it.
#[derive(Clone, Debug)]
struct Target {
    /// What the configuration calls it; empty where it was named by its endpoint.
    name: String,
    rank: u32,
    /// The topic it is to have; the link itself takes everything.
    topic: String,
    link: SubOptions,
    replay: Option<ReplayOptions>,
    dialect: Dialect,
    block_size: Option<u64>,
}

/// The longest that one replay is read, in time.
const LONGEST_REPLAY: Duration = Duration::from_secs(60);

/// Examines, and prints what was found.
///
/// # Errors
/// [`Failure::Usage`] and [`Failure::Config`] for what cannot be examined; [`Failure::Quiet`] with the exit code of what
/// was found.
pub async fn run(args: Args) -> Outcome {
    let targets = args.targets()?;
    if !args.json {
        eprintln!("watching {} for {:?}", feeds(targets.len()), args.duration);
    }
    let examined = join_all(targets.into_iter().map(|target| examine(target, args.duration))).await;
    let code = exit_code(&examined);
    let mut out = io::stdout().lock();
    if args.json {
        page::json(&examined, code, &mut out)?;
    } else {
        page::text(&examined, &mut out)?;
    }
    out.flush()?;
    if code == 0 { Ok(()) } else { Err(Failure::Quiet(code)) }
}

async fn examine(target: Target, duration: Duration) -> Examined {
    let live = watch::live(&target, duration).await;
    let past = match &target.replay {
        Some(options) => Some(past::ask(&target, options.clone(), &live.heard).await),
        None => None,
    };
    let findings = judge::findings(&target, &live, past.as_ref());
    Examined { target, live, past, findings }
}

fn exit_code(examined: &[Examined]) -> u8 {
    match examined.iter().flat_map(|examined| &examined.findings).map(|finding| finding.level).min() {
        Some(Level::Fault) => 1,
        Some(Level::Warning) => 2,
        Some(Level::Note) | None => 0,
    }
}

fn feeds(n: usize) -> String {
    if n == 1 { "1 feed".to_owned() } else { format!("{n} feeds") }
}

// === impl Args ===

impl Args {
    fn targets(&self) -> Result<Vec<Target>, Failure> {
        if let Some(file) = &self.config {
            return configured(file);
        }
        let usage = |error: EndpointError| Failure::Usage(error.to_string());
        if !self.replay.is_empty() && self.replay.len() != self.endpoints.len() {
            return Err(Failure::Usage("--replay: give one for each ENDPOINT, in the same order, or none".to_owned()));
        }
        let mode = if self.bind { Mode::Bind } else { Mode::Connect };
        let mut targets = Vec::new();
        for (at, endpoint) in self.endpoints.iter().enumerate() {
            for rank in 0..self.ranks {
                let link = SubOptions::new(endpoint.at_rank(rank).map_err(usage)?, mode);
                link.check().map_err(usage)?;
                let replay = self.replay.get(at).map(|replay| replay.at_rank(rank)).transpose().map_err(usage)?;
                if let Some(replay) = &replay {
                    replay.check(Mode::Connect).map_err(usage)?;
                }
                targets.push(Target {
                    name: String::new(),
                    rank,
                    topic: self.topic.clone(),
                    link,
                    replay: replay.map(ReplayOptions::new),
                    dialect: Dialect::Auto,
                    block_size: self.block_size,
                });
            }
        }
        Ok(targets)
    }
}

/// The feeds of a configuration that have sockets.
fn configured(file: &std::path::Path) -> Result<Vec<Target>, Failure> {
    let (config, warnings) = Config::load(file, &Env::process()).map_err(Failure::Config)?;
    for warning in warnings.iter() {
        eprintln!("{warning}");
    }
    let usage = |error: EndpointError| Failure::Usage(error.to_string());
    let mut targets = Vec::new();
    for feed in &config.feeds {
        for rank in feed.rank_numbers() {
            let Some(link) = feed.link(rank).map_err(usage)? else {
                let how = match feed.subscription {
                    Some(_) => "comes over NATS",
                    None => "is polled over HTTP",
                };
                eprintln!("{}: {how}, which is not examined", feed.worker);
                break;
            };
            targets.push(Target {
                name: feed.worker.clone(),
                rank,
                topic: feed.topic.clone(),
                link,
                replay: feed.replay(rank).map_err(usage)?,
                dialect: match feed.engine {
                    Engine::Vllm => Dialect::Vllm,
                    Engine::Sglang => Dialect::Sglang,
                    Engine::Trtllm => Dialect::Trtllm,
                    Engine::Dynamo | Engine::Auto => Dialect::Auto,
                },
                block_size: feed.grid.map(|grid| u64::from(grid.size())),
            });
        }
    }
    match targets.is_empty() {
        true => Err(Failure::Usage(format!("{}: no feed that can be examined", file.display()))),
        false => Ok(targets),
    }
}
