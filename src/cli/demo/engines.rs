//! The three engines: two simulated ones, and a captured one that is played back.

use crate::cli::Failure;
use crate::sim::captured::{Capture, Entry};
use crate::sim::encode::Dialect;
use crate::sim::engine::{Config, Engine};
use crate::sim::faults::Fault;
use crate::sim::pool::Prompt;
use crate::sim::publisher::{Attach, Options, Publisher, ReplayLayout};

/// A simulated engine with the name that routers know it by.
#[derive(Debug)]
pub(super) struct Simulated {
    pub(super) name: &'static str,
    pub(super) engine: Engine,
    restarts: u64,
}

/// The captured engine: its messages go out again, one request's at a time.
#[derive(Debug)]
pub(super) struct Played {
    pub(super) name: &'static str,
    pub(super) version: String,
    pub(super) block_size: usize,
    pub(super) publisher: Publisher,
    entries: std::vec::IntoIter<Entry>,
}

/// Where an engine's feed stands, as the engine sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Position {
    /// Which life of the engine, from 1.
    pub(super) life: u64,
    /// The last message's sequence number; `None` before the first.
    pub(super) sequence: Option<u64>,
}

// === impl Simulated ===

impl Simulated {
    /// Starts one. They differ in everything that an engine may choose: wire format, block size, block names.
    pub(super) async fn start(
        name: &'static str,
        seed: u64,
        dialect: Dialect,
        block_size: u8,
    ) -> Result<Self, Failure> {
        let block_size = std::num::NonZeroUsize::new(block_size.into()).unwrap_or(std::num::NonZeroUsize::MIN);
        let layout = if dialect.is_map() { ReplayLayout::WithTopic } else { ReplayLayout::Plain };
        let config = Config { seed, dialect, layout, block_size, blocks: 256, ..Config::default() };
        Ok(Self { name, engine: Engine::start(config, 0).await.map_err(failed)?, restarts: 0 })
    }

    /// Serves a prompt to its end, and extends it by the answer.
    pub(super) async fn serve(&mut self, prompt: &mut Prompt, answer: &[u32]) -> Result<(), Failure> {
        let request = self.engine.admit(prompt.clone()).map_err(failed)?.request;
        self.engine.step().await.map_err(failed)?;
        for token in answer.iter().take(answer.len().saturating_sub(1)) {
            self.engine.decode(request, *token).map_err(failed)?;
            self.engine.step().await.map_err(failed)?;
        }
        self.engine.finish(request).map_err(failed)?;
        prompt.tokens.extend(answer);
        Ok(())
    }

    /// The process dies and another one takes its place.
    pub(super) async fn restart(&mut self) -> Result<(), Failure> {
        self.restarts += 1;
        self.engine.fault(Fault::Restart).await.map_err(failed)
    }

    pub(super) fn position(&self) -> Position {
        Position { life: 1 + self.restarts, sequence: self.engine.next_sequence().checked_sub(1) }
    }
}

// === impl Played ===

impl Played {
    pub(super) async fn start(name: &'static str) -> Result<Self, Failure> {
        let Capture { version, block_size, entries, .. } = Capture::vllm().map_err(failed)?;
        let any = "tcp://127.0.0.1:0".to_owned();
        let publisher = Publisher::open(Options {
            endpoint: any.clone(),
            replay: Some(any),
            attach: Attach::Bind,
            topic: String::new(),
            buffer_steps: 10_000,
            layout: ReplayLayout::WithTopic,
            rank: 0,
        })
        .await
        .map_err(failed)?;
        Ok(Self { name, version, block_size, publisher, entries: entries.into_iter() })
    }

    /// The next prompt that the engine was sent, with its own count of cached tokens; what it published before is out by then.
    pub(super) async fn next_request(&mut self) -> Result<Option<(Prompt, usize)>, Failure> {
        for entry in self.entries.by_ref() {
            match entry {
                Entry::Request { prompt, cached_tokens, .. } => return Ok(Some((prompt, cached_tokens))),
                Entry::Message { payload, .. } => drop(self.publisher.publish(payload).await.map_err(failed)?),
                Entry::Burst { .. } => {}
            }
        }
        Ok(None)
    }

    pub(super) fn position(&self) -> Position {
        Position { life: 1, sequence: self.publisher.next_sequence().checked_sub(1) }
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}
