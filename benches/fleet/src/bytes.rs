//! Bytes on the wire for each block: the engine's own message against what the relay publishes of it.

use std::time::Duration;

use futures_util::StreamExt;
use kvtap::sim::encode::Dialect;

use crate::engines::{CAPACITY, Engines, RANKS, Shape};
use crate::member::Owner;
use crate::server::Server;
use crate::verdict;

/// Messages of a full cache that are measured, each alone: what gathers under load costs less.
const MEASURED: usize = 100;

pub async fn run(server: &Server) -> bool {
    println!("bytes a block of 16 tokens, each engine message published alone");
    let mut reached = true;
    for (shape, most) in [(Shape::Decode, 0.4), (Shape::Prefill, 0.4)] {
        for (form, dialect) in [("arrays", Dialect::Array22), ("maps", Dialect::Map33)] {
            for full in [false, true] {
                reached &= measure(server, shape, form, dialect, full, most).await;
            }
        }
    }
    reached
}

async fn measure(server: &Server, shape: Shape, form: &str, dialect: Dialect, full: bool, most: f64) -> bool {
    let mut owner = Owner::new(RANKS, Some(server.url()));
    let client = async_nats::connect(server.url()).await.unwrap();
    let mut published = client.subscribe("kvtap.v1.events.>").await.unwrap();
    let mut owners = client.subscribe("kvtap.v1.owners.>").await.unwrap();
    for _ in 0..RANKS {
        owners.next().await.unwrap();
    }
    let mut messages = Engines::new(shape, dialect, RANKS, CAPACITY);
    if full {
        messages.by_ref().take(shape.fill(RANKS)).for_each(|message| owner.ingest(&message));
        // What was published of that is no part of it.
        while let Ok(Some(_)) = tokio::time::timeout(Duration::from_millis(500), published.next()).await {}
    }
    let (mut raw, mut framed, mut payload, mut whole, mut blocks) = (0, 0, 0, 0, 0);
    for message in messages.take(MEASURED) {
        owner.ingest(&message);
        let told = published.next().await.unwrap();
        raw += message.frames[2].len();
        framed += message.frames.iter().map(|frame| frame.len() + 2).sum::<usize>();
        payload += told.payload.len();
        whole += told.length;
        blocks += message.stored;
    }
    let each = |bytes: usize| bytes as f64 / blocks as f64;
    let cache = if full { "full cache: as many removed" } else { "stores alone" };
    println!(
        "{}, {form}, {cache}: engine {:.1} ({:.1} with frames), relay {:.1} ({:.1} with subject and headers; {:.2})",
        shape.name(),
        each(raw),
        each(framed),
        each(payload),
        each(whole),
        each(whole) / each(framed),
    );
    owner.stop().await;
    verdict("payload of payload", each(payload) / each(raw), most)
}
