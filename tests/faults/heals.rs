//! How long a feed takes to heal from one fault, fault by fault.
//!
//! A feed that is whole meets one fault of a network, of a publisher or of an engine; the time runs from the end of the fault until the
//! feed is live again with all that the engine holds. No time is asserted, for that is the machine's: a table is printed.
//! `make heals` does each often; docs/soak.md has what came out.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::engine::Damage;
use crate::lab::Lab;
use crate::number;
use crate::peer::Peer;
use crate::schedule::{Step, World};

/// How often each fault is met where nothing else is asked for.
const TIMES: u64 = 2;

/// How many labs run at once.
const AT_ONCE: usize = 4;

/// What the laboratory's feeds are configured to wait for, in milliseconds: the heartbeat's interval and timeout, before a link that
/// is silent is given up; the pause before another attempt to connect; the silence after which a replay is given up, and the
/// pause before the next.
const HEARTBEAT: u64 = 200 + 1500;
const RECONNECT: u64 = 50;
const REPLAY: u64 = 600;
const RETRY: u64 = 100;

/// One fault.
#[derive(Clone, Debug)]
struct Fault {
    what: &'static str,
    steps: Vec<Step>,
    world: World,
    /// How long it may wait by configuration, in milliseconds.
    configured: u64,
    /// Nobody can give back what is missing: the time runs from the engine's next clear.
    clears: bool,
}

// === impl Fault ===

impl Fault {
    fn new(what: &'static str, configured: u64, steps: &[Step]) -> Self {
        Self { what, steps: steps.to_vec(), world: World::HEALTHY, configured, clears: false }
    }

    fn within(self, world: World) -> Self {
        Self { world, ..self }
    }

    fn all() -> Vec<Self> {
        let (now, soon) = (Duration::ZERO, Duration::from_millis(300));
        let restart = |down, frozen, unheard| Step::Restart { down, frozen, unheard: Some(unheard) };
        let replays = |mode, count| Step::Replays { times: 1, mode, count };
        let cut = |live, replay| Step::Cut { live, replay };
        let healthy = World::HEALTHY;
        let mut faults = vec![
            Self::new("one message is lost on the way", 0, &[Step::Lose(1)]),
            Self::new("forty messages are lost on the way", 0, &[Step::Lose(40)]),
            Self::new("three messages leave late", 0, &[Step::Late(3)]),
            Self::new("each of three messages comes twice", 0, &[Step::SayTwice(3)]),
            Self::new("a message of wrong frames", 0, &[Step::Junk(1)]),
            Self::new(
                "a message under a number that no engine reaches",
                0,
                &[Step::Wild { number: 1 << 63, kept: false }],
            ),
            Self::new(
                "the engine's clock jumps back, and a message is lost",
                0,
                &[Step::ClockBack(1e5), Step::Lose(1)],
            ),
            Self::new("the link stalls for twenty messages", 0, &[Step::Pause(20)]),
            Self::new("the link is cut", RECONNECT, &[cut(true, false)]),
            Self::new("link and replay are cut", RECONNECT, &[cut(true, true)]),
            Self::new("the link is half-open", HEARTBEAT + RECONNECT, &[Step::Freeze(10)]),
            Self::new("the engine's sockets close and open, five messages unheard", RECONNECT, &[Step::Reopen(5)]),
            Self::new("the engine restarts at once", RECONNECT, &[restart(now, false, 0)]),
            Self::new("the engine is away for 300 ms, five messages unheard", RECONNECT, &[restart(soon, false, 5)]),
            Self::new("the engine restarts behind a half-open link", HEARTBEAT + RECONNECT, &[restart(now, true, 5)]),
            Self::new(
                "a lost message, and the replay says nothing",
                REPLAY + RETRY,
                &[replays("mute", 0), Step::Lose(3)],
            ),
            Self::new("a lost message, and the replay breaks off", REPLAY + RETRY, &[replays("cut", 1), Step::Lose(3)]),
            Self::new(
                "a lost message, and the replay has no end",
                REPLAY + RETRY,
                &[replays("noend", 0), Step::Lose(3)],
            ),
            Self::new("lost messages, and the replay has holes", RETRY, &[replays("holes", 2), Step::Lose(6)]),
            Self::new("a lost message, and the replay endpoint is dead", RETRY, &[Step::Lose(3), Step::NoReplay(5)]),
        ];
        // The engine's replay socket holds a thousand replies: of more it may drop the end, which is waited for.
        faults.push(
            Self::new("more than the publisher's socket holds", REPLAY + RETRY, &[Step::Flood(1_500)])
                .within(World { hwm: 10, ..healthy }),
        );
        faults.push(
            Self::new("more than kvtap's queue holds", REPLAY + RETRY, &[Step::Flood(1_500)])
                .within(World { queue: 8, ..healthy }),
        );
        faults.push(
            Self::new("the engine is away beyond the grace", RECONNECT, &[Step::Away(Duration::from_millis(400))])
                .within(World { grace: Some(Duration::from_millis(150)), ..healthy }),
        );
        faults.push(
            Self::new("the engine connects, and restarts", RECONNECT, &[restart(now, false, 0)])
                .within(World { bind: true, ..healthy }),
        );
        let never = [
            Self::new("a message that cannot be read; then a clear", 0, &[Step::Damaged(Damage::Truncated)]),
            Self::new("a message that nobody has; then a clear", 0, &[Step::Burn(1)]),
        ];
        faults.extend(never.map(|fault| Self { clears: true, ..fault }));
        faults
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_feed_heals_from_any_single_fault() {
    let times = number("KVTAP_FAULT_HEALS").unwrap_or(TIMES);
    let peer = Arc::new(Peer::start());
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let mut rows: Vec<(Fault, Vec<Duration>)> = Vec::new();
    let mut wrong = Vec::new();
    for (n, fault) in Fault::all().into_iter().enumerate() {
        let mut running = JoinSet::new();
        for seed in 0..times {
            let (peer, room, fault) = (Arc::clone(&peer), Arc::clone(&room), fault.clone());
            running.spawn(async move {
                let _place = room.acquire_owned().await.expect("never closed");
                let rng = Rng::with_seed(seed);
                let lab = Lab::new(format!("h{n}-{seed}"), fault.world, rng, peer, None).await;
                lab.heal_from(&fault.steps, fault.clears)
                    .await
                    .map_err(|error| format!("{}: seed {seed}: {error}", fault.what))
            });
        }
        let mut healed = Vec::new();
        for outcome in running.join_all().await {
            match outcome {
                Ok(after) => healed.push(after),
                Err(error) => wrong.push(error),
            }
        }
        healed.sort_unstable();
        rows.push((fault, healed));
    }
    println!("| fault | times | configured wait | median | 99 % | slowest |\n|---|---|---|---|---|---|");
    for (fault, healed) in &rows {
        let at =
            |share: usize| healed.get((healed.len().saturating_sub(1)) * share / 100).map_or(0, Duration::as_millis);
        let (what, configured) = (fault.what, fault.configured);
        println!("| {what} | {} | {configured} ms | {} ms | {} ms | {} ms |", healed.len(), at(50), at(99), at(100));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
