//! What waiting costs: memory with one feed, processor time with eight, and the binary's size.

use std::path::Path;
use std::time::Duration;

use crate::engine::{Publisher, stored};
use crate::fleet::configured;
use crate::process::Server;

/// How long processor time is counted.
const WATCHED: Duration = Duration::from_secs(30);

pub async fn run(kvtap: &Path) {
    println!("\nidle");
    println!("  binary: {:.1} MiB", std::fs::metadata(kvtap).unwrap().len() as f64 / f64::from(1 << 20));
    for feeds in [1, 8] {
        let mut publishers = Vec::new();
        for _ in 0..feeds {
            publishers.push(Publisher::new().await);
        }
        let endpoints: Vec<&str> = publishers.iter().map(|publisher| publisher.endpoint()).collect();
        let (_folder, file) = configured(&endpoints);
        let (child, _) = Server::start(kvtap, &["serve", "--config", &file], "grpc listening on ");
        tokio::time::sleep(Duration::from_secs(2)).await;
        for (worker, publisher) in publishers.iter_mut().enumerate() {
            publisher.publish(stored(&[7; 160], worker)).await;
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        let before = child.cpu();
        tokio::time::sleep(WATCHED).await;
        let used = (child.cpu() - before) as f64 / WATCHED.as_nanos() as f64;
        let memory = child.resident() as f64 / 1024.0;
        println!("  {feeds} feeds: {memory:.1} MiB resident, {:.3} % of a core", used * 100.0);
    }
}
