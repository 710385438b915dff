//! `kvtap serve` as operators run it, and the real peers round it: engines on libzmq, a router on grpcio.

#![allow(dead_code, reason = "each test binary uses its part")]

pub mod kvtap;
pub mod peer;
#[path = "../support/python.rs"]
pub mod python;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use peer::Peer;

/// How long a test waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Asks again and again until an answer is `wanted`, and fails by the name of `what` when none is in time.
pub async fn eventually<T: std::fmt::Debug>(
    what: &str,
    mut ask: impl AsyncFnMut() -> T,
    wanted: impl Fn(&T) -> bool,
) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = ask().await;
        if wanted(&answer) {
            return answer;
        }
        assert!(Instant::now() < deadline, "never {what}; the last answer was {answer:?}");
        sleep(Duration::from_millis(2)).await;
    }
}

/// One of the files that tests read.
pub fn fixture(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

/// An engine made of a capture: see the script for `arguments` and commands.
pub async fn capture(file: &str, arguments: &[&str]) -> Peer {
    let file = fixture(file);
    let mut all = vec![file.to_str().expect("a path in UTF-8")];
    all.extend(arguments);
    Peer::start("capture_pub.py", &all).await
}

/// A router that asks the server at `address`; each [`Peer::ask_json`] is one query.
pub async fn router(address: &str) -> Peer {
    Peer::start("grpc_router.py", &["--server", address]).await
}

/// The one entry of a list.
pub fn only(list: &Value) -> &Value {
    match list.as_array().map(Vec::as_slice) {
        Some([one]) => one,
        _ => panic!("one entry is expected in {list}"),
    }
}
