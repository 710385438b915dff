//! `kvtap replay`: a recording once more, on sockets or straight into an index.

mod into_index;
mod publish;

use std::path::PathBuf;
use std::str::FromStr;

use super::{Failure, Outcome};
use crate::feed::recording::{self, ReadError, Reader};

/// Plays a recording: on a real PUB socket (and a replay socket) with the recorded frames, numbers and times, or
/// through decoder, feed and index in this process.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  kvtap replay engine.kvtap --into-index
      what kvtap makes of it: the state of the feed, blocks, what was dropped and why
  kvtap replay engine.kvtap.1 engine.kvtap --endpoint 'tcp://*:5557' --replay-endpoint 'tcp://*:5558' --speed 10
      an engine that does it all again, ten times as fast")]
#[command(group = clap::ArgGroup::new("where").required(true))]
pub struct Args {
    /// The parts of one recording, in any order.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Publish on this PUB socket: tcp://HOST:PORT, `*` for every interface, port 0 for any free one; or ipc://PATH.
    #[arg(long, value_name = "ENDPOINT", group = "where")]
    endpoint: Option<String>,
    /// Answer replay requests on this socket with what was published so far.
    #[arg(long, value_name = "ENDPOINT", requires = "endpoint")]
    replay_endpoint: Option<String>,
    /// How many times as fast as it was recorded, or `max`.
    #[arg(long, value_name = "N|max", default_value = "1", requires = "endpoint")]
    speed: Speed,
    /// Begin again at the end, as an engine that restarts does.
    #[arg(long = "loop", requires = "endpoint")]
    again: bool,
    /// Seconds to wait for subscribers before the first message: a PUB socket drops what nobody is there for.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds, requires = "endpoint")]
    delay: f64,
    /// Seconds to stay after the last message, so that subscribers can drain and replays are answered.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds, requires = "endpoint")]
    linger: f64,
    /// Play it into an index in this process, and print what `kvtap workers` would.
    #[arg(long, group = "where")]
    into_index: bool,
    #[command(flatten)]
    question: into_index::Question,
}

/// How fast a recording is played.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Speed {
    Times(f64),
    Max,
}

/// Plays.
///
/// # Errors
/// [`Failure::Usage`] for arguments that mean nothing, [`Failure::Failed`] where a file is no recording, a socket cannot
/// be had, or, after what is whole was played, a file is torn.
pub async fn run(args: Args) -> Outcome {
    match args.endpoint.clone() {
        Some(endpoint) => publish::run(&args, endpoint).await,
        None => into_index::run(&args).await,
    }
}

/// The parts of the recording, in order.
fn open(files: &[PathBuf]) -> Result<Vec<Reader<impl std::io::Read + Send + 'static>>, Failure> {
    recording::open(files)
        .map_err(|(path, error): (PathBuf, ReadError)| Failure::Failed(format!("{}: {error}", path.display())))
}

/// The failure of a recording whose parts are torn: what is whole of it was played. People count parts from 1.
fn torn_failure<'a>(torn: impl Iterator<Item = (u32, &'a str)>) -> Outcome {
    let torn: Vec<_> = torn.map(|(part, torn)| format!("part {} is torn {torn}", u64::from(part) + 1)).collect();
    match torn.is_empty() {
        true => Ok(()),
        false => Err(Failure::Failed(format!("{}; what is whole was played", torn.join("; ")))),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && (0.0..=86_400.0).contains(&number) => Ok(number),
        _ => Err("expected a number from 0 to 86400".to_owned()),
    }
}

// === impl Speed ===

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse::<f64>()) {
            ("max", _) => Ok(Self::Max),
            (_, Ok(times)) if times.is_finite() && (1e-3..=1e6).contains(&times) => Ok(Self::Times(times)),
            _ => Err("expected `max`, or a number from 0.001 to 1000000".to_owned()),
        }
    }
}
