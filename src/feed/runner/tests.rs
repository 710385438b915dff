//! The runner with a scripted source, real payloads, a real normalizer and a real index. Time is paused.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::*;
use crate::block::Grid;
use crate::feed::link::Fault;
use crate::feed::machine::Failure;
use crate::feed::status::Status;
use crate::hash::Seed;
use crate::index::{self, Chain, Copies, Index};
use crate::normalize;
use crate::worker::Identity;

/// A source that yields what the test sends, and tells what was asked for.
struct Script {
    events: mpsc::UnboundedReceiver<Event>,
    asked: mpsc::UnboundedSender<u64>,
    /// How often the runner has looked at it on its own.
    looks: Arc<AtomicUsize>,
    has_lost: bool,
}

impl Source for Script {
    async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    fn ask(&mut self, from: u64) {
        self.asked.send(from).expect("the test listens");
    }

    fn stop_asking(&mut self) {}

    fn heard(&self) -> Option<Instant> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        None
    }

    fn has_lost(&self) -> bool {
        self.has_lost
    }
}

struct Stand {
    index: Arc<Index>,
    entry: Arc<Entry>,
    events: mpsc::UnboundedSender<Event>,
    asked: mpsc::UnboundedReceiver<u64>,
    cancel: CancellationToken,
    runner: JoinHandle<Ended>,
}

impl Stand {
    fn new(replay: bool) -> Self {
        let (runner, index, entry, events, asked) = idle(replay);
        let cancel = CancellationToken::new();
        let runner = tokio::spawn(runner.run(cancel.clone()));
        Self { index, entry, events, asked, cancel, runner }
    }

    fn link(&self, event: LinkEvent) {
        self.events.send(Event::Link(event)).expect("the runner lives");
    }

    fn live(&self, sequence: u64, payload: Bytes) {
        self.link(heard(sequence, payload));
    }

    fn reply(&self, sequence: u64, payload: Bytes) {
        let sequence = Bytes::copy_from_slice(&sequence.to_be_bytes());
        self.events.send(Event::Reply(vec![Bytes::new(), sequence, payload])).expect("the runner lives");
    }

