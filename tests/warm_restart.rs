//! The real binary, stopped or killed and started again, beside a real libzmq engine that goes on, or does not.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "support/python.rs"]
mod python;
mod warm_support;

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use warm_support::{Disk, Stand};

#[tokio::test]
async fn a_restart_of_the_sidecar_alone_goes_on_from_its_snapshot_and_replays_only_what_it_missed() {
    let stand = Stand::new();
    let mut engine = stand.engine().await;
    let mut tap = stand.tap("1h").await;
    for n in 0..40 {
        engine.store(n).await;
    }
    engine.remove(20).await;
    tap.live_at(engine.last()).await;
    assert_eq!(tap.blocks().await, 20);
    let before = tap.report().await;
    tap.terminate().await;

    engine.remove(39).await;
    let asked = engine.asked().await.len();
    let mut tap = stand.tap("1h").await;
    tap.live_at(engine.last()).await;
    assert_eq!(tap.blocks().await, 20);
    engine.store(20).await;
    tap.live_at(engine.last()).await;
    assert_eq!(tap.blocks().await, 39, "what stood behind the hole was restored, and is healed with it");
    let after = tap.report().await;
    assert_eq!(after["epoch"], before["epoch"]);
    assert_eq!(after["resets"].as_object().unwrap().values().filter_map(|n| n.as_u64()).sum::<u64>(), 0, "{after}");
    assert_eq!(after["snapshots"]["restored"], 1);
    assert!(engine.asked().await[asked..].iter().all(|from| *from >= 40), "{:?}", engine.asked().await);
    tap.terminate().await;
}

#[tokio::test]
async fn while_the_engine_is_away_what_was_restored_is_not_live_and_says_why() {
    let stand = Stand::new();
    let mut engine = stand.engine().await;
    let mut tap = stand.tap("1h").await;
    for n in 0..5 {
        engine.store(n).await;
    }
    tap.live_at(engine.last()).await;
    tap.terminate().await;
    engine.kill().await;

    let mut tap = stand.tap("1h").await;
    let report = tap.until("restored", |report| report["blocks"] == 5 && report["state"] == "replaying").await;
    assert_eq!(report["why"], "restored from a snapshot, not proven yet to be of the same engine process");
    // Another engine comes: nothing of the former one is left, though it has come further.
    let mut engine = stand.engine().await;
    for n in 100..108 {
        engine.store(n).await;
    }
    let report = tap.live_at(engine.last()).await;
    assert_eq!((tap.blocks().await, &report["blocks"]), (0, &8.into()));
    assert!(report["epoch"].as_u64() > Some(1), "{report}");
    tap.terminate().await;
}

#[tokio::test]
async fn an_engine_that_restarted_meanwhile_and_passed_the_old_number_leaves_nothing_of_its_former_life() {
    let stand = Stand::new();
    let mut engine = stand.engine().await;
    let mut tap = stand.tap("1h").await;
    for n in 0..5 {
        engine.store(n).await;
    }
    tap.live_at(engine.last()).await;
    tap.terminate().await;
    engine.kill().await;
    let mut engine = stand.engine().await;
    for n in 0..3 {
        engine.store(n).await;
    }
    for n in 100..110 {
        engine.store(n).await;
    }
    let mut tap = stand.tap("1h").await;
    let report = tap.live_at(engine.last()).await;
    assert_eq!((tap.blocks().await, &report["blocks"]), (3, &13.into()));
    assert_eq!((&report["epoch"], &report["resets"]["digest_differs"]), (&2.into(), &1.into()), "{report}");
    // And the number of that epoch is used up, whatever becomes of this process and of that engine.
    tap.kill().await;
    engine.kill().await;
    let mut engine = stand.engine().await;
    engine.store(0).await;
    let mut tap = stand.tap("1h").await;
    assert_eq!(tap.live_at(engine.last()).await["epoch"], 3);
    tap.terminate().await;
}

