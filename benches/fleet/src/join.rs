//! How long a follower needs until it is exact, against moving the bytes of the snapshots alone.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use kvtap::sim::encode::Dialect;

use crate::engines::{Engines, Shape};
use crate::member::{Follower, Owner};
use crate::server::Server;
use crate::{processor, verdict};

const WORKERS: usize = 64;
const BLOCKS: usize = 32 << 10;
const ROUNDS: usize = 5;
/// Snapshots that are asked for at a time, as a follower does.
const JOINS: usize = 4;

pub async fn run(server: &Server) -> bool {
    println!("\na follower joins {WORKERS} workers of {BLOCKS} blocks each");
    let mut owner = Owner::new(WORKERS, None);
    let messages = Engines::new(Shape::Prefill, Dialect::Array22, WORKERS, BLOCKS);
    messages.take(WORKERS * BLOCKS / 512).for_each(|message| owner.ingest(&message));
    owner.publish(server.url());
    // Until the owner answers for all of them.
    let first = Follower::join(server.url());
    first.until_equal(&owner).await;
    first.stop().await;
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        let (bytes, pieces, moving) = move_alone(server).await;
        let begun = (Instant::now(), processor());
        let follower = Follower::join(server.url());
        follower.until_equal(&owner).await;
        let (exact, cpu) = (begun.0.elapsed().as_secs_f64(), (processor() - begun.1) / 1e9);
        follower.stop().await;
        let mb = bytes as f64 / 1e6;
        println!(
            "  round {round}: {mb:.1} MB in {pieces} pieces moved in {moving:.2} s; exact in {exact:.2} s ({cpu:.2} s of processor); {:.2}",
            exact / moving
        );
        ratios.push(exact / moving);
    }
    owner.stop().await;
    verdict("median", crate::quantile(&mut ratios, 0.5), 3.0)
}

/// Asks for every snapshot and throws away what comes.
async fn move_alone(server: &Server) -> (usize, usize, f64) {
    let client = async_nats::connect(server.url()).await.unwrap();
    let begun = Instant::now();
    let fetch = |worker: usize| {
        let client = client.clone();
        async move {
            let inbox = client.new_inbox();
            let mut answers = client.subscribe(inbox.clone()).await.unwrap();
            let subject = format!("kvtap.v1.snapshot.model.pod-{worker}.0");
            client.publish_with_reply(subject, inbox, bytes::Bytes::new()).await.unwrap();
            let (mut bytes, mut pieces) = (0, 0);
            loop {
                let piece = tokio::time::timeout(Duration::from_secs(10), answers.next()).await.unwrap().unwrap();
                bytes += piece.payload.len();
                pieces += 1;
                // The last one holds nothing but a name and a point.
                if pieces > 1 && piece.payload.len() < 256 {
                    return (bytes, pieces);
                }
            }
        }
    };
    let mut moved = futures_util::stream::iter(0..WORKERS).map(fetch).buffer_unordered(JOINS);
    let (mut bytes, mut pieces) = (0, 0);
    while let Some((b, p)) = moved.next().await {
        bytes += b;
        pieces += p;
    }
    (bytes, pieces, begun.elapsed().as_secs_f64())
}
