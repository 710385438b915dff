//! One rank of a simulated engine: pool, encoder, publisher and faults together.

use std::num::NonZeroUsize;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::encode::{self, Dialect};
use super::faults::{Fault, Pending};
use super::pool::{Admitted, HashForm, Pool, Prompt, Refused, RequestId, Shape};
use super::publisher::{Attach, Options, PublishError, Publisher, ReplayLayout};

/// How an engine is set up. The default is a small vLLM 0.24 to 0.32 on free loopback ports.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// The PUB socket: `tcp://host:port` (rank r: port + r; port 0 is any free one) or `ipc://path`.
    pub endpoint: String,
    /// The replay socket.
    pub replay: Option<String>,
    /// Whether the PUB socket binds or connects.
    pub attach: Attach,
    /// The first frame of each message.
    pub topic: String,
    /// Messages that a replay can reach back.
    pub buffer_steps: usize,
    /// The shape of replay replies.
    pub layout: ReplayLayout,
    /// The shape of events.
    pub dialect: Dialect,
    /// The pool's blocks.
    pub blocks: u32,
    /// Tokens a block.
    pub block_size: NonZeroUsize,
    /// How block names go on the wire.
    pub hash_form: HashForm,
    /// Seeds the engine's lives: each life of each engine names blocks in its own way, and the same seed in the same way again.
    pub seed: u64,
}

/// One rank.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    rank: u16,
    roots: fastrand::Rng,
    pool: Pool,
    publisher: Publisher,
    faults: Pending,
}

// === impl Config ===

impl Default for Config {
    fn default() -> Self {
        Self {
            endpoint: "tcp://127.0.0.1:0".to_owned(),
            replay: Some("tcp://127.0.0.1:0".to_owned()),
            attach: Attach::Bind,
            topic: String::new(),
            buffer_steps: 10_000,
            layout: ReplayLayout::WithTopic,
            dialect: Dialect::Map24,
            blocks: 2048,
            block_size: NonZeroUsize::MIN.saturating_add(15),
            hash_form: HashForm::Int,
            seed: 0,
        }
    }
}

// === impl Engine ===

impl Engine {
    /// Starts rank `rank`: its sockets are open when this returns.
    ///
    /// # Errors
    /// What [`Publisher::open`] says.
    pub async fn start(config: Config, rank: u16) -> Result<Self, PublishError> {
        let publisher = Publisher::open(Options {
            endpoint: config.endpoint.clone(),
            replay: config.replay.clone(),
            attach: config.attach,
            topic: config.topic.clone(),
            buffer_steps: config.buffer_steps,
            layout: config.layout,
            rank,
        })
        .await?;
        let mut roots = fastrand::Rng::with_seed(config.seed.wrapping_add(u64::from(rank) << 32));
        let shape = Shape { blocks: config.blocks, block_size: config.block_size, hash_form: config.hash_form };
        let pool = Pool::new(shape, roots.u128(..));
        Ok(Self { config, rank, roots, pool, publisher, faults: Pending::default() })
    }

    /// The PUB socket's endpoint, with the port it got.
    pub fn endpoint(&self) -> &str {
        self.publisher.endpoint()
    }

    /// The replay socket's endpoint, with the port it got.
    pub fn replay_endpoint(&self) -> Option<&str> {
        self.publisher.replay_endpoint()
    }

    /// The rank.
    pub fn rank(&self) -> u16 {
        self.rank
    }

    /// The pool: what is held now.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The sequence number that the next message will have.
    pub fn next_sequence(&self) -> u64 {
        self.publisher.next_sequence()
    }

    /// [`Pool::admit`].
    ///
    /// # Errors
    /// [`Refused`].
    pub fn admit(&mut self, prompt: Prompt) -> Result<Admitted, Refused> {
        self.pool.admit(prompt)
    }

    /// [`Pool::decode`].
    ///
    /// # Errors
    /// [`Refused`].
    pub fn decode(&mut self, request: RequestId, token: u32) -> Result<(), Refused> {
        self.pool.decode(request, token)
    }

    /// [`Pool::finish`].
    ///
    /// # Errors
    /// [`Refused`].
    pub fn finish(&mut self, request: RequestId) -> Result<(), Refused> {
        self.pool.finish(request)
    }

    /// [`Pool::reset_prefix_cache`].
    pub fn reset_prefix_cache(&mut self) -> bool {
        self.pool.reset_prefix_cache()
    }

    /// Ends a step: its events leave as one message, whose number is returned. No events, no message.
    ///
    /// # Errors
    /// [`PublishError::Closed`] after [`Fault::Stop`].
    pub async fn step(&mut self) -> Result<Option<u64>, PublishError> {
        let events = self.pool.step();
        if events.is_empty() {
            return Ok(None);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let payload = Bytes::from(encode::batch(self.config.dialect, now, &events, Some(u32::from(self.rank))));
        let fate = self.faults.next();
        if !fate.delay.is_zero() {
            tokio::time::sleep(fate.delay).await;
        }
        let sequence = match fate.keep {
            true => self.publisher.keep(payload.clone()),
            false => self.publisher.burn(),
        };
        if fate.send {
            self.publisher.send(sequence, payload.clone()).await?;
        }
        if fate.again {
            self.publisher.send(sequence, payload).await?;
        }
        Ok(Some(sequence))
    }

    /// Lets something go wrong, now or with the messages to come.
    ///
    /// # Errors
    /// What binding again says, for the restarts.
    pub async fn fault(&mut self, fault: Fault) -> Result<(), PublishError> {
        if self.faults.arm(fault) {
            return Ok(());
        }
        match fault {
            Fault::Burn => drop(self.publisher.burn()),
            Fault::Forget => self.publisher.forget(),
            Fault::Stall => self.publisher.stall(true),
            Fault::Resume => self.publisher.stall(false),
            Fault::Stop => {
                self.publisher.detach().await;
                self.reincarnate();
            }
            Fault::Restart => {
                self.publisher.detach().await;
                self.reincarnate();
                self.publisher.attach().await?;
            }
            Fault::RestartInPlace => self.reincarnate(),
            Fault::Drop { .. } | Fault::Lose { .. } | Fault::Duplicate { .. } | Fault::Delay { .. } => {}
        }
        Ok(())
    }

    /// A new process: an empty cache under a new root, sequence 0, no faults pending. Running requests are gone.
    fn reincarnate(&mut self) {
        self.pool = self.pool.reborn(self.roots.u128(..));
        self.publisher.rewind();
        self.publisher.stall(false);
        self.faults = Pending::default();
    }
}
