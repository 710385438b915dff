//! One schedule, carried out.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use kvtap::proto::v1;
use kvtap::proto::v1::query_service_client::QueryServiceClient;
use kvtap::sim::pool::Prompt;
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::engine::{Engine, Message};
use crate::peer::Peer;
use crate::proxy::Proxy;
use crate::schedule::{Step, World};
use crate::tap::Tap;
use crate::witness::Witness;

/// How long a feed may take to heal once the faults have stopped. It heals in a fraction of that on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long one more message may take to be heard before another is said: first, and at most. Each says more than is known
/// already, so on a machine that is too busy for the first window none would ever be enough.
const WINDOW: (Duration, Duration) = (Duration::from_millis(400), Duration::from_secs(10));

/// How many queries a router asks in a row, and for how long it is silent after them.
const BURST: usize = 16;
const PAUSE: Duration = Duration::from_millis(50);

/// How a feed came to be live in the end, and how long it took from the end of the faults.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub by: Healed,
    pub after: Duration,
    /// Claims that were judged, and lives that the engine had.
    pub claims: u64,
    pub lives: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Healed {
    /// Without help.
    Alone,
    /// Once its engine had cleared the cache.
    ByAClear,
}

pub struct Lab {
    name: String,
    world: World,
    rng: Rng,
    engine: Engine,
    peer: Arc<Peer>,
    live: Proxy,
    replay: Proxy,
    /// The engine's own replay socket, while it is open.
    router: Option<SocketAddr>,
    /// In what was said since the last clear of this life, something can never be had from a replay, or was made to
    /// look so.
    blemished: bool,
    /// The replay holds a number that no engine reaches, for as long as this life lasts.
    poisoned: bool,
    recent: Vec<Message>,
    done: Vec<Step>,
    witness: Arc<Mutex<Witness>>,
    watch: JoinHandle<Result<(), String>>,
    watching: CancellationToken,
    /// Routers that ask all the time.
    _routers: JoinSet<()>,
    tap: Tap,
}

/// How a message leaves the engine.
#[derive(Clone, Copy)]
struct Way {
    copies: usize,
    keep: bool,
}

const HEARD: Way = Way { copies: 1, keep: true };
const LOST: Way = Way { copies: 0, keep: true };
const BURNED: Way = Way { copies: 0, keep: false };
const UNKEPT: Way = Way { copies: 1, keep: false };
const TWICE: Way = Way { copies: 2, keep: true };

impl Lab {
    /// An engine and its tap, as `world` says: a feed of this process, or a server that so many routers burst in on.
    pub async fn new(name: String, world: World, mut rng: Rng, peer: Arc<Peer>, routers: Option<usize>) -> Self {
        let engine = Engine::new(&mut rng);
        let (live, replay) = (Proxy::start().await, Proxy::start().await);
        let tap = if routers.is_some() {
            Tap::server(&name, &world, live.address, replay.address).await
        } else {
            Tap::inside(&name, &world, live.address, replay.address)
        };
        let witness = Witness::new(tap.eye().await, Arc::clone(&engine.truth), Arc::clone(&engine.prompts));
        let witness = Arc::new(Mutex::new(witness));
        let watching = CancellationToken::new();
        // Some are watched without a pause, for what lasts only a moment.
        let pause = if rng.u8(..12) == 0 { Duration::ZERO } else { Duration::from_millis(2) };
        let watch = tokio::spawn(watch(Arc::clone(&witness), pause, watching.clone()));
        if world.bind {
            live.lead_to(Some(tap.listening().await));
        }
        let mut flooding = JoinSet::new();
        if let Tap::Server { client, .. } = &tap {
            for _ in 0..routers.unwrap_or(0) {
                flooding.spawn(ask_in_bursts(client.clone(), Arc::clone(&engine.prompts)));
            }
        }
        let mut lab = Self {
            name,
            world,
            rng,
            engine,
            peer,
            live,
            replay,
            router: None,
            blemished: false,
            poisoned: false,
            recent: Vec::new(),
            done: Vec::new(),
            witness,
            watch,
            watching,
            _routers: flooding,
            tap,
        };
        lab.peer.ask(&format!("limit {} {}", lab.name, world.kept)).await;
        for _ in 0..world.head_start {
            lab.say(LOST);
        }
        lab.open().await;
        lab
    }

