//! `kvtap sim --nats`: a fleet of simulated engines that one kvtap taps and publishes on a NATS server, and another
//! follows. A day of load passes, pods restart; at its end the follower must hold what the engines hold.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::{Args, SimError};
use crate::feed::nats::{ConnectionOptions, NatsEndpoint};
use crate::feed::status::{Board, Entry, State};
use crate::index::{Copies, Index, IndexError, Limits};
use crate::normalize::{Normalizer, Options};
use crate::relay::{Figures, Follow, Relay, RelayOptions};
use crate::sim::encode::{Dialect, batch};
use crate::sim::event::Event;
use crate::sim::load::{Load, Profile, Request};
use crate::sim::pool::{HashForm, Pool, RequestId, Shape};
use crate::wire::{self, Batch, MessageError, decode};
use crate::worker::{Identity, Stamp};

/// Of the fleet, where nothing is said.
pub(super) const RATE: f64 = 0.2;

/// How long an engine takes for a step.
const STEP: Duration = Duration::from_millis(25);

/// How far the load swings around its mean, as a part of it.
const SWING: f64 = 0.8;

/// How long the follower may take to get there once nothing changes any more.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a part of the day has seen.
const PARTS: u32 = 10;

/// A process of the fleet: an index, and its part in it.
struct Member {
    index: Arc<Index>,
    board: Arc<Board>,
    figures: Arc<Figures>,
    relay: Relay,
}

/// One pod: an engine, and the rank that the owner taps of it.
struct Pod {
    pool: Pool,
    running: Vec<(RequestId, std::vec::IntoIter<u32>)>,
    normalizer: Normalizer,
    entry: Arc<Entry>,
    stamp: Stamp,
}

struct Fleet<'a> {
    args: &'a Args,
    owner: Member,
    pods: Vec<Pod>,
    load: Load,
    random: fastrand::Rng,
    decoded: Batch,
    messages: u64,
    raw_bytes: u64,
    stored: u64,
}

// === impl Member ===

impl Member {
    fn join(options: RelayOptions, limits: Limits) -> Self {
        let (index, board, figures) = (Index::new(limits), Arc::new(Board::default()), Arc::new(Figures::default()));
        let relay = Relay::spawn_counted(options, &index, &board, &figures);
        Self { index, board, figures, relay }
    }
}

/// Runs the fleet for a day.
pub(super) async fn simulate(
    args: &Args,
    servers: NatsEndpoint,
    out: &mut impl Write,
    stop: CancellationToken,
) -> Result<(), SimError> {
    let blocks = args.blocks as usize;
    let limits = Limits { blocks_in_all: blocks.saturating_mul(args.workers as usize), ..Limits::default() };
    let mut relay = RelayOptions::new(ConnectionOptions::new(servers));
    relay.max_ranks = args.workers as usize;
    let owner = Member::join(RelayOptions { follow: Follow::Nobody, ..relay.clone() }, limits);
    let follower = Member::join(RelayOptions { publish: false, ..relay }, limits);
    let mut fleet = Fleet::new(args, owner)?;
    fleet.day(&follower, out, &stop).await?;

    let settling = Instant::now();
    let mut equal = fleet.equal(&follower);
    while equal < fleet.pods.len() && settling.elapsed() < PATIENCE {
        sleep(Duration::from_millis(50)).await;
        equal = fleet.equal(&follower);
    }
    let settled = settling.elapsed().as_secs_f64();
    let line = json!({
        "workers": fleet.pods.len(), "equal": equal, "settled_s": settled, "messages": fleet.messages,
        "engine_bytes": fleet.raw_bytes, "blocks_stored": fleet.stored,
        "owner": figures(&fleet.owner), "follower": figures(&follower), "follower_feeds": tallies(&follower),
    });
    if args.json {
        writeln!(out, "{line}")?;
    } else {
        writeln!(
            out,
            "{equal} of {} workers equal after {settled:.1} s: {} messages, {} blocks stored; owner {}; follower {} {}",
            fleet.pods.len(),
            fleet.messages,
            fleet.stored,
            line["owner"],
            line["follower"],
            line["follower_feeds"],
        )?;
    }
    let all = equal == fleet.pods.len();
    fleet.owner.relay.stop().await;
    follower.relay.stop().await;
    if all { Ok(()) } else { Err(SimError::Unequal) }
}

