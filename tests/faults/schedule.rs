//! What befalls one feed: everything follows from one number.

use std::time::Duration;

use fastrand::Rng;

use crate::engine::Damage;

/// What a feed is like, for the whole of a schedule.
#[derive(Clone, Copy, Debug)]
pub struct World {
    /// It has a replay endpoint.
    pub replay: bool,
    /// kvtap binds, and the engine connects.
    pub bind: bool,
    /// The engine keeps so many messages for replays; 0: all.
    pub kept: usize,
    /// Messages that the publisher's socket holds for a slow reader.
    pub hwm: u32,
    /// Messages that kvtap's queue holds.
    pub queue: usize,
    /// Messages that wait for a recovery.
    pub waiting: usize,
    /// After what absence blocks are withdrawn.
    pub grace: Option<Duration>,
    /// How many messages the engine has published before anybody listens.
    pub head_start: usize,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// So many messages, as they should be.
    Say(usize),
    /// So many more than any buffer holds, while the link is held up.
    Flood(usize),
    /// Lost on the way, there in the replay.
    Lose(usize),
    /// Lost on the way and in the replay: a number that is burned.
    Burn(usize),
    /// Heard, and missing in the replay.
    SayUnkept(usize),
    /// Each twice.
    SayTwice(usize),
    /// The same as some messages ago, once more.
    Repeat(usize),
    /// A message of wrong frames.
    Junk(u8),
    /// A message that cannot be read.
    Damaged(Damage),
    /// The cache is cleared.
    Clear,
    /// The link is held up, and so many messages later goes on.
    Pause(usize),
    /// The link is half-open; so many messages go nowhere.
    Freeze(usize),
    /// Link, or replay, or both are closed.
    Cut {
        /// The link.
        live: bool,
        /// Replays that run.
        replay: bool,
    },
    /// The engine closes its sockets and opens them again; it says so many messages in between.
    Reopen(usize),
    /// A new process.
    Restart {
        /// Nobody listens for so long.
        down: Duration,
        /// The old connections stay, half-open.
        frozen: bool,
        /// It says so many messages before anybody can hear them; `None`: as many as the old one, and a few more.
        unheard: Option<usize>,
    },
    /// The engine is away for so long, and comes back as it was.
    Away(Duration),
    /// The next replays are answered in this way.
    Replays {
        /// How many.
        times: usize,
        /// A mode of the peer's.
        mode: &'static str,
        /// What the mode counts.
        count: usize,
    },
    /// The replay endpoint is dead for so many messages.
    NoReplay(usize),
    /// So many messages leave after the one that follows them; the replay has them in their order.
    Late(usize),
    /// A lie under a number that no engine reaches.
    Wild {
        /// The number.
        number: u64,
        /// The replay has it too.
        kept: bool,
    },
    /// The engine's clock jumps back by so many seconds.
    ClockBack(f64),
    /// Nothing.
    Wait(Duration),
    /// Until kvtap has caught up, if it does.
    Settle,
}

// === impl World ===

impl World {
    /// Where nothing is small, and nothing missing.
    pub const HEALTHY: Self = Self {
        replay: true,
        bind: false,
        kept: 0,
        hwm: 0,
        queue: 1 << 16,
        waiting: 1 << 14,
        grace: Some(Duration::from_secs(30)),
        head_start: 0,
    };

    pub fn new(rng: &mut Rng) -> Self {
        let one_in = |rng: &mut Rng, n: u32| rng.u32(..n) == 0;
        Self {
            replay: !one_in(rng, 5),
            bind: one_in(rng, 6),
            kept: if one_in(rng, 4) { rng.usize(1..60) } else { 0 },
            hwm: if one_in(rng, 3) { rng.u32(1..20) } else { 0 },
            queue: if one_in(rng, 5) { rng.usize(1..10) } else { 1 << 16 },
            waiting: if one_in(rng, 5) { rng.usize(1..10) } else { 1 << 14 },
            grace: [None, Some(Duration::from_millis(150)), Some(Duration::from_secs(30))][rng.usize(..3)],
            head_start: if rng.bool() { 0 } else { rng.usize(1..30) },
        }
    }

    /// What happens in it.
    pub fn steps(&self, rng: &mut Rng) -> Vec<Step> {
        let count = rng.usize(8..36);
        (0..count).map(|_| step(rng)).collect()
    }

    /// The same with stranger things among them, in two schedules of three. They have dice of their own, so that the other steps
    /// of a seed are what they were before there were such things.
    pub fn with_strange(steps: Vec<Step>, seed: u64) -> Vec<Step> {
        let mut rng = Rng::with_seed(!seed);
        let mut steps = steps;
        for _ in 0..[0, 1, 3][rng.usize(..3)] {
            let strange = match rng.u32(..5) {
                0 | 1 => Step::Late(rng.usize(1..4)),
                2 | 3 => {
                    let number = [1 << 63, u64::MAX - 1, u64::MAX, (1 << 40) + rng.u64(..1000)][rng.usize(..4)];
                    Step::Wild { number, kept: rng.u32(..4) == 0 }
                }
                _ => Step::ClockBack(rng.f64() * 1e6),
            };
            steps.insert(rng.usize(..=steps.len()), strange);
        }
        steps
    }
}

fn step(rng: &mut Rng) -> Step {
    let few = rng.usize(1..6);
    match rng.u32(..100) {
        0..25 => Step::Say(rng.usize(1..12)),
        25..30 => Step::Wait(Duration::from_millis(rng.u64(1..60))),
        30..38 => Step::Settle,
        38..45 => Step::Lose(few),
        45..47 => Step::Burn(few),
        47..49 => Step::SayUnkept(few),
        49..51 => Step::SayTwice(few),
        51..53 => Step::Repeat(rng.usize(1..8)),
        53..54 => Step::Junk(rng.u8(..3)),
        54..56 => Step::Damaged([Damage::Truncated, Damage::Garbage, Damage::OneEvent][rng.usize(..3)]),
        56..60 => Step::Clear,
        60..61 => Step::Flood(rng.usize(200..1_500)),
        61..66 => Step::Pause(rng.usize(1..30)),
        66..69 => Step::Freeze(rng.usize(1..20)),
        69..75 => {
            let (live, replay) = [(true, false), (false, true), (true, true)][rng.usize(..3)];
            Step::Cut { live, replay }
        }
        75..78 => Step::Reopen(rng.usize(..6)),
        78..86 => Step::Restart {
            down: Duration::from_millis(if rng.bool() { 0 } else { rng.u64(..300) }),
            frozen: rng.u32(..4) == 0,
            unheard: [Some(0), Some(rng.usize(..10)), None][rng.usize(..3)],
        },
        86..89 => Step::Away(Duration::from_millis(rng.u64(..400))),
        89..97 => {
            let (mode, count) = [
                ("mute", 0),
                ("noend", 0),
                ("short", rng.usize(..20)),
                ("cut", rng.usize(..20)),
                ("holes", rng.usize(2..12)),
                ("slow", rng.usize(1..8)),
                ("junk", 0),
            ][rng.usize(..7)];
            Step::Replays { times: rng.usize(1..5), mode, count }
        }
        _ => Step::NoReplay(rng.usize(1..10)),
    }
}
