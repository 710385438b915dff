//! A small seeded workload: conversations under shared system prompts, turn by turn, each answer decoded token by token.

use super::engine::Engine;
use super::event::Lora;
use super::pool::{Prompt, Refused, RequestId};
use super::publisher::PublishError;

/// What the conversations are like. Lengths are means, in tokens: each is drawn between half of it and one and a half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// Different system prompts; conversations share them.
    pub systems: usize,
    /// Length of a system prompt.
    pub system_tokens: usize,
    /// Length of what a user says.
    pub user_tokens: usize,
    /// Length of an answer.
    pub output_tokens: usize,
    /// Turns of a conversation, after which a new one takes its place.
    pub turns: usize,
    /// Conversations that go on at the same time.
    pub conversations: usize,
    /// LoRA adapters; a conversation uses one of them, or none.
    pub adapters: u32,
    /// Tenants with a cache salt of their own; a conversation belongs to one of them, or to none.
    pub tenants: u32,
}

/// A stream of requests. The same seed gives the same stream.
#[derive(Debug)]
pub struct Load {
    profile: Profile,
    rng: fastrand::Rng,
    systems: Vec<Vec<u32>>,
    conversations: Vec<Conversation>,
}

/// A prompt and the answer that will be decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The prompt.
    pub prompt: Prompt,
    /// The answer: its last token is sampled but never computed.
    pub output: Vec<u32>,
}

#[derive(Debug)]
struct Conversation {
    history: Prompt,
    turns_left: usize,
}

/// Runs a load on one engine, several requests at a time.
#[derive(Debug)]
pub struct Driver {
    load: Load,
    concurrency: usize,
    running: Vec<Running>,
    tally: Tally,
}

#[derive(Debug)]
struct Running {
    request: RequestId,
    output: std::vec::IntoIter<u32>,
    left: usize,
}

/// What a driver has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Requests admitted.
    pub requests: u64,
    /// Their prompts' tokens.
    pub prompt_tokens: u64,
    /// Of those, tokens the engine did not compute again.
    pub cached_tokens: u64,
    /// Tokens decoded.
    pub decoded_tokens: u64,
    /// Messages that carried events.
    pub messages: u64,
    /// Requests that would not fit even an idle pool.
    pub refused: u64,
    /// Requests that ended early because the pool was full.
    pub preempted: u64,
}

// === impl Profile ===

impl Default for Profile {
    fn default() -> Self {
        Self {
            systems: 4,
            system_tokens: 256,
            user_tokens: 64,
            output_tokens: 48,
            turns: 6,
            conversations: 16,
            adapters: 0,
            tenants: 0,
        }
    }
}

// === impl Load ===

impl Load {
    /// A stream of requests.
    pub fn new(profile: Profile, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let systems = (0..profile.systems.max(1)).map(|_| text(&mut rng, profile.system_tokens)).collect();
        Self { profile, rng, systems, conversations: Vec::new() }
    }

    /// The next turn of some conversation.
    pub fn request(&mut self) -> Request {
        let slot = self.rng.usize(..self.profile.conversations.max(1));
        while self.conversations.len() <= slot {
            let fresh = self.conversation();
            self.conversations.push(fresh);
        }
        let user = text(&mut self.rng, self.profile.user_tokens);
        let output = text(&mut self.rng, self.profile.output_tokens);
        if self.conversations.get(slot).is_some_and(|conversation| conversation.turns_left == 0) {
            let fresh = self.conversation();
            if let Some(conversation) = self.conversations.get_mut(slot) {
                *conversation = fresh;
            }
        }
        let mut prompt = Prompt::default();
        if let Some(conversation) = self.conversations.get_mut(slot) {
            conversation.turns_left = conversation.turns_left.saturating_sub(1);
            conversation.history.tokens.extend(user);
            prompt = conversation.history.clone();
            conversation.history.tokens.extend(&output);
        }
        Request { prompt, output }
    }

    fn conversation(&mut self) -> Conversation {
        let system = self.rng.usize(..self.systems.len());
        let lora = self.rng.u32(..=self.profile.adapters);
        let tenant = self.rng.u32(..=self.profile.tenants);
        Conversation {
            history: Prompt {
                tokens: self.systems.get(system).cloned().unwrap_or_default(),
                lora: (lora > 0).then(|| Lora { id: u64::from(lora), name: format!("adapter-{lora}") }),
                salt: (tenant > 0).then(|| format!("tenant-{tenant}")),
            },
            turns_left: self.profile.turns.max(1),
        }
    }
}

/// Tokens of a vocabulary of 32,000, around `mean` of them and at least one.
fn text(rng: &mut fastrand::Rng, mean: usize) -> Vec<u32> {
    let length = rng.usize(mean / 2..=mean + mean / 2).max(1);
    (0..length).map(|_| rng.u32(..32_000)).collect()
}

// === impl Driver ===

impl Driver {
    /// A driver that keeps up to `concurrency` requests running.
    pub fn new(load: Load, concurrency: usize) -> Self {
        Self { load, concurrency: concurrency.max(1), running: Vec::new(), tally: Tally::default() }
    }

    /// What has been done so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Whether no request is running.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Admits the next request, letting others end first where there is no room.
    ///
    /// # Errors
    /// What [`Engine::step`] says.
    pub async fn admit(&mut self, engine: &mut Engine) -> Result<(), PublishError> {
        let Request { prompt, output } = self.load.request();
        while self.running.len() >= self.concurrency {
            self.step(engine).await?;
        }
        let length = prompt.tokens.len();
        loop {
            match engine.admit(prompt.clone()) {
                Ok(admitted) => {
                    self.tally.requests += 1;
                    self.tally.prompt_tokens += length as u64;
                    self.tally.cached_tokens += admitted.cached_tokens as u64;
                    let left = output.len().saturating_sub(1);
                    self.running.push(Running { request: admitted.request, output: output.into_iter(), left });
                    return self.publish(engine).await;
                }
                Err(Refused::Full { .. }) if !self.running.is_empty() => self.step(engine).await?,
                Err(_) => {
                    self.tally.refused += 1;
                    return Ok(());
                }
            }
        }
    }

    /// One engine step: every running request decodes one token, and those that are done end.
    ///
    /// # Errors
    /// What [`Engine::step`] says.
    pub async fn step(&mut self, engine: &mut Engine) -> Result<(), PublishError> {
        let tally = &mut self.tally;
        self.running.retain_mut(|running| {
            let token = if running.left == 0 { None } else { running.output.next() };
            let more = match token.map(|token| engine.decode(running.request, token)) {
                Some(Ok(())) => {
                    running.left -= 1;
                    tally.decoded_tokens += 1;
                    running.left > 0
                }
                // A request from before a restart is gone with its engine; one that finds no block is cut short.
                Some(Err(refused)) => {
                    tally.preempted += u64::from(matches!(refused, Refused::Full { .. }));
                    false
                }
                None => false,
            };
            if !more {
                // After a restart there is nothing left to end.
                let _ = engine.finish(running.request);
            }
            more
        });
        self.publish(engine).await
    }

    /// Lets every running request end.
    ///
    /// # Errors
    /// What [`Engine::step`] says.
    pub async fn drain(&mut self, engine: &mut Engine) -> Result<(), PublishError> {
        while !self.is_idle() {
            self.step(engine).await?;
        }
        Ok(())
    }

    async fn publish(&mut self, engine: &mut Engine) -> Result<(), PublishError> {
        if engine.step().await?.is_some() {
            self.tally.messages += 1;
        }
        Ok(())
    }
}
