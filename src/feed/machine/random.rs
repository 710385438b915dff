//! The machine against a model publisher: thousands of seeded schedules with everything that goes wrong.
//!
//! The model knows what was published in which life. What the machine promises is checked after every step.

use std::collections::VecDeque;

use fastrand::Rng;

use super::{Cause, Command, Digest, Failure, Input, Limits, Machine, Message, Past, Timer, Why};
use crate::feed::status::State;
use crate::worker::Stamp;

/// What a message really is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Truth {
    life: u64,
    sequence: u64,
    clears: bool,
}

#[derive(Clone, Debug)]
enum OnLink {
    Up,
    Down,
    Lost,
    Message(Truth),
}

/// What goes wrong, in percent of the steps or messages it can go wrong in.
#[derive(Clone, Debug)]
struct Faults {
    link_drops: u32,
    replay_drops: u32,
    replay_fails: u32,
    /// Replays that begin at 0, whatever was asked.
    rewinds: u32,
    burns: u32,
    restarts: u32,
    /// Restarts behind a proxy: the link never breaks.
    hidden_restarts: u32,
    breaks: u32,
    overflows: u32,
    doubles: u32,
    clears: u32,
    /// Restarts of the machine, from some snapshot.
    resumes: u32,
    kept: usize,
    endpoint: bool,
}

struct World {
    rng: Rng,
    faults: Faults,
    life: u64,
    next: u64,
    kept: VecDeque<Truth>,
    /// Every message that was published, by life.
    published: Vec<Vec<u64>>,
    up: bool,
    /// The link's newest message: a hidden restart that goes on exactly there could be noticed by nobody.
    newest: Option<Truth>,
    link: VecDeque<OnLink>,
    asked: Option<u64>,
    replay: VecDeque<Option<Truth>>,
    answering: bool,
    machine: Machine<Truth>,
    commands: VecDeque<Command<Truth>>,
    /// What was applied in this epoch, in order.
    applied: Vec<Truth>,
    epoch: u64,
    state: (State, Why),
    timers: Vec<Timer>,
    asks: u64,
    limits: Limits,
    /// What a machine could go on from at some time, with what was applied then.
    pasts: Vec<(Past, Vec<Truth>)>,
    resumed: u64,
    /// The last inputs, shown when a schedule fails.
    trace: VecDeque<Input<Truth>>,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for input in &self.trace {
                eprintln!("{input:?}");
            }
            eprintln!("{:?}", self.machine);
        }
    }
}

impl World {
    fn new(seed: u64, faults: Faults) -> Self {
        let mut rng = Rng::with_seed(seed);
        let limits = Limits { messages: rng.usize(2..40), bytes: 1 << 20 };
        let machine = Machine::new(faults.endpoint, limits);
        Self {
            rng,
            faults,
            life: 0,
            next: 0,
            kept: VecDeque::new(),
            published: vec![Vec::new()],
            up: false,
            newest: None,
            link: VecDeque::new(),
            asked: None,
            replay: VecDeque::new(),
            answering: false,
            machine,
            commands: VecDeque::new(),
            applied: Vec::new(),
            epoch: 0,
            state: (State::Connecting, Why::NeverConnected),
            timers: Vec::new(),
            asks: 0,
            limits,
            pasts: Vec::new(),
            resumed: 0,
            trace: VecDeque::new(),
        }
    }

    fn percent(&mut self, chance: u32) -> bool {
        self.rng.u32(0..100) < chance
    }

    fn publish(&mut self) {
        let truth = Truth { life: self.life, sequence: self.next, clears: self.percent(self.faults.clears) };
        self.next += 1;
        if self.percent(self.faults.burns) {
            return;
        }
        self.published[self.life as usize].push(truth.sequence);
        self.kept.push_back(truth);
        if self.kept.len() > self.faults.kept {
            self.kept.pop_front();
        }
        let unnoticeable =
            self.newest.is_some_and(|newest| newest.life != self.life && newest.sequence + 1 == truth.sequence);
        if !self.up || unnoticeable || self.percent(self.faults.link_drops) {
            return;
        }
        if self.percent(self.faults.overflows) {
            self.link.push_back(OnLink::Lost);
            return;
        }
        self.newest = Some(truth);
        self.link.push_back(OnLink::Message(truth));
        if self.percent(self.faults.doubles) {
            self.link.push_back(OnLink::Message(truth));
        }
    }

