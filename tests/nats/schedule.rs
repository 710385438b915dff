//! Seeded schedules of faults: a fleet is changed while its server dies, freezes, forgets; once healed, followers are
//! equal to owners, and a rank that says `live` is what its owner was at that very message.
//!
//! `KVTAP_NATS_SCHEDULES` says how many (8 without it), `KVTAP_NATS_FIRST` the first seed.

use std::time::Duration;

use async_nats::jetstream;
use kvtap::feed::status::State;
use tokio::time::sleep;

use crate::fleet::{CHAINS, DEPTH, Engine, Member, options};
use crate::server::Server;

const STEPS: usize = 60;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn change(random: &mut fastrand::Rng, engine: &mut Engine) {
    match random.u32(..40) {
        0 => engine.clear(),
        1 => engine.restart(),
        _ => {
            let chain = random.u64(..CHAINS);
            let depth = engine.depths[chain as usize];
            let next = if random.bool() { random.u64(depth..=DEPTH) } else { random.u64(..=depth) };
            if next != depth {
                engine.deepen(chain, next);
            }
        }
    }
}

/// What a follower says to be exact is exact. Returns whether it said so.
fn check(follower: &Member, engine: &Engine) -> bool {
    let identity = &engine.entry().identity;
    let Some(entry) = follower.entry(&identity.worker, identity.rank) else { return false };
    let stamp = |member: &Member| member.index.usage(entry.rank).map(|usage| usage.stamp);
    let (since, before) = (entry.live_since(), stamp(follower));
    let depths = follower.depths(&entry);
    if since.is_none() || entry.live_since() != since || stamp(follower) != before {
        return false;
    }
    let Some(before) = before else { return false };
    let Some(expected) = Some(before).and_then(|stamp| engine.history.get(&(stamp.epoch, stamp.sequence))) else {
        panic!("{}: live at {before:?}, where its owner never was", entry.identity);
    };
    assert_eq!(&depths, expected, "{}: live and unequal at {before:?}", entry.identity);
    true
}

async fn run(seed: u64) -> usize {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut server = Server::start().await;
    let url = server.url();
    let owners = [Member::join(options(&url)), Member::join(options(&url))];
    let mut engines: Vec<Engine> = vec![owners[0].engine("a", 0), owners[0].engine("a", 1), owners[1].engine("b", 0)];
    let mut followers = vec![Member::join(options(&url))];
    let mut live = 0;
    for step in 0..STEPS {
        for _ in 0..random.u32(..6) {
            let engine = random.usize(..engines.len());
            change(&mut random, &mut engines[engine]);
        }
        match random.u32(..30) {
            0 => server.restart().await,
            1 => {
                server.kill().await;
                for _ in 0..random.u32(..8) {
                    let engine = random.usize(..engines.len());
                    change(&mut random, &mut engines[engine]);
                    sleep(Duration::from_millis(random.u64(..40))).await;
                }
                server.start_again().await;
            }
            2 => {
                server.pause().await;
                sleep(Duration::from_millis(random.u64(..900))).await;
                server.go_on().await;
            }
            3 => {
                if let Ok(Ok(client)) =
                    tokio::time::timeout(Duration::from_secs(2), async_nats::connect(server.url())).await
                {
                    // Where it is not there, it was deleted before.
                    let _ = jetstream::new(client).delete_stream("KVTAP").await;
                }
            }
            4 if followers.len() < 3 => followers.push(Member::join(options(&url))),
            5 => engines[0].show(if step % 2 == 0 { State::Incomplete } else { State::Live }),
            _ => sleep(Duration::from_millis(random.u64(..30))).await,
        }
        for follower in &followers {
            live += engines.iter().filter(|engine| check(follower, engine)).count();
        }
    }
    for engine in &mut engines {
        engine.show(State::Live);
        change(&mut random, engine);
    }
    for engine in &engines {
        for follower in &followers {
            follower.equal(engine).await;
            assert!(check(follower, engine));
        }
    }
    live
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_any_schedule_of_faults_followers_equal_owners_and_never_say_so_wrongly() {
    let first = number("KVTAP_NATS_FIRST", 0);
    let schedules = number("KVTAP_NATS_SCHEDULES", 8);
    let mut live = 0;
    for seed in first..first + schedules {
        eprintln!("schedule {seed}");
        live += run(seed).await;
    }
    assert!(live > 0, "nobody was live when looked at: nothing was checked");
    eprintln!("{schedules} schedules; {live} times a rank said live and was");
}