    /// Waits until the board says so.
    async fn until(&self, what: &str, condition: impl Fn(&Status) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(3_600);
        while !condition(&self.entry.status()) {
            assert!(Instant::now() < deadline, "never {what}: {:?}", self.entry.status());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn until_state(&self, state: State) {
        self.until(state.name(), |status| status.state == state).await;
    }

    /// Leading blocks that the rank holds of 0, 1, 2, …, four tokens a block.
    fn blocks(&self) -> u32 {
        let grid = Grid::new(4).expect("a grid");
        let tokens: Vec<u8> = (0..64u32).flat_map(u32::to_le_bytes).collect();
        let contents = grid.plain_contents(&tokens, Seed::PLAIN);
        let mut matches = Vec::new();
        self.index.match_chain("m", grid, Chain::Content(&contents), None, &mut matches);
        matches.first().map_or(0, |found| found.blocks)
    }
}

/// A runner that does not run yet, and what it reads and writes.
#[expect(clippy::type_complexity)]
fn idle(
    replay: bool,
) -> (Runner<Script>, Arc<Index>, Arc<Entry>, mpsc::UnboundedSender<Event>, mpsc::UnboundedReceiver<u64>) {
    let index = Index::new(index::Limits::default());
    let writer = index.register("m", Copies::Count).expect("room for a rank");
    let identity =
        Identity { worker: "w".into(), address: "".into(), aliases: Arc::new([]), model: "m".into(), rank: 0 };
    let replay = replay.then(|| "tcp://replay".to_owned());
    let entry = Arc::new(Entry::new(writer.rank(), identity, "tcp://live".to_owned(), replay, "auto"));
    let (events, script) = mpsc::unbounded_channel();
    let (asks, asked) = mpsc::unbounded_channel();
    let source = Script { events: script, asked: asks, looks: Arc::default(), has_lost: false };
    let normalizer = Normalizer::new(writer, normalize::Options::default());
    let runner =
        Runner::new(source, normalizer, Arc::clone(&entry), Dialect::Auto, Timing::default(), Limits::default());
    (runner, index, entry, events, asked)
}

/// A message, as it comes on a link.
fn heard(sequence: u64, payload: Bytes) -> LinkEvent {
    LinkEvent::Message(vec![Bytes::new(), Bytes::copy_from_slice(&sequence.to_be_bytes()), payload])
}

/// A batch of one event in positional form, as if published at `time`.
fn batch(time: f64, event: impl FnOnce(&mut Vec<u8>), rank: u32) -> Bytes {
    let mut out = Vec::new();
    rmp::encode::write_array_len(&mut out, 3).expect("memory");
    rmp::encode::write_f64(&mut out, time).expect("memory");
    rmp::encode::write_array_len(&mut out, 1).expect("memory");
    event(&mut out);
    rmp::encode::write_u32(&mut out, rank).expect("memory");
    Bytes::from(out)
}

/// Block `n` of the prompt 0, 1, 2, …, under the block before.
fn stored(n: u32) -> Bytes {
    stored_in(0.0, n)
}

fn stored_in(time: f64, n: u32) -> Bytes {
    let event = |out: &mut Vec<u8>| {
        rmp::encode::write_array_len(out, 6).expect("memory");
        rmp::encode::write_str(out, "BlockStored").expect("memory");
        rmp::encode::write_array_len(out, 1).expect("memory");
        rmp::encode::write_u64(out, 100 + u64::from(n)).expect("memory");
        match n {
            0 => rmp::encode::write_nil(out).expect("memory"),
            n => rmp::encode::write_u64(out, 99 + u64::from(n)).expect("memory"),
        }
        rmp::encode::write_array_len(out, 4).expect("memory");
        for token in 4 * n..4 * n + 4 {
            rmp::encode::write_u32(out, token).expect("memory");
        }
        rmp::encode::write_u32(out, 4).expect("memory");
        rmp::encode::write_nil(out).expect("memory");
    };
    batch(time, event, 0)
}

fn cleared(rank: u32) -> Bytes {
    let event = |out: &mut Vec<u8>| {
        rmp::encode::write_array_len(out, 1).expect("memory");
        rmp::encode::write_str(out, "AllBlocksCleared").expect("memory");
    };
    batch(0.0, event, rank)
}

fn end() -> (u64, Bytes) {
    (u64::MAX, Bytes::new())
}

#[tokio::test(start_paused = true)]
async fn messages_reach_the_index_and_the_board() {
    let stand = Stand::new(false);
    stand.link(LinkEvent::Connected);
    stand.live(0, stored(0));
    stand.live(1, stored(1));
    stand.until("applied", |status| status.last_sequence == Some(1)).await;
    assert_eq!(stand.blocks(), 2);
    let status = stand.entry.status().clone();
    assert_eq!((status.state, status.epoch, status.messages, status.events), (State::Live, 1, 2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_gap_is_asked_for_and_filled() {
    let mut stand = Stand::new(true);
    stand.link(LinkEvent::Connected);
    assert_eq!(stand.asked.recv().await, Some(0));
    stand.live(0, stored(0));
    stand.live(2, stored(2));
    stand.until("a gap", |status| status.gaps == 1 && status.state == State::Replaying).await;
    assert_eq!(stand.blocks(), 1, "what comes after the gap waits");
    assert_eq!(stand.asked.recv().await, Some(0));
    for n in 0..3 {
        stand.reply(n, stored(n as u32));
    }
    let (sequence, payload) = end();
    stand.reply(sequence, payload);
    stand.until_state(State::Live).await;
    assert_eq!(stand.blocks(), 3);
    let status = stand.entry.status().clone();
    assert_eq!((status.gaps, status.missed, status.duplicates), (1, 0, 1));
    assert_eq!(status.replays.get("complete"), Some(&1));
}

#[tokio::test(start_paused = true)]
async fn what_was_published_while_the_subscription_was_on_its_way_is_had_a_moment_later() {
    let mut stand = Stand::new(true);
    stand.link(LinkEvent::Connected);
    assert_eq!(stand.asked.recv().await, Some(0));
    stand.reply(0, stored(0));
    let (sequence, payload) = end();
    stand.reply(sequence, payload.clone());
    stand.until_state(State::Live).await;
    assert_eq!(stand.asked.recv().await, Some(0), "nothing was heard since");
    assert_eq!(stand.entry.status().state, State::Live, "and nothing is known to be missing");
    for n in 0..3 {
        stand.reply(n, stored(n as u32));
    }
    stand.reply(sequence, payload);
    stand.until("all of it", |status| status.last_sequence == Some(2)).await;
    assert_eq!((stand.blocks(), stand.entry.status().state), (3, State::Live));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(stand.asked.try_recv().is_err(), "once is enough");
}

#[tokio::test(start_paused = true)]
async fn a_replay_that_breaks_off_is_asked_for_again_and_in_the_end_given_up() {
    let mut stand = Stand::new(true);
    stand.link(LinkEvent::Connected);
    for _ in 0..4 {
        assert_eq!(stand.asked.recv().await, Some(0));
        stand.events.send(Event::ReplayOver(Failure::Broken)).expect("the runner lives");
    }
    stand.until_state(State::Incomplete).await;
    assert_eq!(stand.entry.status().replays.get("failed"), Some(&4));
    assert_eq!(stand.asked.recv().await, Some(0), "much later it is tried once more");
}

#[tokio::test(start_paused = true)]
async fn a_replay_that_never_answers_does_not_hold_live_messages_back_for_ever() {
    let stand = Stand::new(true);
    stand.link(LinkEvent::Connected);
    stand.live(3, cleared(0));
    stand.until_state(State::Live).await;
    assert_eq!(stand.entry.status().last_sequence, Some(3), "given up, and then the clear has healed it");
}

#[tokio::test(start_paused = true)]
async fn a_restart_drops_the_dead_engine_s_blocks() {
    let stand = Stand::new(false);
    stand.link(LinkEvent::Connected);
    stand.live(0, stored(0));
    stand.live(1, stored(1));
    stand.live(0, stored_in(1.0, 0));
    stand.until("a new epoch", |status| status.epoch == 2).await;
    stand.until_state(State::Live).await;
    assert_eq!(stand.blocks(), 1);
    assert_eq!(stand.entry.status().resets.get("sequence_lower"), Some(&1));
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_stays_away_is_withdrawn_after_the_grace_and_not_before() {
    let stand = Stand::new(false);
    stand.link(LinkEvent::Connected);
    stand.live(0, stored(0));
    stand.until_state(State::Live).await;
    stand.link(LinkEvent::Disconnected(Fault::Closed));
    stand.until_state(State::Connecting).await;
    assert_eq!(stand.blocks(), 1);
    assert_eq!(stand.entry.status().why, "the link to the engine broke: the peer closed the connection");
    stand.until_state(State::Gone).await;
    assert_eq!(stand.blocks(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_cannot_be_read_costs_that_message_and_the_feed_says_so_until_a_clear() {
    let stand = Stand::new(false);
    stand.link(LinkEvent::Connected);
    stand.live(0, stored(0));
    stand.live(1, Bytes::from_static(b"\xc1"));
    stand.link(LinkEvent::Message(vec![Bytes::from_static(b"payload only")]));
    stand.live(2, stored(1));
    stand.until("applied", |status| status.last_sequence == Some(2)).await;
    let status = stand.entry.status().clone();
    assert_eq!((status.state, stand.blocks()), (State::Incomplete, 2));
    assert_eq!(status.dropped.get("frame_count"), Some(&1));
    assert_eq!(status.dropped.values().sum::<u64>(), 2, "{:?}", status.dropped);
    stand.live(3, cleared(0));
    stand.until_state(State::Live).await;
    assert_eq!(stand.blocks(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_cannot_be_read_is_not_even_for_a_moment_part_of_a_live_feed() {
    let (mut runner, _index, entry, _events, _asked) = idle(false);
    runner.machine.handle(Input::Connected, &mut runner.commands);
    runner.machine.handle(Input::Live(message(0, &Bytes::from_static(b"\xc1"))), &mut runner.commands);
    while let Some(command) = runner.commands.pop_front() {
        runner.execute(command).expect("the rank is there");
        assert_ne!(entry.status().state, State::Live);
    }
    assert_eq!(entry.status().state, State::Incomplete);
}

#[tokio::test(start_paused = true)]
async fn a_feed_is_not_live_while_a_block_waits_for_its_parent() {
    let stand = Stand::new(false);
    stand.link(LinkEvent::Connected);
    stand.live(0, stored(1));
    stand.until("waiting", |status| status.orphans == 1).await;
    assert_eq!(stand.entry.status().why, "1 block waits for its parent");
    assert_eq!(stand.entry.status().state, State::Incomplete);
    stand.live(1, stored(0));
    stand.until_state(State::Live).await;
    assert_eq!(stand.blocks(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_block_that_waits_is_told_in_the_middle_of_a_flood_too() {
    let stand = Stand::new(false);
    stand.link(LinkEvent::Connected);
    stand.live(0, stored(0));
    stand.until_state(State::Live).await;
    stand.live(1, stored(2));
    for n in 2..20_000 {
        stand.live(n, stored(0));
    }
    while stand.index.usage(stand.entry.rank).expect("the rank").stamp.sequence == Some(0) {
        tokio::task::yield_now().await;
    }
    assert_eq!(stand.entry.status().state, State::Incomplete);
    assert!(stand.entry.status().messages < 20_000, "this task ran in the middle of the flood");
}

#[tokio::test(start_paused = true)]
async fn one_socket_is_one_rank_and_a_batch_that_names_another_is_shown() {
    let stand = Stand::new(false);
    stand.link(LinkEvent::Connected);
    stand.live(0, stored(0));
    stand.live(1, cleared(7));
    stand.until("applied", |status| status.last_sequence == Some(1)).await;
    assert_eq!(stand.blocks(), 0);
    assert_eq!(stand.entry.status().dropped.get("rank_conflict"), Some(&1));
}

#[tokio::test(start_paused = true)]
async fn messages_lost_in_our_own_queue_are_a_gap() {
    let mut stand = Stand::new(true);
    stand.link(LinkEvent::Connected);
    assert_eq!(stand.asked.recv().await, Some(0));
    stand.live(0, stored(0));
    stand.link(LinkEvent::Overflowed { messages: 2 });
    assert_eq!(stand.asked.recv().await, Some(0));
    stand.until_state(State::Replaying).await;
    assert_eq!(stand.entry.status().dropped.get("queue_overflow"), Some(&2));
}

#[tokio::test(start_paused = true)]
async fn what_waits_before_a_loss_is_not_applied_to_a_live_feed() {
    for replay in [false, true] {
        let (mut runner, _index, entry, _events, _asked) = idle(replay);
        runner.link(LinkEvent::Connected).await.expect("the rank is there");
        runner.link(heard(0, stored(0))).await.expect("the rank is there");
        if replay {
            runner.input(Input::ReplayEnded).await.expect("the rank is there");
        }
        assert_eq!(entry.status().state, State::Live);

        runner.source.has_lost = true;
        runner.notice_losses();
        assert_eq!(entry.status().state, State::Incomplete);
        runner.link(heard(1, stored(1))).await.expect("the rank is there");
        runner.publish();
        let status = entry.status().clone();
        assert_eq!((status.state, status.last_sequence), (State::Incomplete, Some(1)));

        runner.source.has_lost = false;
        runner.notice_losses();
        assert_eq!(entry.status().state, State::Incomplete, "until the loss has had its turn");
        runner.link(LinkEvent::Overflowed { messages: 1 }).await.expect("the rank is there");
        assert_eq!(entry.status().state, if replay { State::Replaying } else { State::Incomplete });
    }
}

#[tokio::test(start_paused = true)]
async fn a_runner_ends_with_its_rank_its_source_or_its_token() {
    let stand = Stand::new(false);
    stand.index.remove(stand.entry.rank);
    stand.link(LinkEvent::Connected);
    stand.live(0, stored(0));
    assert_eq!(stand.runner.await.expect("the runner"), Ended::RankRemoved);

    let stand = Stand::new(false);
    drop(stand.events);
    assert_eq!(stand.runner.await.expect("the runner"), Ended::SourceEnded);

    let stand = Stand::new(false);
    stand.cancel.cancel();
    assert_eq!(stand.runner.await.expect("the runner"), Ended::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn a_flood_keeps_nobody_from_running_and_can_be_stopped() {
    const FLOOD: u64 = 20_000;
    for recovering in [false, true] {
        let stand = Stand::new(recovering);
        stand.link(LinkEvent::Connected);
        // With a replay endpoint a first number above 0 waits, so that nothing is applied.
        let first = u64::from(recovering);
        for n in first..first + FLOOD {
            stand.live(n, cleared(0));
        }
        tokio::task::yield_now().await;
        assert!(!stand.events.is_closed(), "this task ran again in the middle of the flood");
        stand.cancel.cancel();
        assert_eq!(stand.runner.await.expect("the runner"), Ended::Cancelled);
        assert!(stand.entry.status().messages < FLOOD);
    }
}

#[tokio::test(start_paused = true)]
async fn a_feed_of_which_nothing_is_heard_sleeps() {
    let (runner, _index, entry, events, _asked) = idle(false);
    let looks = Arc::clone(&runner.source.looks);
    let _runner = tokio::spawn(runner.run(CancellationToken::new()));
    events.send(Event::Link(LinkEvent::Connected)).expect("the runner lives");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(entry.status().connected);
    let before = looks.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(86_400)).await;
    assert_eq!(looks.load(Ordering::Relaxed), before);
}
