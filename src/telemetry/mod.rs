//! What this process tells of itself while it runs: log lines, the last happenings, traces.
//!
//! ```text
//! events, spans ─┬─ level (changeable) ─▶ lines on standard error: text, or one JSON object each
//!                ├─ info and above ─────▶ recent: the last happenings, for the status page
//!                └─ requests ───────────▶ traces: OTLP, only where OTEL_* variables ask for it
//! ```
//!
//! Lines are whole sentences with fields beside them. `error` is for lost data or a person's work; what repeats is
//! limited where it is said. No token, salt, key or hash is ever a field.
//!
//! Once [`start`] was told `json`, everything that this process writes on standard error is one JSON object a line:
//! what [`announce`] and [`complain`] say, and panics, included.

mod level;
mod recent;
mod tls;
mod traces;

use std::fmt::Display;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

pub use level::{LEVELS, Level, UnknownLevel};
pub use recent::{Happening, Recent};
pub use traces::{Traces, TracesError, request_span};

/// What can be asked of the telemetry while the process runs. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {
    /// The least important level of log lines.
    pub level: Level,
    /// The last happenings.
    pub recent: Recent,
}

/// Lines of this target are written whatever the level: other programs wait for them.
const ANNOUNCEMENTS: &str = "kvtap::announce";

static JSON: AtomicBool = AtomicBool::new(false);

/// Whether spans go anywhere.
static TRACED: AtomicBool = AtomicBool::new(false);

/// Starts logging for this process, from `level` (`error` to `trace`) on, and sends spans to `traces`, where there are
/// any. A second call changes nothing but what it returns, which then controls nothing.
pub fn start(level: &str, json: bool, traces: Option<&Traces>) -> Telemetry {
    let (level, filter) = Level::new(level);
    let recent = Recent::default();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = match json {
        true => lines.json().flatten_event(true).boxed(),
        false => lines.with_ansi(std::io::stderr().is_terminal()).with_target(false).boxed(),
    };
    let worth_keeping = Targets::new()
        .with_default(LevelFilter::WARN)
        .with_target("kvtap", LevelFilter::INFO)
        .with_target(ANNOUNCEMENTS, LevelFilter::OFF)
        .with_target(traces::REQUESTS, LevelFilter::OFF);
    let subscriber = tracing_subscriber::registry()
        .with(traces.map(Traces::layer))
        .with(lines.with_filter(filter))
        .with(recent.clone().with_filter(worth_keeping));
    // Only tests start logging twice in a process, and they may.
    let started = subscriber.try_init().is_ok();
    if started {
        TRACED.store(traces.is_some(), Ordering::Relaxed);
    }
    if started && json {
        JSON.store(true, Ordering::Relaxed);
        std::panic::set_hook(Box::new(|panic| {
            // What a panic says is text of this program: payloads with outside bytes do not exist.
            let place = panic.location().map(ToString::to_string).unwrap_or_default();
            let what = panic.payload_as_str().unwrap_or("of an unknown kind");
            tracing::error!(place, "A task panicked: {what}.");
        }));
    }
    Telemetry { level, recent }
}

/// Says a line that other programs wait for, such as `grpc listening on 127.0.0.1:9400`: as it is, or as the
/// `message` of a JSON line. It is written at every level.
pub fn announce(line: &str) {
    if JSON.load(Ordering::Relaxed) {
        tracing::info!(target: ANNOUNCEMENTS, "{line}");
    } else {
        eprintln!("{line}");
    }
}

/// Says why the process ends, in the lines of `why`.
pub fn complain(why: &dyn Display) {
    if JSON.load(Ordering::Relaxed) {
        tracing::error!("{why}");
    } else {
        eprintln!("{why}");
    }
}
