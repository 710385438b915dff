//! The block pool, with vLLM's policy: prefix caching, reference counts, LRU eviction, physical copies.
//!
//! What the pool does, and where vLLM does it (`BlockPool`, `KVCacheManager`, releases 0.9 to 0.33):
//!
//! * A prompt takes the longest run of leading blocks that are held, but never its last token: of `n` tokens at
//!   most `(n - 1) / block_size` blocks are taken, so that a prompt of exactly k held blocks computes the last again.
//! * What is computed gets blocks from the head of the free queue. A block that still carries a name is evicted by that
//!   (`BlockRemoved`, one event a block). A full block is named at once (`BlockStored`, one event a prompt, one a decoded block).
//! * Content that is computed twice lies twice: two blocks carry one name, each stored once and removed once.
//! * A request that ends gives its blocks back last block first, so that the tail of a prompt is evicted before its head. They
//!   stay named, and nothing is announced.
//! * Resetting the cache works only while no request runs.

mod hashing;

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;

use super::event::{Event, KIND, Lora, MEDIUM, Name, Removed, Stored};

pub use hashing::HashForm;
use hashing::{Chain, Digest};

/// How a pool is built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Physical blocks, vLLM's `num_gpu_blocks`. One of them is its null block and never holds anything.
    pub blocks: u32,
    /// Tokens a block.
    pub block_size: NonZeroUsize,
    /// How names go on the wire.
    pub hash_form: HashForm,
}

/// A prompt and what makes equal tokens not interchangeable.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Prompt {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The adapter it runs under.
    pub lora: Option<Lora>,
    /// The cache salt it was sent with.
    pub salt: Option<String>,
}

/// A running request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RequestId(u64);

/// What admitting a prompt came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Admitted {
    /// The request, running until it is finished.
    pub request: RequestId,
    /// Leading tokens that were not computed again: the engine's own `num_cached_tokens`.
    pub cached_tokens: usize,
}

/// Why a pool refuses. Nothing has changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// Not enough blocks are free: a real engine queues the request, or preempts another.
    #[error("{needed} blocks are needed and {free} are free")]
    Full {
        /// Blocks the request needs.
        needed: usize,
        /// Blocks that no request uses.
        free: usize,
    },
    /// A prompt without tokens.
    #[error("the prompt has no tokens")]
    Empty,
    /// The request has ended, or never was.
    #[error("no such request is running")]
    NoRequest,
}

/// The pool of one rank.
#[derive(Debug)]
pub struct Pool {
    shape: Shape,
    chain: Chain,
    blocks: Vec<Block>,
    /// Free blocks by the ticket they drew when they became free: the least recently used first.
    free: BTreeMap<u64, usize>,
    next_ticket: u64,
    /// Named blocks by name; of several copies the oldest is taken first.
    cached: HashMap<Digest, Vec<usize>>,
    running: HashMap<RequestId, Running>,
    next_request: u64,
    events: Vec<Event>,
}

#[derive(Debug, Default)]
struct Block {
    name: Option<Digest>,
    users: u32,
    /// Its place in the free queue while nobody uses it.
    ticket: Option<u64>,
}

#[derive(Debug)]
struct Running {
    prompt: Prompt,
    names: Vec<Digest>,
    table: Vec<usize>,
}

// === impl Pool ===

impl Pool {
    /// An empty pool. `root` seeds every name: pools with different roots call the same tokens differently.
    pub fn new(shape: Shape, root: u128) -> Self {
        let usable = shape.blocks.saturating_sub(1) as usize;
        let mut pool = Self {
            shape,
            chain: Chain::new(root),
            blocks: Vec::new(),
            free: BTreeMap::new(),
            next_ticket: 0,
            cached: HashMap::new(),
            running: HashMap::new(),
            next_request: 0,
            events: Vec::new(),
        };
        for block in 0..usable {
            pool.blocks.push(Block::default());
            pool.release(block);
        }
        pool
    }

    /// The empty pool of a new process after this one. Requests of the old life are none of the new one's.
    pub fn reborn(&self, root: u128) -> Self {
        Self { next_request: self.next_request, ..Self::new(self.shape, root) }
    }

    /// How the pool was built.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Computes a prompt, and reports how much of it was held before.
    ///
    /// # Errors
    /// [`Refused::Empty`], [`Refused::Full`].
    pub fn admit(&mut self, prompt: Prompt) -> Result<Admitted, Refused> {
        let size = self.shape.block_size.get();
        let Some(most) = prompt.tokens.len().checked_sub(1).map(|tokens| tokens / size) else {
            return Err(Refused::Empty);
        };
        let names = self.chain.names(&prompt, size);
        let taken: Vec<usize> = names.iter().take(most).map_while(|name| self.oldest_copy(name)).collect();

        let needed = prompt.tokens.len().div_ceil(size) - taken.len();
        let idle = taken.iter().filter(|block| self.is_free(**block)).count();
        let free = self.free.len() - idle;
        if needed > free {
            return Err(Refused::Full { needed, free });
        }
        let held = taken.len();
        let mut table = taken;
        for block in &table {
            self.retain(*block);
        }
        for _ in 0..needed {
            table.extend(self.take_free());
        }
        let request = RequestId(self.next_request);
        self.next_request += 1;
        let running = Running { prompt, names, table };
        self.store(&running, held);
        self.running.insert(request, running);
        Ok(Admitted { request, cached_tokens: held * size })
    }

    /// Computes one more token of a running request: the one it sampled last.
    ///
    /// A request that samples m tokens computes m - 1 of them: nobody needs the last one's cache.
    ///
    /// # Errors
    /// [`Refused::NoRequest`]; [`Refused::Full`] where the token needs a block and none is free.
    pub fn decode(&mut self, request: RequestId, token: u32) -> Result<(), Refused> {
        let size = self.shape.block_size.get();
        let mut running = self.running.remove(&request).ok_or(Refused::NoRequest)?;
        let done = self.decode_into(&mut running, token, size);
        self.running.insert(request, running);
        done
    }

