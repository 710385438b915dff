//! The command line: one file per command.
//!
//! Every command is an `Args` struct and a `run(args)` that ends in an [`Outcome`]. Answers go to standard output, one
//! clear line about a failure to standard error. Exit codes: 0, 1 failed, 64 bad usage or configuration; `doctor` has
//! one more, which its help tells.

pub mod admin;
pub mod bench;
mod client;
pub mod demo;
pub mod doctor;
pub mod explain;
pub mod match_;
mod match_output;
pub mod record;
pub mod replay;
pub mod schema;
pub mod serve;
mod signals;
pub mod sim;
mod table;
mod tokens;
pub mod top;
mod units;
pub mod watch;
mod watch_output;
pub mod workers;

use std::fmt;
use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::Faults;
use crate::telemetry::complain;

/// Taps the KV-cache event feeds of LLM inference engines and answers, over gRPC, which worker already holds how much
/// of a prompt.
#[derive(Debug, Parser)]
#[command(name = "kvtap", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `kvtap` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Follow every feed of a configuration and answer routers over gRPC.
    Serve(serve::Args),
    /// Ask a server how many leading blocks of a prompt each worker holds.
    Match(match_::Args),
    /// List a server's workers, their feeds and what they hold.
    Workers(workers::Args),
    /// Add, change, remove and clear feeds of a running server, or list who wants which.
    Admin(admin::Args),
    /// Say which block of a prompt a worker lacks first, and why.
    Explain(explain::Args),
    /// Follow the normalized feed: what each worker holds, and every change of it.
    Watch(watch::Args),
    /// Show on a terminal who is fresh, what is lost and how busy everything is, again and again.
    Top(top::Args),
    /// Print the JSON Schema of the configuration, for editors.
    Schema(schema::Args),
    /// Show it all at work: three engines, one kvtap, real sockets, in this process.
    Demo(demo::Args),
    /// Run simulated engines on real sockets.
    Sim(sim::Args),
    /// Record what an engine publishes into a file, with or without the prompts in it.
    Record(record::Args),
    /// Publish a recording again, or look at what an index makes of it.
    Replay(replay::Args),
    /// Examine feeds: what is wrong with each, and how to mend it.
    Doctor(doctor::Args),
    /// Measure ingest, matching, memory and restart on this machine, for your own shape of fleet.
    Bench(bench::Args),
}

/// How a command ends.
pub type Outcome = Result<(), Failure>;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub enum Failure {
    /// It was asked in a way that cannot be: exit code 64.
    Usage(String),
    /// Its configuration is faulty, one line a fault: exit code 64.
    Config(Faults),
    /// It tried and failed: exit code 1.
    Failed(String),
    /// It has said what there is to say, and this is the exit code. 0: whoever read its output has gone, as `head` does, and
    /// nothing is wrong.
    Quiet(u8),
}

/// Parses the command line, runs the command and says how it went.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { Failure::USAGE } else { 0 };
            // With standard output gone there is nobody left to tell.
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Quiet(code)) => ExitCode::from(code),
        Err(failure) => {
            complain(&failure);
            ExitCode::from(failure.code())
        }
    }
}

fn run(cli: Cli) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match cli.command {
            Command::Serve(args) => serve::run(args).await,
            Command::Match(args) => match_::run(args).await,
            Command::Workers(args) => workers::run(args).await,
            Command::Admin(args) => admin::run(args).await,
            Command::Explain(args) => explain::run(args).await,
            Command::Watch(args) => watch::run(args).await,
            Command::Top(args) => top::run(args).await,
            Command::Schema(args) => schema::run(args),
            Command::Demo(args) => demo::run(args).await,
            Command::Sim(args) => sim::run(args).await,
            Command::Record(args) => record::run(args).await,
            Command::Replay(args) => replay::run(args).await,
            Command::Doctor(args) => doctor::run(args).await,
            Command::Bench(args) => bench::run(args).await,
        }
    })
}

// === impl Failure ===

impl Failure {
    const USAGE: u8 = 64;

    /// The process's exit code.
    pub const fn code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Config(_) => Self::USAGE,
            Self::Failed(_) => 1,
            Self::Quiet(code) => *code,
        }
    }
}

impl fmt::Display for Failure {
    /// One line, whatever the message holds; one a fault for a configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(faults) => faults.fmt(f),
            Self::Quiet(code) => write!(f, "kvtap: exit code {code}"),
            Self::Usage(message) | Self::Failed(message) => {
                let line: Vec<_> = message.split_whitespace().collect();
                write!(f, "kvtap: {}", line.join(" "))
            }
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Quiet(0),
            _ => Self::Failed(error.to_string()),
        }
    }
}