    fn break_link(&mut self) {
        if self.up {
            self.up = false;
            self.link.push_back(OnLink::Down);
        }
    }

    fn connect(&mut self) {
        if !self.up {
            self.up = true;
            self.newest = None;
            self.link.push_back(OnLink::Up);
        }
    }

    fn restart(&mut self) {
        self.life += 1;
        self.next = 0;
        self.kept.clear();
        self.published.push(Vec::new());
        if !self.replay.is_empty() || self.asked.is_some() {
            // Some of the answer is on its way already; then the socket breaks.
            self.replay.truncate(self.rng.usize(0..=self.replay.len()));
            self.answering = self.asked.take().is_some() || self.answering;
        }
    }

    fn serve(&mut self) {
        let Some(from) = self.asked.take() else { return };
        self.answering = true;
        let from = if self.percent(self.faults.rewinds) { 0 } else { from };
        let replies: Vec<_> = self.kept.iter().filter(|truth| truth.sequence >= from).copied().collect();
        for (n, truth) in replies.into_iter().enumerate() {
            // A server drops replies when its pipe is full, which it is not at first.
            if n < 3 || !self.percent(self.faults.replay_drops) {
                self.replay.push_back(Some(truth));
            }
        }
        if self.percent(self.faults.replay_fails) {
            self.replay.truncate(self.rng.usize(0..=self.replay.len()));
        } else {
            self.replay.push_back(None);
        }
    }

    fn hear_link(&mut self) {
        let Some(event) = self.link.pop_front() else { return };
        self.input(match event {
            OnLink::Up => Input::Connected,
            OnLink::Down => Input::Disconnected,
            OnLink::Lost => Input::Lost,
            OnLink::Message(truth) => Input::Live(message(truth)),
        });
    }

    fn hear_replay(&mut self) {
        if !self.answering {
            return;
        }
        match self.replay.pop_front() {
            Some(Some(truth)) => self.input(Input::Replayed(message(truth))),
            Some(None) => {
                self.answering = false;
                self.input(Input::ReplayEnded);
            }
            None => {
                self.answering = false;
                let failure = if self.rng.bool() { Failure::Timeout } else { Failure::Broken };
                self.input(Input::ReplayFailed(failure));
            }
        }
    }

    fn fire(&mut self) {
        if !self.timers.is_empty() {
            let timer = self.timers.swap_remove(self.rng.usize(0..self.timers.len()));
            self.input(Input::Fired(timer));
        }
    }

    fn input(&mut self, input: Input<Truth>) {
        if self.trace.len() == 40 {
            self.trace.pop_front();
        }
        self.trace.push_back(input.clone());
        self.machine.handle(input, &mut self.commands);
        self.obey();
    }

    fn obey(&mut self) {
        while let Some(command) = self.commands.pop_front() {
            match command {
                Command::Apply { stamp, payload } => self.apply(stamp, payload),
                Command::Begin { epoch, cause } => {
                    assert_eq!(epoch, self.epoch + 1, "epochs rise by one");
                    assert!(
                        cause != Cause::SequenceLower || self.life > 0 || self.state.0 != State::Live,
                        "a first life that was live does not run backwards"
                    );
                    self.epoch = epoch;
                    self.applied.clear();
                }
                Command::Ask { from, .. } => {
                    self.asks += 1;
                    self.replay.clear();
                    self.answering = false;
                    self.asked = Some(from);
                }
                Command::StopAsking => {
                    self.replay.clear();
                    self.answering = false;
                    self.asked = None;
                }
                Command::Arm(timer, _) => {
                    self.timers.retain(|armed| *armed != timer);
                    self.timers.push(timer);
                }
                Command::Disarm(timer) => self.timers.retain(|armed| *armed != timer),
                Command::Report(state, why) => self.state = (state, why),
            }
        }
        assert_eq!(self.state, self.machine.state());
        self.check();
    }

    fn apply(&mut self, stamp: Stamp, truth: Truth) {
        self.epoch = self.epoch.max(1);
        assert_eq!(stamp, Stamp { epoch: self.epoch, sequence: Some(truth.sequence) });
        if let Some(last) = self.applied.last() {
            assert!(truth.sequence > last.sequence, "each once and in order");
        }
        self.applied.push(truth);
        if truth.clears {
            self.machine.handle(Input::Cleared(stamp), &mut self.commands);
        }
    }

