//! The fault laboratory: random schedules of everything that networks, publishers and engines do wrong, against real
//! libzmq publishers, with the engine's own cache as the truth.
//!
//! What is proven: whenever a feed says `live`, kvtap holds exactly what the engine held after the message that kvtap
//! names; and once the faults stop, a feed becomes live again with everything, by itself where the engine can still
//! give back what is missing, else by the next clear.
//!
//! Among what goes wrong: processes die, pause, restart within a gap; messages are lost, come twice, late, broken, or under
//! numbers that no engine reaches; links are cut, held up, half-open; replays lie; clocks jump; routers ask in bursts. Partitions by
//! network namespaces are in `tests/partition.rs`, full disks and torn snapshots in `tests/warm_restart.rs`.
//!
//! Beside the schedules, `heals` takes one fault at a time and the time that each takes to heal, and `flood` publishes ten times what
//! a feed can take.
//!
//! A schedule follows from its seed alone, up to the timing of sockets. One seed again:
//! `KVTAP_FAULT_SEED=7 cargo test --test faults`; more of them: `make soak`, or `KVTAP_FAULT_SCHEDULES=5000
//! KVTAP_FAULT_FIRST=1000 cargo test --test faults`, where the second is the first seed.

mod engine;
mod flood;
mod heals;
mod lab;
mod panics;
mod peer;
mod proxy;
#[path = "../support/python.rs"]
mod python;
mod routers;
mod schedule;
mod tap;
mod witness;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use lab::{Healed, Lab, Outcome};
use peer::Peer;
use schedule::{Step, World};

/// libzmq processes that share the engines.
const PEERS: usize = 2;

/// How long one schedule may take; a few seconds on an idle machine.
const HANGS: Duration = Duration::from_secs(240);

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {value}")))
}

async fn run_one(seed: u64, server: bool, peer: Arc<Peer>) -> Result<Outcome, String> {
    let mut rng = Rng::with_seed(seed);
    let world = World::new(&mut rng);
    let steps = World::with_strange(world.steps(&mut rng), seed);
    let name = format!("{}{seed}", if server { 's' } else { 'f' });
    // One server in four answers bursts of queries meanwhile.
    let routers = server.then_some(usize::from(seed.is_multiple_of(4)));
    let wrong = |wrong: String| format!("{wrong}\n  world: {world:?}\n  steps: {steps:?}");
    let done = steps.clone();
    // A task of its own, so that a panic anywhere in it is this schedule's, and the others go on.
    let mut whole = tokio::spawn(async move { Lab::new(name, world, rng, peer, routers).await.run(done).await });
    match timeout(HANGS, &mut whole).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => Err(wrong(format!("it ended: {panic}"))),
        Err(_) => {
            whole.abort();
            Err(wrong("it hangs".to_owned()))
        }
    }
}

/// `at_once` schedules run at a time: most of the time they wait.
async fn run(seeds: Range<u64>, server: bool, at_once: usize) {
    panics::watch();
    let peers: Vec<_> = (0..PEERS).map(|_| Arc::new(Peer::start())).collect();
    let room = Arc::new(Semaphore::new(at_once));
    let mut running = JoinSet::new();
    for seed in seeds {
        let peer = Arc::clone(&peers[seed as usize % PEERS]);
        let room = Arc::clone(&room);
        running.spawn(async move {
            let _place = room.acquire_owned().await.expect("never closed");
            (seed, run_one(seed, server, peer).await)
        });
    }
    let (mut healed, mut wrong): (Vec<(Outcome, u64)>, Vec<String>) = Default::default();
    while let Some(ended) = running.join_next().await {
        let (seed, outcome) = ended.expect("panics are caught");
        match outcome {
            Ok(outcome) => healed.push((outcome, seed)),
            Err(error) => {
                let error = format!("seed {seed}: {error}\n  again: KVTAP_FAULT_SEED={seed} cargo test --test faults");
                println!("{error}");
                wrong.push(error);
            }
        }
    }
    report(&healed);
    assert!(wrong.is_empty(), "{} of {} schedules:\n{}", wrong.len(), wrong.len() + healed.len(), wrong.join("\n"));
    assert!(healed.iter().any(|(outcome, _)| outcome.claims > 0), "nothing was ever claimed");
    let panics = panics::seen();
    assert!(panics.is_empty(), "{} panics, the first: {}", panics.len(), panics[0]);
}

/// Prints how long feeds took to heal.
fn report(healed: &[(Outcome, u64)]) {
    let claims: u64 = healed.iter().map(|(outcome, _)| outcome.claims).sum();
    let lives: usize = healed.iter().map(|(outcome, _)| outcome.lives).sum();
    println!("{} schedules, {lives} engine lives, {claims} claims judged", healed.len());
    for by in [Healed::Alone, Healed::ByAClear] {
        let mut times: Vec<(Duration, u64)> = healed
            .iter()
            .filter(|(outcome, _)| outcome.by == by)
            .map(|(outcome, seed)| (outcome.after, *seed))
            .collect();
        times.sort_unstable();
        let Some((slowest, seed)) = times.last() else { continue };
        let at = |share: usize| times[(times.len() - 1) * share / 100].0;
        println!(
            "healed {by:?}: {}, after {:?} (median), {:?} (90 %), {:?} (99 %), {slowest:?} (slowest, seed {seed})",
            times.len(),
            at(50),
            at(90),
            at(99),
        );
    }
}

/// The seeds that are asked for; else so many, from 0 on.
fn seeds(schedules: u64, share: u64) -> Range<u64> {
    if let Some(seed) = number("KVTAP_FAULT_SEED") {
        return seed..seed + 1;
    }
    let first = number("KVTAP_FAULT_FIRST").unwrap_or(0);
    first..first + number("KVTAP_FAULT_SCHEDULES").map_or(schedules, |asked| asked.div_ceil(share))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_feed_holds_what_its_engine_holds_whatever_went_wrong_and_heals_when_it_stops() {
    run(seeds(120, 1), false, 60).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_does_every_answer_of_a_server() {
    run(seeds(8, 20), true, 8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_replays_with_holes_make_look_burned_after_a_clear_or_a_restart_waits_for_the_next_clear() {
    let peer = Arc::new(Peer::start());
    let restart = Step::Restart { down: Duration::ZERO, frozen: false, unheard: Some(6) };
    for (name, then) in [("clear", vec![Step::Clear, Step::Settle, Step::Lose(6)]), ("restart", vec![restart])] {
        // The first message that is heard live asks for a replay too, so that comes before.
        let mut steps = vec![Step::Say(3), Step::Settle, Step::Say(1), Step::Settle];
        steps.push(Step::Replays { times: 20, mode: "holes", count: 2 });
        steps.extend(then);
        steps.push(Step::Say(1));
        let lab = Lab::new(name.to_owned(), World::HEALTHY, Rng::with_seed(1), Arc::clone(&peer), None).await;
        let outcome = lab.run_until(&steps, "incomplete").await.expect("what is claimed is true, and it heals");
        assert_eq!(outcome.by, Healed::ByAClear, "after a {name}");
    }
}
