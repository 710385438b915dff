//! The engine behind a feed: a real cache policy, and the record of what it held after each message of each life.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use fastrand::Rng;
use kvtap::block::Grid;
use kvtap::hash::{ContentHash, Seed};
use kvtap::sim::encode::{self, Dialect};
use kvtap::sim::event::{Event, KIND, Lora, MEDIUM, Name, Stored};
use kvtap::sim::pool::{HashForm, Pool, Prompt, RequestId, Shape};

pub const BLOCK: usize = 4;

/// What an engine holds at one moment, as far as it is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Picture {
    /// Leading blocks of each prompt.
    pub leading: Vec<u32>,
    /// Blocks in all.
    pub held: u64,
}

/// What the engine held after each message, by life and sequence number. Written before the message leaves.
#[derive(Debug, Default)]
pub struct Truth(Mutex<Vec<Vec<Picture>>>);

/// A block that cannot be read, in a message that can, or not even that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Damage {
    Truncated,
    Garbage,
    OneEvent,
}

/// One message.
pub struct Message {
    pub sequence: u64,
    pub payload: Bytes,
}

pub struct Engine {
    pub truth: Arc<Truth>,
    pub prompts: Arc<[Prompt]>,
    rng: Rng,
    pool: Pool,
    running: Vec<Running>,
    dialect: Dialect,
    next: u64,
    clock: f64,
}

struct Running {
    request: RequestId,
    rest: Vec<u32>,
}

// === impl Truth ===

impl Truth {
    /// How many lives there were.
    pub fn lives(&self) -> usize {
        self.lock().len()
    }

    /// What the engine held after a message.
    pub fn after(&self, life: usize, sequence: u64) -> Option<Picture> {
        self.lock().get(life)?.get(usize::try_from(sequence).ok()?).cloned()
    }

    fn begin(&self) {
        self.lock().push(Vec::new());
    }

    fn record(&self, picture: Picture) {
        self.lock().last_mut().expect("a life").push(picture);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Vec<Picture>>> {
        self.0.lock().expect("no panic")
    }
}

// === impl Engine ===

impl Engine {
    pub fn new(rng: &mut Rng) -> Self {
        let truth = Arc::new(Truth::default());
        truth.begin();
        let shape = Shape {
            blocks: rng.u32(24..80),
            block_size: NonZeroUsize::new(BLOCK).expect("not 0"),
            hash_form: if rng.bool() { HashForm::Int } else { HashForm::Bytes },
        };
        let dialects = [Dialect::Array19, Dialect::Array22, Dialect::Map24, Dialect::Map33];
        Self {
            truth,
            prompts: prompts(rng).into(),
            pool: Pool::new(shape, rng.u128(..)),
            rng: rng.fork(),
            running: Vec::new(),
            dialect: dialects[rng.usize(..4)],
            next: 0,
            clock: 0.0,
        }
    }

    /// The life it is in, counted from 0.
    pub fn life(&self) -> usize {
        self.truth.lives() - 1
    }

    /// The number of its last message.
    pub fn last(&self) -> Option<u64> {
        self.next.checked_sub(1)
    }

    /// A new process: nothing is held, other names, numbers from 0.
    pub fn restart(&mut self) {
        self.pool = Pool::new(self.pool.shape(), self.rng.u128(..));
        self.running.clear();
        self.next = 0;
        self.truth.begin();
    }

    /// Works until there is something to tell.
    pub fn message(&mut self) -> Message {
        self.message_with(None)
    }

    /// The same, and it cannot be read.
    pub fn damaged(&mut self, damage: Damage) -> Message {
        self.message_with(Some(damage))
    }

    /// Ends what runs, and clears the cache.
    pub fn clear(&mut self) -> Message {
        for running in self.running.drain(..) {
            self.pool.finish(running.request).expect("it runs");
        }
        assert!(self.pool.reset_prefix_cache());
        let events = self.pool.step();
        self.publish(&events, None)
    }

    /// Its clock is set back.
    pub fn set_clock_back(&mut self, seconds: f64) {
        self.clock -= seconds;
    }

    /// A message that it never sent: of a block that it may not hold.
    pub fn lie(&mut self) -> Bytes {
        let tokens = self.prompts[self.rng.usize(..self.prompts.len())].tokens.iter().copied().chain(0..).take(BLOCK);
        let stored = Event::Stored(Stored {
            names: vec![Name::Int(self.rng.u64(..))],
            parent: None,
            tokens: tokens.collect(),
            block_size: BLOCK as u32,
            lora: None,
            medium: Some(MEDIUM.to_owned()),
            extra_keys: None,
            group: Some(0),
            kind: Some(KIND.to_owned()),
            window: None,
        });
        encode::batch(self.dialect, self.clock, &[stored], None).into()
    }