    /// Takes a snapshot, if there is anything to take.
    fn save(&mut self) {
        if let Some(past) = self.machine.past() {
            self.check_held();
            self.pasts.push((past, self.applied.clone()));
        }
    }

    /// The machine's process restarts. It finds its last snapshot, or an older one: what was written last may have
    /// been lost, and with it the epochs since.
    fn resume(&mut self) {
        if self.pasts.is_empty() || !self.faults.endpoint {
            return;
        }
        let back = if self.rng.bool() { 0 } else { self.rng.usize(0..self.pasts.len()) };
        let (past, applied) = self.pasts[self.pasts.len() - 1 - back].clone();
        self.up = false;
        self.newest = None;
        self.link.clear();
        self.replay.clear();
        (self.asked, self.answering) = (None, false);
        self.timers.clear();
        (self.epoch, self.applied) = (past.epoch, applied);
        self.resumed += 1;
        self.machine = Machine::resume(past, self.limits, &mut self.commands);
        assert_eq!(self.machine.state(), (State::Replaying, Why::Restored));
        assert!(self.commands.contains(&Command::Arm(Timer::Grace, 0)), "an absent engine is not waited for for ever");
        self.obey();
        if self.rng.bool() {
            self.connect();
        }
    }

    /// While live: from the last clear on, or from number 0, everything that one life published, and of that only.
    fn check(&self) {
        if self.state.0 != State::Live {
            return;
        }
        self.check_held();
        let Some(last) = self.applied.last() else { return };
        if self.link.is_empty() && self.up && self.newest.is_some_and(|newest| newest.life == self.life) {
            assert_eq!(last.life, self.life, "all was heard, and live on a dead engine's messages");
        }
    }

    fn check_held(&self) {
        let Some(last) = self.applied.last() else { return };
        let begin = self.applied.iter().rposition(|truth| truth.clears).unwrap_or(0);
        let held = &self.applied[begin..];
        let first = held[0].sequence;
        assert!(first == 0 || held[0].clears, "live, though nothing before {first} was applied");
        for (expected, truth) in (first..).zip(held) {
            assert_eq!(truth.life, last.life, "live with messages of two lives: {held:?}");
            assert_eq!(truth.sequence, expected, "live with a hole");
        }
    }

    fn step(&mut self) {
        match self.rng.u32(0..100) {
            0..30 => self.publish(),
            30..60 => self.hear_link(),
            60..66 => self.serve(),
            66..92 => self.hear_replay(),
            92..94 => self.connect(),
            94 => {
                if self.percent(self.faults.breaks) {
                    self.break_link();
                }
            }
            95 => {
                if self.percent(self.faults.restarts) {
                    self.restart();
                    self.break_link();
                }
            }
            96 => {
                if self.percent(self.faults.hidden_restarts) {
                    self.restart();
                }
            }
            97 => {
                if self.percent(self.faults.resumes) {
                    match self.rng.u8(0..4) {
                        0 => self.resume(),
                        _ => self.save(),
                    }
                }
            }
            _ => {
                if self.percent(10) {
                    self.fire();
                }
            }
        }
    }

    /// No more faults: everything is delivered, timers fire, and the engine publishes on.
    fn calm(&mut self) {
        self.faults = Faults { kept: usize::MAX, endpoint: self.faults.endpoint, ..Faults::none() };
        self.connect();
        for round in 0..400 {
            if round % 4 == 0 && round < 200 {
                self.publish();
            }
            for _ in 0..200 {
                self.hear_link();
                self.serve();
                self.hear_replay();
            }
            if let Some(at) = self.timers.iter().position(|timer| *timer == Timer::Rebuild) {
                self.timers.remove(at);
                self.input(Input::Fired(Timer::Rebuild));
            }
        }
        assert!(self.link.is_empty() && self.asked.is_none() && !self.answering, "a recovery never ended");
    }
}

impl Faults {
    fn none() -> Self {
        Self {
            link_drops: 0,
            replay_drops: 0,
            replay_fails: 0,
            rewinds: 0,
            burns: 0,
            restarts: 0,
            hidden_restarts: 0,
            breaks: 0,
            overflows: 0,
            doubles: 0,
            clears: 0,
            resumes: 0,
            kept: usize::MAX,
            endpoint: true,
        }
    }

