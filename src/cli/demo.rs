//! `kvtap demo`: three engines, one kvtap, real sockets, in one process; it ends by itself.
//!
//! ```text
//! simulated engine sim-a  --ZMQ-->                             <--gRPC-- prompts
//! simulated engine sim-b  --ZMQ-->  one kvtap, three feeds  ---
//! a real vLLM's capture   --ZMQ-->                             --gRPC--> who holds how much
//! ```
//!
//! Each answer stands beside what the engine itself counts: the simulated ones are asked, the real one's count is in the
//! capture. They must agree, or the demo fails.

mod engines;
mod report;
mod scene;
mod tap;

use std::io::{self, Write};
use std::time::Duration;

use tonic::transport::Channel;

use self::engines::{Played, Simulated};
use self::tap::Tap;
use super::{Failure, Outcome};
use crate::proto::v1::query_service_client::QueryServiceClient;
use crate::sim::encode::Dialect;

pub use report::{Answer, Report};

/// The model that all three engines serve.
pub const MODEL: &str = "demo-model";

/// All of it takes a second or two; longer means that something hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// The arguments of `kvtap demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Plays the demo and prints what came of it.
///
/// # Errors
/// [`Failure::Failed`] where an answer differs from an engine's own number, or where the demo could not be played.
pub async fn run(args: Args) -> Outcome {
    let report = match tokio::time::timeout(PATIENCE, play()).await {
        Ok(played) => played?,
        Err(_) => return Err(Failure::Failed(format!("the demo was not over after {} s", PATIENCE.as_secs()))),
    };
    let mut out = io::stdout().lock();
    match args.json {
        true => report.json(&mut out)?,
        false => report.table(&mut out)?,
    }
    out.flush()?;
    match report.differing() {
        0 => Ok(()),
        n => Err(Failure::Failed(format!("{n} answers differ from the engine's own number"))),
    }
}

/// Plays the demo against a kvtap in this process.
///
/// # Errors
/// [`Failure::Failed`] with what could not be done.
pub async fn play() -> Result<Report, Failure> {
    let demo = Demo::start().await?;
    let tap = Tap::start(&demo.feeds())?;
    let report = demo.play(tap.client().await?, tap.address()).await?;
    tap.stop().await?;
    Ok(report)
}

/// The three engines, publishing.
#[derive(Debug)]
pub struct Demo {
    a: Simulated,
    b: Simulated,
    real: Played,
}

/// One feed for kvtap to follow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FeedAt {
    /// The worker's name.
    pub worker: String,
    /// Its PUB socket.
    pub endpoint: String,
    /// Its replay socket.
    pub replay: Option<String>,
}

// === impl Demo ===

impl Demo {
    /// Starts the engines on free loopback ports. Nothing is published yet.
    ///
    /// # Errors
    /// [`Failure::Failed`] where a socket cannot be had.
    pub async fn start() -> Result<Self, Failure> {
        Ok(Self {
            a: Simulated::start("sim-a", 1, Dialect::Map33, 16).await?,
            b: Simulated::start("sim-b", 2, Dialect::Array22, 32).await?,
            real: Played::start("vllm").await?,
        })
    }

    /// What a kvtap must follow, all of [`MODEL`], before [`Demo::play`].
    pub fn feeds(&self) -> Vec<FeedAt> {
        let simulated = [&self.a, &self.b].map(|simulated| FeedAt {
            worker: simulated.name.to_owned(),
            endpoint: simulated.engine.endpoint().to_owned(),
            replay: simulated.engine.replay_endpoint().map(str::to_owned),
        });
        let real = FeedAt {
            worker: self.real.name.to_owned(),
            endpoint: self.real.publisher.endpoint().to_owned(),
            replay: self.real.publisher.replay_endpoint().map(str::to_owned),
        };
        simulated.into_iter().chain([real]).collect()
    }

    /// Lets the engines work and asks `kvtap`, which answers on `address`, about each prompt.
    ///
    /// Waits before each question until kvtap has applied what its engine published: a caller sets the deadline.
    ///
    /// # Errors
    /// [`Failure::Failed`] with what could not be done. A wrong answer is none: see [`Report::differing`].
    pub async fn play(mut self, kvtap: QueryServiceClient<Channel>, address: &str) -> Result<Report, Failure> {
        scene::play(&mut self, kvtap, address).await
    }
}