fn figures(member: &Member) -> Value {
    let report = member.figures.report();
    json!({
        "batches_kept": report.kept, "batches_unkept": report.unkept, "published_bytes": report.bytes, "cuts": report.cuts,
        "snapshots_sent": report.sent, "snapshots_put_away": report.stored, "slow_consumer": report.slow,
    })
}

/// What the follower's feeds have counted, all together.
fn tallies(member: &Member) -> Value {
    let (mut gaps, mut events, mut restored, mut dropped) = (0, 0, 0, HashMap::<&str, u64>::new());
    for entry in member.board.all() {
        let status = entry.status();
        gaps += status.gaps;
        events += status.events;
        restored += status.snapshots.get("restored").copied().unwrap_or_default();
        for (reason, count) in &status.dropped {
            *dropped.entry(reason).or_default() += count;
        }
    }
    json!({ "deltas": events, "gaps": gaps, "snapshots": restored, "dropped": dropped })
}

// === impl Fleet ===

impl<'a> Fleet<'a> {
    fn new(args: &'a Args, owner: Member) -> Result<Self, SimError> {
        let conversations = args.workers as usize * 4;
        let profile =
            Profile { systems: 16, system_tokens: 1024, user_tokens: 256, conversations, ..Profile::default() };
        let mut fleet = Self {
            args,
            owner,
            pods: Vec::new(),
            load: Load::new(profile, args.seed),
            random: fastrand::Rng::with_seed(args.seed),
            decoded: Batch::default(),
            messages: 0,
            raw_bytes: 0,
            stored: 0,
        };
        for number in 0..args.workers {
            let pod = fleet.pod(number)?;
            fleet.pods.push(pod);
        }
        Ok(fleet)
    }

    fn pod(&mut self, number: u32) -> Result<Pod, SimError> {
        let (args, owner) = (self.args, &self.owner);
        let writer = owner.index.register(&args.model, Copies::Count)?;
        let identity = Identity {
            worker: format!("pod-{number}").into(),
            address: "".into(),
            aliases: Arc::default(),
            model: args.model.as_str().into(),
            rank: 0,
        };
        let entry = Arc::new(Entry::new(writer.rank(), identity, "simulated".to_owned(), None, "vllm"));
        entry.status().state = State::Live;
        owner.board.insert(Arc::clone(&entry));
        let shape = Shape { blocks: args.blocks, block_size: args.block_size, hash_form: HashForm::Int };
        Ok(Pod {
            pool: Pool::new(shape, self.random.u128(..)),
            running: Vec::new(),
            normalizer: Normalizer::new(writer, Options::default()),
            entry,
            stamp: Stamp { epoch: 1, sequence: None },
        })
    }

