//! One schedule, carried out.

mod doing;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use self::doing::{HEARD, LOST};
use crate::engine::{Engine, Message};
use crate::peer::Peer;
use crate::proxy::Proxy;
use crate::routers::Routers;
use crate::schedule::{Step, World};
use crate::tap::Tap;
use crate::witness::Witness;

/// How long a feed may take to heal once the faults have stopped. It heals in a fraction of that on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long one more message may take to be heard before another is said: first, and at most. Each says more than is known
/// already, so on a machine that is too busy for the first window none would ever be enough.
const WINDOW: (Duration, Duration) = (Duration::from_millis(400), Duration::from_secs(10));

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
    /// The replays that were ordered last lack messages.
    tampers: bool,
    /// The replay holds a number that no engine reaches, for as long as this life lasts.
    poisoned: bool,
    recent: Vec<Message>,
    done: Vec<Step>,
    witness: Arc<Mutex<Witness>>,
    watch: JoinHandle<Result<(), String>>,
    watching: CancellationToken,
    routers: Routers,
    tap: Tap,
}

// === impl Lab ===

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
        let asking = match &tap {
            Tap::Server { client, .. } => Routers::begin(routers.unwrap_or(0), client, &engine.prompts),
            Tap::Inside { .. } => Routers::default(),
        };
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
            tampers: false,
            poisoned: false,
            recent: Vec::new(),
            done: Vec::new(),
            witness,
            watch,
            watching,
            routers: asking,
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
        self.end(ended).await
    }

    /// The same up to a state that faults leave the feed in for good: then it waits for that before the faults end.
    ///
    /// # Errors
    /// The same, and that the feed does not come to that state.
    pub async fn run_until(mut self, steps: &[Step], state: &str) -> Result<Outcome, String> {
        for step in steps {
            self.done.push(*step);
            self.step(*step).await;
        }
        let ended = match self.until_state(state).await {
            Ok(()) => self.heal().await,
            Err(wrong) => Err(wrong),
        };
        self.end(ended).await
    }

    /// Nobody watches, asks or speaks any more. What was wrong comes with all that happened.
    async fn end<T>(mut self, ended: Result<T, String>) -> Result<T, String> {
        self.watching.cancel();
        let watched = (&mut self.watch).await.unwrap_or_else(|panic| Err(format!("the witness ended: {panic}")));
        // Before the server goes: they are to be answered for as long as they ask.
        let asked = self.routers.end().await;
        let outcome = match watched.and(asked).and(ended) {
            Ok(outcome) => Ok(outcome),
            Err(wrong) => {
                let (_, status) = self.witness.lock().await.status().await;
                let (world, done) = (self.world, &self.done);
                Err(format!("{wrong}\n  world: {world:?}\n  steps: {done:?}\n  feed: {status}"))
            }
        };
        self.peer.tell(&format!("close {}", self.name));
        let stopped = self.tap.stop().await;
        outcome.and_then(|outcome| stopped.map(|()| outcome))
    }

    /// Whether a judge of the schedule has ended before it: no more of it is of use.
    fn is_over(&mut self) -> bool {
        self.watch.is_finished() || self.routers.have_failed()
    }

    async fn drive(&mut self, steps: Vec<Step>) -> Result<Outcome, String> {
        for step in steps {
            if self.is_over() {
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
            self.until_state("incomplete").await?;
            ended = Instant::now();
            self.clear().await;
        }
        let healed = self.until_present().await;
        let after = ended.elapsed();
        self.end(healed.map(|()| after)).await
    }

    /// Waits until the feed says that it is in this state.
    async fn until_state(&mut self, state: &str) -> Result<(), String> {
        let begun = Instant::now();
        while self.witness.lock().await.status().await.0 != state {
            if begun.elapsed() > PATIENCE {
                return Err(format!("it is not {state} in time"));
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
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
                    // A publisher whose socket holds one message drops the next one until that is gone.
                    if let Ok(present) = timeout(window, self.present()).await {
                        present?;
                    }
                    self.say_some(1, HEARD).await;
                }
            }
            let present = timeout(window, self.present()).await;
            if let Ok(present) = present {
                present?;
                break;
            }
            window = (window * 2).min(WINDOW.1);
            if self.is_over() {
                return Err("stopped".to_owned());
            }
            let (state, status) = self.witness.lock().await.status().await;
            println!("{}, {:?} after the faults, {by:?}: {status}", self.name, begun.elapsed());
            if !must && state == "incomplete" {
                by = Healed::ByAClear;
            }
        }
        let (claims, lives) = (self.witness.lock().await.claims, self.engine.life() + 1);
        Ok(Outcome { by, after: begun.elapsed(), claims, lives })
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
