//! From an engine's message at its owner to a follower's match, against NATS alone: the same bytes, the same server, turn by
//! turn, seen by the same thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use kvtap::sim::encode::Dialect;

use crate::engines::{BLOCK, CAPACITY, Engines, RANKS, Shape};
use crate::member::{Follower, Owner, contents, matched};
use crate::server::Server;
use crate::{quantile, verdict};

const ROUNDS: usize = 4000;

/// The pause between two: an engine's step.
const PAUSE: Duration = Duration::from_millis(2);

pub async fn run(server: &Server) -> bool {
    println!(
        "\nfrom an engine's message at its owner to a follower's match, and NATS alone (the same bytes, published and received)"
    );
    let mut owner = Owner::new(RANKS, Some(server.url()));
    let follower = Follower::join(server.url());
    follower.until_equal(&owner).await;
    let sender = async_nats::connect(server.url()).await.unwrap();
    let receiver = async_nats::connect(server.url()).await.unwrap();
    let mut floor = receiver.subscribe("floor.model.pod-0.0").await.unwrap();
    receiver.flush().await.unwrap();
    let seen = Arc::new(AtomicU64::new(0));
    let arrived = Arc::clone(&seen);
    tokio::spawn(async move {
        while floor.next().await.is_some() {
            arrived.fetch_add(1, Ordering::Release);
        }
    });
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let payload = bytes::Bytes::from(vec![7_u8; 60]);
    let mut engines = Engines::new(Shape::Decode, Dialect::Array22, RANKS, CAPACITY);
    for round in 0..ROUNDS {
        let message = engines.next().unwrap();
        let prompt = engines.prompt(message.rank);
        let wanted = (prompt.len() / BLOCK) as u32;
        let contents = contents(prompt);
        let entry = follower.rank(&format!("pod-{}", message.rank)).unwrap();

        let begun = Instant::now();
        owner.ingest(&message);
        while matched(&follower.index, &entry, &contents) != wanted {
            assert!(begun.elapsed() < Duration::from_secs(10), "it is never seen");
            std::thread::yield_now();
        }
        ours.push(begun.elapsed().as_secs_f64() * 1e6);
        tokio::time::sleep(PAUSE).await;

        let begun = Instant::now();
        sender.publish("floor.model.pod-0.0", payload.clone()).await.unwrap();
        while seen.load(Ordering::Acquire) != round as u64 + 1 {
            std::thread::yield_now();
        }
        theirs.push(begun.elapsed().as_secs_f64() * 1e6);
        tokio::time::sleep(PAUSE).await;
    }
    let mut reached = true;
    println!("{} messages each, in us", ours.len());
    for (name, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
        let (ours, theirs) = (quantile(&mut ours, share), quantile(&mut theirs, share));
        println!("  {name}: {ours:.0} against {theirs:.0}: {:.2}", ours / theirs);
        if share == 0.99 {
            reached = verdict("p99", ours / theirs, 1.5);
        }
    }
    owner.stop().await;
    follower.stop().await;
    reached
}
