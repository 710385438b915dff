use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kvtap::sim::engine::{Config, Engine};
use kvtap::sim::faults::Fault;
use kvtap::sim::pool::Prompt;
use kvtap::sim::publisher::PublishError;

use crate::peer::Peer;

const PATIENCE: Duration = Duration::from_secs(20);

/// One message: a prompt that nobody has sent before.
async fn publish(engine: &mut Engine) -> u64 {
    let salt = Some(engine.next_sequence().to_string());
    let admitted = engine.admit(Prompt { tokens: vec![1; 20], salt, ..Prompt::default() }).unwrap();
    engine.finish(admitted.request).unwrap();
    engine.step().await.unwrap().unwrap()
}

async fn subscribed() -> (Engine, Peer) {
    let mut engine = Engine::start(Config::default(), 0).await.unwrap();
    let mut peer = Peer::spawn();
    peer.subscribe(engine.endpoint(), "", false).await;
    let deadline = Instant::now() + PATIENCE;
    loop {
        publish(&mut engine).await;
        if !peer.receive(50).await.is_empty() {
            return (engine, peer);
        }
        assert!(Instant::now() < deadline, "the subscriber heard nothing");
    }
}

async fn live(peer: &mut Peer) -> Vec<u64> {
    let heard = peer.receive(500).await;
    heard.iter().map(|[_, sequence, _]| u64::from_str_radix(sequence, 16).unwrap()).collect()
}

async fn replayed(engine: &Engine, peer: &mut Peer, start: u64) -> BTreeSet<u64> {
    let request = [vec![String::new(), format!("{start:016x}")]];
    let replies = peer.request(engine.replay_endpoint().unwrap(), "DEALER", &request).await;
    let (_end, messages) = replies.split_last().unwrap();
    messages.iter().map(|frames| u64::from_str_radix(&frames[2], 16).unwrap()).collect()
}

#[tokio::test]
async fn a_step_without_events_sends_nothing_and_takes_no_number() {
    let mut engine = Engine::start(Config::default(), 0).await.unwrap();
    assert_eq!(engine.step().await.unwrap(), None);
    assert_eq!(publish(&mut engine).await, 0);
    assert_eq!(engine.step().await.unwrap(), None);
    assert_eq!(engine.next_sequence(), 1);
}

#[tokio::test]
async fn dropped_messages_can_be_replayed_and_lost_ones_cannot() {
    let (mut engine, mut peer) = subscribed().await;
    let first = engine.next_sequence();
    engine.fault(Fault::Drop { messages: 2 }).await.unwrap();
    engine.fault(Fault::Lose { messages: 1 }).await.unwrap();
    for _ in 0..5 {
        publish(&mut engine).await;
    }
    engine.fault(Fault::Burn).await.unwrap();
    publish(&mut engine).await;
    assert_eq!(live(&mut peer).await, [first + 3, first + 4, first + 6]);
    let kept = [1, 2, 3, 4, 6].map(|n| first + n).into();
    assert_eq!(replayed(&engine, &mut peer, first).await, kept);
    engine.fault(Fault::Forget).await.unwrap();
    assert!(replayed(&engine, &mut peer, 0).await.is_empty());
}

#[tokio::test]
async fn duplicated_messages_come_twice_and_delayed_ones_come_in_order() {
    let (mut engine, mut peer) = subscribed().await;
    let first = engine.next_sequence();
    engine.fault(Fault::Duplicate { messages: 1 }).await.unwrap();
    engine.fault(Fault::Delay { messages: 1, by: Duration::from_millis(20) }).await.unwrap();
    publish(&mut engine).await;
    publish(&mut engine).await;
    assert_eq!(live(&mut peer).await, [first, first, first + 1]);
}

#[tokio::test]
async fn a_restart_in_place_is_seen_only_by_its_numbers() {
    let (mut engine, mut peer) = subscribed().await;
    let held = Prompt { tokens: vec![1; 20], salt: Some("0".into()), ..Prompt::default() };
    assert_eq!(engine.pool().leading_blocks(&held), 1);
    let names = engine.pool().copies();
    engine.fault(Fault::RestartInPlace).await.unwrap();
    assert!(engine.pool().copies().is_empty());
    publish(&mut engine).await;
    assert_eq!(live(&mut peer).await, [0]);
    assert_eq!(engine.pool().leading_blocks(&held), 1);
    assert!(engine.pool().copies().keys().all(|name| !names.contains_key(name)), "a new life has names of its own");
}

#[tokio::test]
async fn a_stopped_engine_is_gone_until_it_is_restarted_where_it_was() {
    let (mut engine, mut peer) = subscribed().await;
    let endpoint = engine.endpoint().to_owned();
    let running = engine.admit(Prompt { tokens: vec![1; 40], ..Prompt::default() }).unwrap().request;
    engine.fault(Fault::Stop).await.unwrap();
    assert!(engine.finish(running).is_err(), "requests die with the process");
    engine.admit(Prompt { tokens: vec![1; 40], ..Prompt::default() }).unwrap();
    assert!(matches!(engine.step().await, Err(PublishError::Closed)));
    engine.fault(Fault::Restart).await.unwrap();
    assert_eq!((engine.endpoint(), engine.next_sequence()), (&*endpoint, 0));
    let deadline = Instant::now() + PATIENCE;
    while live(&mut peer).await.is_empty() {
        publish(&mut engine).await;
        assert!(Instant::now() < deadline, "the subscriber did not come back");
    }
    assert_eq!(replayed(&engine, &mut peer, 0).await.first(), Some(&0));
}

#[tokio::test]
async fn engines_with_one_seed_name_blocks_alike_and_ranks_and_seeds_part_them() {
    let mut names = Vec::new();
    for (seed, rank) in [(1, 0), (1, 0), (1, 1), (2, 0)] {
        let mut engine = Engine::start(Config { seed, ..Config::default() }, rank).await.unwrap();
        engine.admit(Prompt { tokens: vec![1; 20], ..Prompt::default() }).unwrap();
        names.push(engine.pool().copies());
    }
    assert_eq!(names[0], names[1]);
    assert_ne!(names[0], names[2]);
    assert_ne!(names[0], names[3]);
    assert_ne!(names[2], names[3]);
}

#[test]
fn faults_are_read_from_words_and_anything_else_is_refused() {
    assert_eq!("drop=3".parse(), Ok(Fault::Drop { messages: 3 }));
    assert_eq!("lose=1".parse(), Ok(Fault::Lose { messages: 1 }));
    assert_eq!("duplicate=2".parse(), Ok(Fault::Duplicate { messages: 2 }));
    assert_eq!("delay=5x250".parse(), Ok(Fault::Delay { messages: 5, by: Duration::from_millis(250) }));
    for (word, fault) in [
        ("burn", Fault::Burn),
        ("forget", Fault::Forget),
        ("stall", Fault::Stall),
        ("resume", Fault::Resume),
        ("stop", Fault::Stop),
        ("restart", Fault::Restart),
        ("restart-in-place", Fault::RestartInPlace),
    ] {
        assert_eq!(word.parse(), Ok(fault));
    }
    for wrong in ["", "drop", "drop=", "drop=-1", "delay=5", "burn=1", "explode"] {
        assert!(wrong.parse::<Fault>().is_err(), "{wrong}");
    }
}