    async fn day(&mut self, follower: &Member, out: &mut impl Write, stop: &CancellationToken) -> Result<(), SimError> {
        let day = Duration::from_secs_f64(self.args.day);
        let rate = self.args.rate.unwrap_or(RATE) * f64::from(self.args.workers);
        let mut steps = interval(STEP);
        steps.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let begun = Instant::now();
        let (mut owed, mut restarts, mut part) = (0.0, 0, 1);
        let mut before = (0, 0);
        while begun.elapsed() < day {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = steps.tick() => {}
            }
            let passed = begun.elapsed().as_secs_f64() / day.as_secs_f64();
            owed += rate * STEP.as_secs_f64() * (1.0 - SWING * (std::f64::consts::TAU * passed).cos());
            while owed >= 1.0 {
                owed -= 1.0;
                let pod = self.random.usize(..self.pods.len());
                self.admit(pod)?;
            }
            for pod in 0..self.pods.len() {
                self.step(pod)?;
            }
            while f64::from(restarts) < passed * f64::from(self.args.restarts) {
                restarts += 1;
                self.restart()?;
            }
            if passed * f64::from(PARTS) >= f64::from(part) {
                part += 1;
                let now = (self.messages, self.owner.figures.report().bytes);
                let seconds = day.as_secs_f64() / f64::from(PARTS);
                let each = |now: u64, before: u64| (now - before) as f64 / seconds;
                let (messages, bytes) = (each(now.0, before.0), each(now.1, before.1) / 1e3);
                let equal = self.equal(follower);
                self.say(out, passed, messages, bytes, equal)?;
                before = now;
            }
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn say(&self, out: &mut impl Write, passed: f64, messages: f64, kb: f64, equal: usize) -> io::Result<()> {
        if self.args.json {
            let line = json!({ "day": passed, "messages_per_s": messages, "published_kb_per_s": kb, "equal": equal });
            return writeln!(out, "{line}");
        }
        writeln!(
            out,
            "{passed:.1} of a day: {messages:.0} engine messages/s, {kb:.0} kB/s published, {equal} workers equal"
        )
    }

    fn admit(&mut self, number: usize) -> Result<(), SimError> {
        let Request { prompt, output } = self.load.request();
        let Some(pod) = self.pods.get_mut(number) else { return Ok(()) };
        // One that has no room turns requests away.
        if let Ok(admitted) = pod.pool.admit(prompt) {
            pod.running.push((admitted.request, output.into_iter()));
        }
        self.publish(number)
    }

    /// Every running request decodes a token.
    fn step(&mut self, number: usize) -> Result<(), SimError> {
        let Some(pod) = self.pods.get_mut(number).filter(|pod| !pod.running.is_empty()) else { return Ok(()) };
        let pool = &mut pod.pool;
        pod.running.retain_mut(|(request, output)| {
            let more = output.next().is_some_and(|token| output.len() > 0 && pool.decode(*request, token).is_ok());
            if !more {
                // It ends either way.
                let _ = pool.finish(*request);
            }
            more
        });
        self.publish(number)
    }

    /// What the engine says of the step, as bytes, read back as a feed would.
    fn publish(&mut self, number: usize) -> Result<(), SimError> {
        let Some(pod) = self.pods.get_mut(number) else { return Ok(()) };
        let events = pod.pool.step();
        if events.is_empty() {
            return Ok(());
        }
        let payload = batch(Dialect::Map33, 0.0, &events, Some(0));
        decode(wire::Dialect::Vllm, &payload, &mut self.decoded)?;
        pod.stamp.sequence = Some(pod.stamp.sequence.map_or(0, |last| last + 1));
        pod.normalizer.apply(&self.decoded, pod.stamp)?;
        self.messages += 1;
        self.raw_bytes += payload.len() as u64;
        let stored = |event: &Event| if let Event::Stored(stored) = event { stored.names.len() } else { 0 };
        self.stored += events.iter().map(stored).sum::<usize>() as u64;
        Ok(())
    }

    /// A pod's engine begins another life; every second time its sidecar does as well.
    fn restart(&mut self) -> Result<(), SimError> {
        let number = self.random.u32(..self.args.workers);
        if self.random.bool() {
            let pod = self.pod(number)?;
            if let Some(place) = self.pods.get_mut(number as usize) {
                let old = std::mem::replace(place, pod);
                self.owner.board.remove(old.entry.rank);
                self.owner.index.remove(old.entry.rank);
            }
        } else if let Some(pod) = self.pods.get_mut(number as usize) {
            pod.pool = pod.pool.reborn(self.random.u128(..));
            pod.running.clear();
            pod.stamp = Stamp { epoch: pod.stamp.epoch + 1, sequence: None };
            pod.normalizer.reset(pod.stamp)?;
        }
        Ok(())
    }

    /// How many workers the follower holds as their owner does, and says so.
    fn equal(&self, follower: &Member) -> usize {
        let followed: HashMap<_, _> =
            follower.board.all().into_iter().map(|entry| (Arc::clone(&entry.identity.worker), entry)).collect();
        let is = |pod: &&Pod| {
            let Some(entry) = followed.get(&pod.entry.identity.worker) else { return false };
            let here = follower.index.usage(entry.rank).map(|usage| (usage.stamp, usage.blocks));
            let there = self.owner.index.usage(pod.entry.rank).map(|usage| (usage.stamp, usage.blocks));
            entry.status().state == State::Live && here.is_some() && here == there
        };
        self.pods.iter().filter(is).count()
    }
}

// === impl SimError ===

impl From<IndexError> for SimError {
    fn from(error: IndexError) -> Self {
        Self::Fleet(error.to_string())
    }
}

impl From<MessageError> for SimError {
    fn from(error: MessageError) -> Self {
        Self::Fleet(error.to_string())
    }
}