#[tokio::test]
async fn a_torn_or_foreign_file_is_refused_and_counted_and_the_feed_begins_anew() {
    let stand = Stand::new();
    let mut engine = stand.engine().await;
    let mut tap = stand.tap("1h").await;
    for n in 0..5 {
        engine.store(n).await;
    }
    tap.live_at(engine.last()).await;
    tap.terminate().await;
    let file = stand.file();
    let whole = std::fs::read(&file).unwrap();
    let mut changed = whole.clone();
    *changed.last_mut().unwrap() ^= 1;
    for (bytes, reason) in
        [(&whole[..whole.len() - 1], "torn"), (&changed[..], "checksum"), (b"something else", "foreign")]
    {
        std::fs::write(&file, bytes).unwrap();
        let mut tap = stand.tap("1h").await;
        let report = tap.live_at(engine.last()).await;
        assert_eq!((tap.blocks().await, &report["snapshots_refused"][reason]), (5, &1.into()), "{report}");
        tap.kill().await;
    }
}

#[tokio::test]
async fn a_full_disk_costs_the_next_snapshot_and_neither_the_last_one_nor_an_answer() {
    let stand = Stand::new();
    let disk = Disk::new(stand.snapshots());
    let mut engine = stand.engine().await;
    let mut tap = stand.tap("1h").await;
    for n in 0..5 {
        engine.store(n).await;
    }
    tap.live_at(engine.last()).await;
    tap.terminate().await;
    let file = stand.file();
    let whole = std::fs::read(&file).unwrap();

    disk.fill(&file);
    let mut tap = stand.tap("1s").await;
    engine.store(5).await;
    let report = tap.live_at(engine.last()).await;
    assert_eq!((tap.blocks().await, &report["snapshots"]["restored"]), (6, &1.into()), "{report}");
    let report = tap.until("a failure", |report| report["snapshots"]["failed"].as_u64() > Some(0)).await;
    assert_eq!((&report["state"], tap.blocks().await), (&"live".into(), 6), "{report}");
    assert_eq!(std::fs::read(&file).unwrap(), whole, "the last snapshot is whole");
    tap.kill().await;

    let mut tap = stand.tap("1s").await;
    let report = tap.live_at(engine.last()).await;
    assert_eq!((tap.blocks().await, &report["snapshots"]["restored"]), (6, &1.into()), "{report}");
    disk.free(&file);
    tap.until("written", |report| report["snapshots"]["written"].as_u64() > Some(0)).await;
    assert_ne!(std::fs::read(&file).unwrap(), whole);
    tap.terminate().await;
}

/// How often each seed's sidecar is killed.
const KILLS: usize = 10;

/// Kills a sidecar again and again, at moments that follow from the seed up to the timing of processes. How often one
/// was restored from its snapshot.
async fn killed_at_any_moment(seed: u64) -> u64 {
    let stand = Stand::new();
    let mut engine = stand.engine().await;
    engine.store(0).await;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut restored = 0;
    for round in 0..KILLS {
        let mut tap = stand.tap("1s").await;
        // Not always: it is killed while it loads and proves, too.
        if rng.u8(0..3) > 0 {
            let report = tap.live_at(engine.last()).await;
            restored += report["snapshots"]["restored"].as_u64().unwrap_or(0);
            assert_eq!(tap.blocks().await, engine.leading(), "seed {seed}, round {round}: {report}");
            assert_eq!(report["blocks"], engine.held(), "seed {seed}, round {round}: {report}");
        }
        let until = Instant::now() + Duration::from_millis(rng.u64(0..1_500));
        while Instant::now() < until {
            engine.random(&mut rng).await;
        }
        tap.kill().await;
        if rng.u8(0..4) == 0 {
            engine.kill().await;
            engine = stand.engine().await;
            engine.store(0).await;
        }
    }
    let mut tap = stand.tap("1s").await;
    engine.random(&mut rng).await;
    let report = tap.live_at(engine.last()).await;
    let (leading, held) = (engine.leading(), engine.held());
    assert_eq!((tap.blocks().await, &report["blocks"]), (leading, &held.into()), "seed {seed}: {report}");
    tap.terminate().await;
    restored
}

#[tokio::test]
async fn killed_at_any_moment_it_is_exact_again_once_it_is_live() {
    let restored: Vec<u64> = join_all([11, 12, 13, 14].map(killed_at_any_moment)).await;
    assert!(restored.iter().sum::<u64>() > 0, "snapshots were of use: {restored:?}");
}
