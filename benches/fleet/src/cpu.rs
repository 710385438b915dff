//! Processor time that publishing costs beside tapping: the same messages, once without the relay and once with it.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use kvtap::sim::encode::Dialect;

use crate::engines::{CAPACITY, Engines, Message, RANKS, Shape};
use crate::member::Owner;
use crate::server::Server;
use crate::{processor, verdict};

const ROUNDS: usize = 5;

pub async fn run(server: &Server) -> bool {
    println!("\nprocessor time of the owner for each block stored (and one removed), in ns");
    let mut reached = true;
    for shape in [Shape::Decode, Shape::Prefill] {
        for (form, dialect) in [("arrays", Dialect::Array22), ("maps", Dialect::Map33)] {
            for paced in [false, true] {
                reached &= measure(server, shape, form, dialect, paced).await;
            }
        }
    }
    reached
}

async fn measure(server: &Server, shape: Shape, form: &str, dialect: Dialect, paced: bool) -> bool {
    let mut messages = Engines::new(shape, dialect, RANKS, CAPACITY);
    let mut alone = Owner::new(RANKS, None);
    let mut relayed = Owner::new(RANKS, Some(server.url()));
    // Something must listen, or the server has nothing to deliver.
    let client = async_nats::connect(server.url()).await.unwrap();
    let mut owners = client.subscribe("kvtap.v1.owners.>").await.unwrap();
    for _ in 0..RANKS {
        owners.next().await.unwrap();
    }
    drop(owners);
    drop(client);
    for message in messages.by_ref().take(shape.fill(RANKS)) {
        alone.ingest(&message);
        relayed.ingest(&message);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (mut without, mut with, mut blocks) = (0.0, 0.0, 0);
    for _ in 0..ROUNDS {
        let length = if paced { 4000 } else { RANKS * 4096 };
        let round: Vec<Message> = messages.by_ref().take((length / shape.blocks_a_message()).max(200)).collect();
        blocks += round.iter().map(|message| message.stored).sum::<usize>();
        without += feed(&mut alone, &round, paced).await;
        with += feed(&mut relayed, &round, paced).await;
    }
    let (without, with) = (without / blocks as f64, with / blocks as f64);
    let speed = if paced { "a step at a time" } else { "as fast as it goes" };
    println!("{}, {form}, {speed}: ingest {without:.0}, with the relay {with:.0}", shape.name());
    relayed.stop().await;
    verdict("relay beside ingest", (with - without) / without, 0.5)
}

/// Processor time for a round, until all of it is published.
async fn feed(owner: &mut Owner, round: &[Message], paced: bool) -> f64 {
    let begun = processor();
    for (i, message) in round.iter().enumerate() {
        owner.ingest(message);
        if paced && i % RANKS == RANKS - 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    settle().await;
    processor() - begun
}

/// Until nothing is done any more.
async fn settle() {
    let begun = Instant::now();
    loop {
        let before = processor();
        tokio::time::sleep(Duration::from_millis(20)).await;
        if processor() - before < 2e6 || begun.elapsed() > Duration::from_secs(5) {
            return;
        }
    }
}