    fn message_with(&mut self, damage: Option<Damage>) -> Message {
        let mut events = Vec::new();
        let operations = self.rng.usize(1..4);
        for n in 0.. {
            if n >= operations && !events.is_empty() {
                break;
            }
            self.work();
            events.extend(self.pool.step());
        }
        self.publish(&events, damage)
    }

    fn work(&mut self) {
        match self.rng.u8(..10) {
            0..4 if self.running.len() < 4 => {
                let prompt = &self.prompts[self.rng.usize(..self.prompts.len())];
                let upto = self.rng.usize(1..=prompt.tokens.len());
                let (now, rest) = prompt.tokens.split_at(upto);
                let now = Prompt { tokens: now.to_vec(), ..prompt.clone() };
                if let Ok(admitted) = self.pool.admit(now) {
                    self.running.push(Running { request: admitted.request, rest: rest.to_vec() });
                }
            }
            4..8 if !self.running.is_empty() => {
                let at = self.rng.usize(..self.running.len());
                let running = &mut self.running[at];
                let tokens = running.rest.len().min(self.rng.usize(1..=2 * BLOCK));
                let now: Vec<u32> = running.rest.drain(..tokens).collect();
                if now.iter().any(|token| self.pool.decode(running.request, *token).is_err()) {
                    running.rest.clear();
                }
            }
            _ if !self.running.is_empty() => {
                let running = self.running.swap_remove(self.rng.usize(..self.running.len()));
                self.pool.finish(running.request).expect("it runs");
            }
            _ => {}
        }
    }

    fn publish(&mut self, events: &[Event], damage: Option<Damage>) -> Message {
        // The clock of a process: never the same twice.
        self.clock += 1.0 + self.rng.f64();
        let payload = encode::batch(self.dialect, self.clock, events, None);
        let payload = match damage {
            None => payload,
            Some(damage) => self.damage(payload, damage),
        };
        let leading = self.prompts.iter().map(|prompt| self.pool.leading_blocks(prompt) as u32).collect();
        self.truth.record(Picture { leading, held: self.pool.copies().len() as u64 });
        self.next += 1;
        Message { sequence: self.next - 1, payload: payload.into() }
    }

    fn damage(&mut self, mut payload: Vec<u8>, damage: Damage) -> Vec<u8> {
        // An array of three, a float of nine bytes, then the header of the array of events.
        const EVENTS: usize = 10;
        match damage {
            Damage::OneEvent if (0x90..0x9f).contains(&payload[EVENTS]) => {
                let rank = payload.pop().expect("nil");
                payload[EVENTS] += 1;
                payload.extend(b"\x92\xabBlockStored\x07");
                payload.push(rank);
            }
            Damage::Truncated | Damage::OneEvent => payload.truncate(self.rng.usize(1..payload.len())),
            Damage::Garbage => payload = vec![0xc1; self.rng.usize(0..40)],
        }
        payload
    }
}

/// A family of prompts that share beginnings.
fn prompts(rng: &mut Rng) -> Vec<Prompt> {
    let mut prompts: Vec<Prompt> = Vec::new();
    for _ in 0..18 {
        let mut prompt = match prompts.len() {
            0 => Prompt::default(),
            n => prompts[rng.usize(..n)].clone(),
        };
        match rng.u8(..6) {
            0 => prompt = Prompt::default(),
            1 => prompt = Prompt { salt: Some(format!("salt {}", rng.u8(..3))), ..Prompt::default() },
            2 => prompt.lora = Some(Lora { id: 1, name: "adapter".to_owned() }),
            _ => {}
        }
        let keep = rng.usize(..=prompt.tokens.len());
        prompt.tokens.truncate(keep);
        let more = rng.usize(1..10 * BLOCK);
        prompt.tokens.extend(std::iter::repeat_with(|| rng.u32(..1_000)).take(more));
        prompts.push(prompt);
    }
    prompts
}

/// The content hashes of a prompt, as a router computes them.
pub fn contents(prompt: &Prompt) -> Vec<ContentHash> {
    let grid = Grid::new(BLOCK as u64).expect("a grid");
    let tokens: Vec<u8> = prompt.tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    let lora = prompt.lora.as_ref().map(|lora| lora.name.as_str());
    grid.plain_contents(&tokens, Seed::new(lora, prompt.salt.as_deref()))
}