    fn decode_into(&mut self, running: &mut Running, token: u32, size: usize) -> Result<(), Refused> {
        if running.prompt.tokens.len() == running.table.len() * size {
            let block = self.take_free().ok_or(Refused::Full { needed: 1, free: 0 })?;
            running.table.push(block);
        }
        running.prompt.tokens.push(token);
        if running.prompt.tokens.len().is_multiple_of(size) {
            let held = running.names.len();
            let parent = running.names.last().copied();
            let block = running.prompt.tokens.get(held * size..).unwrap_or_default();
            running.names.push(self.chain.name(parent, block, &running.prompt));
            self.store(running, held);
        }
        Ok(())
    }

    /// Ends a request: its blocks are free, its tail first in line for eviction, and stay cached.
    ///
    /// # Errors
    /// [`Refused::NoRequest`].
    pub fn finish(&mut self, request: RequestId) -> Result<(), Refused> {
        let running = self.running.remove(&request).ok_or(Refused::NoRequest)?;
        for block in running.table.into_iter().rev() {
            let Some(state) = self.blocks.get_mut(block) else { continue };
            state.users = state.users.saturating_sub(1);
            if state.users == 0 {
                self.release(block);
            }
        }
        Ok(())
    }

    /// Forgets everything that is cached. Does nothing, and says so, while a request runs.
    ///
    /// The `AllBlocksCleared` leaves with the next step, as an engine's does.
    pub fn reset_prefix_cache(&mut self) -> bool {
        if !self.running.is_empty() {
            return false;
        }
        self.cached.clear();
        for block in &mut self.blocks {
            block.name = None;
        }
        self.events.push(Event::Cleared);
        true
    }

    /// The events since the last step, in the order in which things happened.
    pub fn step(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    // === the oracle: what is held now ===

    /// How many leading blocks of a prompt are held.
    pub fn leading_blocks(&self, prompt: &Prompt) -> usize {
        let names = self.chain.names(prompt, self.shape.block_size.get());
        names.iter().take_while(|name| self.cached.contains_key(name)).count()
    }

    /// What [`Pool::admit`] would report as cached for this prompt now.
    pub fn cached_tokens(&self, prompt: &Prompt) -> usize {
        let size = self.shape.block_size.get();
        let most = prompt.tokens.len().saturating_sub(1) / size;
        self.leading_blocks(prompt).min(most) * size
    }

    /// Every name that is held, with its number of physical copies.
    pub fn copies(&self) -> BTreeMap<Name, usize> {
        self.cached.iter().map(|(name, blocks)| (name.on_wire(self.shape.hash_form), blocks.len())).collect()
    }

    /// Running requests.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    // === blocks ===

    fn oldest_copy(&self, name: &Digest) -> Option<usize> {
        self.cached.get(name).and_then(|blocks| blocks.first()).copied()
    }

    fn is_free(&self, block: usize) -> bool {
        self.blocks.get(block).is_some_and(|block| block.ticket.is_some())
    }

    /// One user more: a free block leaves the queue.
    fn retain(&mut self, block: usize) {
        let Some(state) = self.blocks.get_mut(block) else { return };
        state.users += 1;
        if let Some(ticket) = state.ticket.take() {
            self.free.remove(&ticket);
        }
    }

    /// To the end of the free queue.
    fn release(&mut self, block: usize) {
        let Some(state) = self.blocks.get_mut(block) else { return };
        state.ticket = Some(self.next_ticket);
        self.free.insert(self.next_ticket, block);
        self.next_ticket += 1;
    }

    /// The least recently used free block, evicted from the cache if it was there.
    fn take_free(&mut self) -> Option<usize> {
        let (_, block) = self.free.pop_first()?;
        let state = self.blocks.get_mut(block)?;
        state.ticket = None;
        state.users = 1;
        if let Some(name) = state.name.take() {
            if let Some(copies) = self.cached.get_mut(&name) {
                copies.retain(|copy| *copy != block);
                if copies.is_empty() {
                    self.cached.remove(&name);
                }
            }
            self.events.push(Event::Removed(Removed {
                names: vec![name.on_wire(self.shape.hash_form)],
                medium: Some(MEDIUM.to_owned()),
                group: Some(0),
            }));
        }
        Some(block)
    }

    /// Names and announces the full blocks of a request from block `first` on.
    fn store(&mut self, running: &Running, first: usize) {
        let size = self.shape.block_size.get();
        let form = self.shape.hash_form;
        let names = running.names.get(first..).unwrap_or_default();
        if names.is_empty() {
            return;
        }
        for (name, block) in names.iter().zip(running.table.iter().skip(first)) {
            if let Some(state) = self.blocks.get_mut(*block) {
                state.name = Some(*name);
            }
            self.cached.entry(*name).or_default().push(*block);
        }
        let last = running.names.len();
        self.events.push(Event::Stored(Stored {
            names: names.iter().map(|name| name.on_wire(form)).collect(),
            parent: first.checked_sub(1).and_then(|parent| running.names.get(parent)).map(|name| name.on_wire(form)),
            tokens: running.prompt.tokens.get(first * size..last * size).unwrap_or_default().to_vec(),
            block_size: size as u32,
            lora: running.prompt.lora.clone(),
            medium: Some(MEDIUM.to_owned()),
            extra_keys: Some((first..last).map(|block| hashing::extra_keys(&running.prompt, block)).collect()),
            group: Some(0),
            kind: Some(KIND.to_owned()),
            window: None,
        }));
    }
}
