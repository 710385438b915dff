//! Ten times as much as a feed can take: libzmq publishes ten messages for each one that the feed may read.
//!
//! What is proven, beside what the witness judges all the while: what does not fit is shed as declared gaps, nothing that waits before
//! a loss is applied to a feed that says `live`, the queue never holds more than it may, and the feed is whole again afterwards.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use kvtap::feed::runner::Runner;
use kvtap::feed::source::{Event, LinkSource, Source};
use kvtap::feed::status::{Entry, State};
use kvtap::feed::zmq::subscribe;
use kvtap::index::{self, Index};
use kvtap::normalize::Normalizer;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::engine::{Engine, Message};
use crate::peer::Peer;
use crate::schedule::World;
use crate::tap;
use crate::witness::{Eye, Witness};

/// Messages that the feed's queue holds.
const QUEUE: usize = 64;

/// How many are published for each that may be read, and how often.
const TENFOLD: usize = 10;
const ROUNDS: usize = 400;

/// How long anything may take that must happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// A source that gives no more events than it has permits for.
struct Narrow {
    source: LinkSource,
    permits: Arc<Semaphore>,
    entry: Arc<Entry>,
    /// Messages were lost before the last event was given.
    had_lost: bool,
    /// How often the feed went on being live in spite of that.
    stale: Arc<AtomicUsize>,
}

impl Source for Narrow {
    async fn next(&mut self) -> Option<Event> {
        if self.had_lost && self.source.has_lost() && self.entry.live_since().is_some() {
            self.stale.fetch_add(1, Ordering::Relaxed);
        }
        let permit = self.permits.acquire().await.expect("never closed");
        let event = self.source.next().await;
        permit.forget();
        self.had_lost = self.source.has_lost();
        event
    }

    fn ask(&mut self, from: u64) {
        self.source.ask(from);
    }

    fn stop_asking(&mut self) {
        self.source.stop_asking();
    }

    fn heard(&self) -> Option<Instant> {
        self.source.heard()
    }

    fn has_lost(&self) -> bool {
        self.source.has_lost()
    }
}

/// An engine of the peer's that all can hear.
struct Loud {
    engine: Engine,
    peer: Peer,
}

impl Loud {
    fn publish(&self, message: &Message) {
        let hex: String = message.payload.iter().map(|byte| format!("{byte:02x}")).collect();
        self.peer.tell(&format!("say e 1 1 {} {hex}", message.sequence));
    }

    /// Publishes so many messages, and waits until the peer has.
    async fn say(&mut self, messages: usize) {
        for _ in 0..messages {
            let message = self.engine.message();
            self.publish(&message);
        }
        self.peer.ask("limit e 0").await;
    }

    /// Goes on until the feed holds all that was said last; without a replay it clears its cache for that.
    async fn until_present(&mut self, witness: &mut Witness, entry: &Entry) {
        let begun = Instant::now();
        let mut wait = Duration::from_millis(50);
        loop {
            if entry.replay.is_none() && entry.status().state == State::Incomplete {
                let message = self.engine.clear();
                self.publish(&message);
            }
            self.say(1).await;
            let asked = Instant::now();
            while asked.elapsed() < wait {
                let claims = witness.look().await.expect("what is claimed is true");
                if witness.is_present(&claims) {
                    return;
                }
                sleep(Duration::from_millis(5)).await;
            }
            // A busy machine needs longer than an idle one.
            wait *= 2;
            assert!(begun.elapsed() < PATIENCE, "it does not heal: {:?}", entry.status());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_times_what_a_feed_can_take_is_shed_as_gaps_that_it_declares_and_never_answered_as_live() {
    for replay in [true, false] {
        let world = World { replay, queue: QUEUE, ..World::HEALTHY };
        let engine = Engine::new(&mut Rng::with_seed(10));
        let mut loud = Loud { engine, peer: Peer::start() };
        let ports = loud.peer.ask(&format!("open e * {} 0", u8::from(replay))).await;
        let mut ports = ports.split(' ').map(|port| SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap_or(0))));
        let (live, router) = (ports.next().expect("a port"), ports.next().expect("another"));

        let (index, cancel) = (Index::new(index::Limits::default()), CancellationToken::new());
        let options = tap::options("e", &world, live, router);
        let (receiver, link) = subscribe(options.link.clone(), &cancel).expect("an endpoint");
        let gauge = receiver.gauge();
        let following = options.following;
        let writer = index.register("m", following.copies).expect("room for a rank");
        let rank = writer.rank();
        let normalizer = Normalizer::new(writer, following.normalize);
        let asked = options.replay.as_ref().map(|replay| replay.endpoint.to_string());
        let entry = Entry::new(rank, options.identity, options.link.endpoint.to_string(), asked, following.engine);
        let entry = Arc::new(entry.queued(receiver.gauge()).with_orphans(normalizer.waiting()));
        let (permits, stale) = (Arc::new(Semaphore::new(Semaphore::MAX_PERMITS / 2)), Arc::new(AtomicUsize::new(0)));
        let source = Narrow {
            source: LinkSource::new(receiver, options.replay, cancel.clone()),
            permits: Arc::clone(&permits),
            entry: Arc::clone(&entry),
            had_lost: false,
            stale: Arc::clone(&stale),
        };
        let (dialect, timing, limits) = (following.dialect, following.timing, following.limits);
        let runner = Runner::new(source, normalizer, Arc::clone(&entry), dialect, timing, limits);
        let runner = tokio::spawn(runner.run(cancel.clone()));
        let eye = Eye::Inside { index: Arc::clone(&index), entry: Arc::clone(&entry) };
        let mut witness = Witness::new(eye, Arc::clone(&loud.engine.truth), Arc::clone(&loud.engine.prompts));

        // What was said before the subscription comes by a replay, or a clear makes up for it; and the first message that is heard live
        // may ask for one more replay. After that every message is applied as it comes.
        for _ in 0..3 {
            loud.until_present(&mut witness, &entry).await;
        }
        permits.forget_permits(Semaphore::MAX_PERMITS);
        let (gaps, mut live_claims) = (entry.status().gaps, 0);
        for _ in 0..ROUNDS {
            loud.say(TENFOLD).await;
            permits.add_permits(1);
            live_claims += witness.look().await.expect("what is claimed is true").len();
            assert!(gauge.read().messages <= QUEUE);
        }
        let status = entry.status().clone();
        assert_ne!(status.state, State::Live, "it is far behind, and says so: {status:?}");
        assert!(live_claims > 0, "what it claimed before the first loss was judged");
        let waits = gauge.read().messages;
        assert!(waits > QUEUE / 2, "the flood was one: {waits} messages wait");

        permits.add_permits(Semaphore::MAX_PERMITS / 2);
        loud.until_present(&mut witness, &entry).await;
        let status = entry.status().clone();
        assert!(status.gaps > gaps && status.dropped["queue_overflow"] > 0, "what was shed is declared: {status:?}");
        assert_eq!(
            stale.load(Ordering::Relaxed),
            0,
            "nothing was applied to a live feed while later messages were lost"
        );

        cancel.cancel();
        runner.await.expect("the runner ends");
        link.await.expect("the link ends");
    }
}