    fn some(rng: &mut Rng) -> Self {
        let mut rare = |most: u32| if rng.bool() { rng.u32(0..=most) } else { 0 };
        Self {
            link_drops: rare(20),
            replay_drops: rare(20),
            replay_fails: rare(40),
            rewinds: rare(20),
            burns: rare(5),
            restarts: rare(100),
            hidden_restarts: rare(60),
            breaks: rare(100),
            overflows: rare(10),
            doubles: rare(10),
            clears: rare(5),
            resumes: rare(100),
            kept: if rare(1) == 0 { usize::MAX } else { 1 + rare(60) as usize },
            endpoint: rare(9) < 8,
        }
    }
}

fn message(truth: Truth) -> Message<Truth> {
    let digest = Digest(truth.life << 32 | truth.sequence);
    Message { sequence: truth.sequence, digest, size: 1, payload: truth }
}

#[test]
fn live_means_all_of_one_life_whatever_happens() {
    let mut lives = 0;
    let mut live = 0u64;
    let mut resumed = 0;
    for seed in 0..4_000 {
        let faults = Faults::some(&mut Rng::with_seed(seed));
        let mut world = World::new(seed, faults);
        for _ in 0..600 {
            world.step();
            live += u64::from(world.state.0 == State::Live && !world.applied.is_empty());
        }
        lives += world.life;
        resumed += world.resumed;
    }
    assert!(lives > 4_000, "the schedules restart the engine: {lives}");
    assert!(resumed > 500, "machines restart: {resumed}");
    assert!(live > 200_000, "the machine is not just never live: {live}");
}

#[test]
fn once_faults_stop_a_feed_whose_replay_reaches_back_is_live_again() {
    for seed in 0..2_000 {
        let mut rng = Rng::with_seed(seed);
        let faults =
            Faults { burns: 0, clears: 0, rewinds: 0, kept: usize::MAX, endpoint: true, ..Faults::some(&mut rng) };
        let mut world = World::new(seed, faults);
        for _ in 0..600 {
            world.step();
        }
        world.calm();
        let sequences: Vec<_> = world.applied.iter().map(|truth| truth.sequence).collect();
        assert_eq!(world.state.0, State::Live, "seed {seed}: {:?}", world.state);
        assert_eq!(sequences, world.published[world.life as usize], "seed {seed}");
    }
}

#[test]
fn a_machine_that_restarts_goes_on_with_the_same_life_and_begins_anew_with_another() {
    let mut same = 0;
    for seed in 0..600 {
        let faults = Faults { link_drops: 10, breaks: 50, overflows: 3, doubles: 5, ..Faults::none() };
        let mut world = World::new(seed, faults);
        for _ in 0..200 {
            world.step();
        }
        world.save();
        let mut restarted = false;
        for _ in 0..world.rng.usize(0..60) {
            world.publish();
            // A restart that comes late has the new life's numbers pass the old one's.
            if !restarted && seed % 2 == 1 && world.rng.u8(0..4) == 0 {
                world.restart();
                restarted = true;
            }
        }
        if world.pasts.is_empty() {
            continue;
        }
        world.resume();
        let epoch = world.epoch;
        world.calm();
        assert_eq!(world.state, (State::Live, Why::Whole), "seed {seed}");
        assert_eq!(world.epoch == epoch, !restarted, "seed {seed}: {epoch}, now {}", world.epoch);
        let sequences: Vec<_> = world.applied.iter().map(|truth| truth.sequence).collect();
        assert_eq!(sequences, world.published[world.life as usize], "seed {seed}");
        same += u64::from(!restarted);
    }
    assert!((200..500).contains(&same), "{same}");
}

#[test]
fn a_feed_that_cannot_be_healed_stops_asking() {
    for seed in 0..500 {
        let mut rng = Rng::with_seed(seed);
        let faults = Faults { burns: 10, kept: 5, replay_fails: 50, endpoint: true, ..Faults::some(&mut rng) };
        let mut world = World::new(seed, faults);
        for _ in 0..600 {
            world.step();
        }
        world.calm();
        let asks = world.asks;
        for _ in 0..2_000 {
            world.hear_link();
            world.serve();
            world.hear_replay();
        }
        assert_eq!(world.asks, asks, "seed {seed}: nothing happens, and the replay is asked again");
    }
}
