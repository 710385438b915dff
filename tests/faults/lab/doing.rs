//! What happens in a schedule: the engine speaks, dies and comes back, and each step is carried out.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::Lab;
use crate::engine::Message;
use crate::schedule::Step;

/// How a message leaves the engine.
#[derive(Clone, Copy)]
pub(super) struct Way {
    copies: usize,
    keep: bool,
}

pub(super) const HEARD: Way = Way { copies: 1, keep: true };
pub(super) const LOST: Way = Way { copies: 0, keep: true };
const BURNED: Way = Way { copies: 0, keep: false };
const UNKEPT: Way = Way { copies: 1, keep: false };
const TWICE: Way = Way { copies: 2, keep: true };

impl Lab {
    // === the engine's side ===

    pub(super) async fn open(&mut self) {
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
        self.blemished = self.replays_will_lack().await;
        self.poisoned = false;
    }

    pub(super) fn say(&mut self, way: Way) {
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

    pub(super) async fn clear(&mut self) {
        // Asked before the clear is said: what was answered by then lacks nothing that is later than the clear.
        self.blemished = self.replays_will_lack().await;
        let message = self.engine.clear();
        self.send(message, HEARD);
        self.obeyed().await;
    }

    /// Whether replays that are still to come will lack messages. Whatever is lost on the way until they have come may then look
    /// burned, be it said after a clear or in another life.
    async fn replays_will_lack(&self) -> bool {
        self.tampers && self.peer.ask(&format!("pending {}", self.name)).await != "0"
    }

    pub(super) async fn say_some(&mut self, messages: usize, way: Way) {
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

    pub(super) async fn step(&mut self, step: Step) {
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
                self.tampers = mode == "holes" || mode == "short" || mode == "junk";
                self.blemished |= self.tampers;
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
}
