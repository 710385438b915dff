//! Log lines: on standard error, as text for people or one JSON object a line for machines.
//!
//! Lines are whole sentences with fields beside them. `error` is for lost data or a person's work; what repeats is
//! limited where it is said. No token, salt, key or hash is ever a field.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

/// Starts logging for this process, from `level` (`error` to `trace`) on. A second call changes nothing.
pub fn start(level: &str, json: bool) {
    // Other crates speak only when something is wrong.
    let filter = EnvFilter::new(format!("warn,kvtap={level}"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Only tests start logging twice in a process, and they may.
    let _ = match json {
        true => lines.json().flatten_event(true).finish().try_init(),
        false => lines.with_ansi(std::io::stderr().is_terminal()).with_target(false).finish().try_init(),
    };
}
