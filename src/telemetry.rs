//! Log lines: on standard error, as text for people or one JSON object a line for machines.
//!
//! Lines are whole sentences with fields beside them. `error` is for lost data or a person's work; what repeats is
//! limited where it is said. No token, salt, key or hash is ever a field.

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

/// Puts another filter in place of the one that is in force; whether that went well.
type Refilter = Box<dyn Fn(EnvFilter) -> bool + Send + Sync>;

static REFILTER: OnceLock<Refilter> = OnceLock::new();

/// Starts logging for this process, from `level` (`error` to `trace`) on. A second call changes nothing.
pub fn start(level: &str, json: bool) {
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter(level))
        .with_writer(std::io::stderr)
        .with_ansi(!json && std::io::stderr().is_terminal());
    let (started, refilter): (_, Refilter) = if json {
        let lines = lines.json().flatten_event(true).with_filter_reloading();
        let handle = lines.reload_handle();
        (lines.finish().try_init(), Box::new(move |filter| handle.reload(filter).is_ok()))
    } else {
        let lines = lines.with_target(false).with_filter_reloading();
        let handle = lines.reload_handle();
        (lines.finish().try_init(), Box::new(move |filter| handle.reload(filter).is_ok()))
    };
    // Only tests start logging twice in a process, and they may.
    if started.is_ok() {
        REFILTER.get_or_init(|| refilter);
    }
}

/// Changes the level of a log that was started; whether that went well.
pub fn set_level(level: &str) -> bool {
    REFILTER.get().is_some_and(|refilter| refilter(filter(level)))
}

fn filter(level: &str) -> EnvFilter {
    // Other crates speak only when something is wrong.
    EnvFilter::new(format!("warn,kvtap={level}"))
}