    /// Carries out the steps, ends the faults, and waits until the feed is whole.
    ///
    /// # Errors
    /// What was claimed and not true, or did not heal; with all that happened.
    pub async fn run(mut self, steps: Vec<Step>) -> Result<Outcome, String> {
        let ended = self.drive(steps).await;
        self.watching.cancel();
        let watched = (&mut self.watch).await.expect("the witness ends");
        let outcome = match watched.and(ended) {
            Ok(outcome) => Ok(outcome),
            Err(wrong) => {
                let (_, status) = self.witness.lock().await.status().await;
                let (world, done) = (self.world, &self.done);
                Err(format!("{wrong}\n  world: {world:?}\n  steps: {done:?}\n  feed: {status}"))
            }
        };
        self.peer.tell(&format!("close {}", self.name));
        self.tap.stop().await;
        outcome
    }

    async fn drive(&mut self, steps: Vec<Step>) -> Result<Outcome, String> {
        for step in steps {
            if self.watch.is_finished() {
                return Err("stopped".to_owned());
            }
            self.done.push(step);
            self.step(step).await;
        }
        self.heal().await
    }

    /// What one fault does to a feed that is whole: how long it takes from the fault's end, and where the feed needs that from the
    /// engine's next clear on, until the feed is live again with everything. The engine goes on speaking all the while.
    ///
    /// # Errors
    /// As of [`Lab::run`].
    pub async fn heal_from(mut self, fault: &[Step], clears: bool) -> Result<Duration, String> {
        self.until_present().await?;
        for step in fault {
            self.done.push(*step);
            self.step(*step).await;
        }
        let mut ended = Instant::now();
        if clears {
            self.say_some(1, HEARD).await;
            while self.witness.lock().await.status().await.0 != "incomplete" {
                if ended.elapsed() > PATIENCE {
                    return Err("what is missing is not missed".to_owned());
                }
                sleep(Duration::from_millis(5)).await;
            }
            ended = Instant::now();
            self.clear().await;
        }
        let healed = self.until_present().await;
        let after = ended.elapsed();
        self.watching.cancel();
        let watched = (&mut self.watch).await.expect("the witness ends");
        self.peer.tell(&format!("close {}", self.name));
        self.tap.stop().await;
        watched.and(healed).map(|()| after)
    }

    /// Speaks until the feed holds all that was said last, more seldom from time to time: a busy machine needs longer.
    async fn until_present(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        let mut window = Duration::from_millis(20);
        while begun.elapsed() < PATIENCE {
            self.say_some(1, HEARD).await;
            if let Ok(present) = timeout(window, self.present()).await {
                return present;
            }
            window += Duration::from_millis(5);
        }
        let (_, status) = self.witness.lock().await.status().await;
        Err(format!("not healed in time: {status}"))
    }

    // === the engine's side ===

    async fn open(&mut self) {
        let live = if self.world.bind { format!("tcp://{}", self.live.address) } else { "*".to_owned() };
        let (replay, hwm) = (u8::from(self.world.replay), self.world.hwm);
        let ports = self.peer.ask(&format!("open {} {live} {replay} {hwm}", self.name)).await;
        let mut ports =
            ports.split(' ').map(|port| port.parse().ok().map(|port| SocketAddr::from(([127, 0, 0, 1], port))));
        let (live, router) = (ports.next().flatten(), ports.next().flatten());
        if !self.world.bind {
            self.live.lead_to(live);
        }
        self.router = router;
        self.replay.lead_to(router);
    }

    async fn close(&mut self) {
        if !self.world.bind {
            self.live.lead_to(None);
        }
        self.router = None;
        self.replay.lead_to(None);
        self.peer.ask(&format!("close {}", self.name)).await;
    }

    async fn end_life(&mut self) {
        self.close().await;
        self.peer.ask(&format!("forget {}", self.name)).await;
        self.engine.restart();
        self.recent.clear();
        self.blemished = false;
        self.poisoned = false;
    }

    fn say(&mut self, way: Way) {
        let message = self.engine.message();
        self.send(message, way);
    }

    fn send(&mut self, message: Message, way: Way) {
        let Way { copies, keep } = way;
        self.blemished |= !keep;
        self.publish(&message, copies, keep);
        self.recent.push(message);
    }

    fn publish(&self, message: &Message, copies: usize, keep: bool) {
        let hex: String = message.payload.iter().map(|byte| format!("{byte:02x}")).collect();
        let hex = if hex.is_empty() { "-".to_owned() } else { hex };
        self.peer.tell(&format!("say {} {copies} {} {} {hex}", self.name, u8::from(keep), message.sequence));
    }

    async fn clear(&mut self) {
        let message = self.engine.clear();
        self.blemished = false;
        self.send(message, HEARD);
        self.obeyed().await;
    }

    async fn say_some(&mut self, messages: usize, way: Way) {
        for _ in 0..messages {
            self.say(way);
        }
        self.obeyed().await;
    }

    /// Waits until the peer has done all that it was told.
    async fn obeyed(&self) {
        self.peer.ask(&format!("limit {} {}", self.name, self.world.kept)).await;
    }

    // === what happens ===

    async fn step(&mut self, step: Step) {
        match step {
            Step::Say(n) => self.say_some(n, HEARD).await,
            Step::Lose(n) => self.say_some(n, LOST).await,
            Step::Burn(n) => self.say_some(n, BURNED).await,
            Step::SayUnkept(n) => self.say_some(n, UNKEPT).await,
            Step::SayTwice(n) => self.say_some(n, TWICE).await,
            Step::Repeat(back) => {
                if let Some(message) = self.recent.len().checked_sub(back).and_then(|at| self.recent.get(at)) {
                    self.publish(message, 1, false);
                }
            }
            Step::Junk(kind) => {
                let frames = ["-", "- 00 00", "- 0000000000000005 - -"][usize::from(kind)];
                self.peer.ask(&format!("junk {} {frames}", self.name)).await;
            }
            Step::Damaged(damage) => {
                let message = self.engine.damaged(damage);
                self.send(message, HEARD);
                self.blemished = true;
            }
            Step::Clear => self.clear().await,
            Step::Flood(n) => {
                self.live.pause(true);
                self.say_some(n, HEARD).await;
                self.live.pause(false);
            }
            Step::Pause(n) => {
                self.live.pause(true);
                self.say_some(n, HEARD).await;
                self.wait_up_to(40).await;
                self.live.pause(false);
            }
            Step::Freeze(n) => {
                self.live.freeze();
                self.say_some(n, HEARD).await;
                if self.world.bind {
                    // The engine connects, and has no heartbeat: only the system ever tells it.
                    self.wait_up_to(1_000).await;
                    self.live.cut();
                }
            }
            Step::Cut { live, replay } => {
                if live {
                    self.live.cut();
                }
                if replay {
                    self.replay.cut();
                }
            }
            Step::Reopen(unheard) => {
                self.close().await;
                self.say_some(unheard, LOST).await;
                self.open().await;
            }
            Step::Restart { down, frozen, unheard } => {
                if frozen {
                    self.live.freeze();
                }
                let unheard = unheard.unwrap_or_else(|| self.engine.last().map_or(0, |last| last as usize + 3));
                self.end_life().await;
                self.say_some(unheard, LOST).await;
                sleep(down).await;
                self.open().await;
            }
            Step::Away(away) => {
                self.close().await;
                sleep(away).await;
                self.open().await;
            }
            Step::Replays { times, mode, count } => {
                // What looks burned twice is given up for burned.
                self.blemished |= mode == "holes" || mode == "short" || mode == "junk";
                self.peer.ask(&format!("replays {} {times} {mode} {count}", self.name)).await;
            }
            Step::NoReplay(n) => {
                self.replay.lead_to(None);
                self.replay.cut();
                self.say_some(n, HEARD).await;
                self.wait_up_to(100).await;
                self.replay.lead_to(self.router);
            }
            Step::Late(n) => {
                let late: Vec<Message> = (0..n).map(|_| self.engine.message()).collect();
                for message in &late {
                    self.publish(message, 0, true);
                }
                self.say(HEARD);
                for message in late {
                    self.publish(&message, 1, false);
                }
                self.obeyed().await;
            }
            Step::Wild { number, kept } => {
                // What marks the end of a replay cannot be in one.
                let kept = kept && number != u64::MAX;
                let message = Message { sequence: number, payload: self.engine.lie() };
                self.publish(&message, 1, kept);
                self.poisoned |= kept;
                self.obeyed().await;
            }
            Step::ClockBack(seconds) => self.engine.set_clock_back(seconds),
            Step::Wait(wait) => sleep(wait).await,
            Step::Settle => {
                // Whether it does is the schedule's business.
                drop(timeout(Duration::from_millis(400), self.present()).await);
            }
        }
    }

    async fn wait_up_to(&mut self, most: u64) {
        sleep(Duration::from_millis(self.rng.u64(..most))).await;
    }

    // === the end ===

    async fn present(&self) -> Result<(), String> {
        loop {
            let mut witness = self.witness.lock().await;
            let claims = witness.look().await?;
            if witness.is_present(&claims) {
                return Ok(());
            }
            drop(witness);
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends the faults. What is said from now on is heard, and a feed that can know everything must be live with it.
    async fn heal(&mut self) -> Result<Outcome, String> {
        self.live.pause(false);
        self.replay.lead_to(self.router);
        self.peer.ask(&format!("replays {} 0 all 0", self.name)).await;
        let begun = Instant::now();
        // A replay that still holds everything heals alone.
        let kept = self.world.kept == 0 || self.engine.last().is_some_and(|last| last + 200 < self.world.kept as u64);
        let must = self.world.replay && !self.blemished && !self.poisoned && kept;
        let mut by = Healed::Alone;
        let mut window = WINDOW.0;
        loop {
            if begun.elapsed() > PATIENCE {
                return Err(format!("not healed {by:?} in time, must alone: {must}"));
            }
            match by {
                Healed::Alone => self.say_some(1, HEARD).await,
                Healed::ByAClear => {
                    self.clear().await;
                    self.say_some(1, HEARD).await;
                }
            }
            let present = timeout(window, self.present()).await;
            if let Ok(present) = present {
                present?;
                break;
            }
            window = (window * 2).min(WINDOW.1);
            if self.watch.is_finished() {
                return Err("stopped".to_owned());
            }
            let (state, _) = self.witness.lock().await.status().await;
            if !must && state == "incomplete" {
                by = Healed::ByAClear;
            }
        }
        let (claims, lives) = (self.witness.lock().await.claims, self.engine.life() + 1);
        Ok(Outcome { by, after: begun.elapsed(), claims, lives })
    }
}

/// A router that asks as fast as it is answered, burst after burst.
async fn ask_in_bursts(mut client: QueryServiceClient<Channel>, prompts: Arc<[Prompt]>) {
    for (n, prompt) in prompts.iter().cycle().enumerate() {
        if n % BURST == 0 {
            sleep(PAUSE).await;
        }
        let tokens = v1::TokenList { ids: prompt.tokens.clone() };
        let prompt = Some(v1::match_request::Prompt::Tokens(tokens));
        let request = v1::MatchRequest { model: "m".to_owned(), prompt, ..Default::default() };
        client.r#match(request).await.expect("an answer");
    }
}

async fn watch(witness: Arc<Mutex<Witness>>, pause: Duration, watching: CancellationToken) -> Result<(), String> {
    while !watching.is_cancelled() {
        witness.lock().await.look().await?;
        if pause.is_zero() {
            tokio::task::yield_now().await;
        } else {
            sleep(pause).await;
        }
    }
    Ok(())
}
