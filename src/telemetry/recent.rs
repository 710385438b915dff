//! The last happenings: what was worth a log line, kept for whoever looks at the status page.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The last happenings of this process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Recent(Arc<Mutex<VecDeque<Happening>>>);

/// Something that was worth a log line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Happening {
    /// When, in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// How important: `error`, `warn` or `info`.
    pub level: &'static str,
    /// The sentence.
    pub message: String,
    /// What it speaks of, as `name=value name=value`.
    pub fields: String,
}

/// How many are kept.
const KEPT: usize = 100;

/// The longest sentence, and the longest list of fields, in bytes: a peer's words may be in them.
const LONGEST: usize = 512;

// === impl Recent ===

impl Recent {
    /// The newest first.
    pub fn list(&self) -> Vec<Happening> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().cloned().collect()
    }

    fn push(&self, happening: Happening) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT {
            kept.pop_front();
        }
        kept.push_back(happening);
    }
}

impl<S: Subscriber> Layer<S> for Recent {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut words = Words::default();
        event.record(&mut words);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.push(Happening {
            unix_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            level: match *event.metadata().level() {
                tracing::Level::ERROR => "error",
                tracing::Level::WARN => "warn",
                _ => "info",
            },
            message: words.message.text,
            fields: words.fields.text,
        });
    }
}

/// Text that takes no more than [`LONGEST`] bytes, and says where it was cut.
#[derive(Default)]
struct Cut {
    text: String,
    full: bool,
}

#[derive(Default)]
struct Words {
    message: Cut,
    fields: Cut,
}

// === impl Cut ===

impl Write for Cut {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = LONGEST.saturating_sub(self.text.len());
        if !self.full && text.len() <= room {
            self.text.push_str(text);
            return Ok(());
        }
        if !self.full {
            self.full = true;
            self.text.push_str(text.get(..text.floor_char_boundary(room)).unwrap_or_default());
            self.text.push('…');
        }
        // Nobody goes on formatting what is not kept.
        Err(fmt::Error)
    }
}

// === impl Words ===

impl Words {
    fn field(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        // An error says that the text was cut, which stands in the text.
        let _ = match field.name() {
            "message" => self.message.write_fmt(value),
            name => {
                let space = if self.fields.text.is_empty() { "" } else { " " };
                self.fields.write_fmt(format_args!("{space}{name}={value}"))
            }
        };
    }
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.field(field, format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.field(field, format_args!("{value}"));
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    fn told(tell: impl FnOnce()) -> Vec<Happening> {
        let recent = Recent::default();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(recent.clone()), tell);
        recent.list()
    }

    #[test]
    fn a_happening_is_its_sentence_and_its_fields_and_the_newest_comes_first() {
        let told = told(|| {
            tracing::warn!(feed = %"pod-a rank 0", epoch = 2, why = "it restarted", "The feed's state changed.");
            tracing::error!("Later.");
        });
        assert_eq!((told[0].level, told[0].message.as_str(), told[0].fields.as_str()), ("error", "Later.", ""));
        assert_eq!((told[1].level, told[1].message.as_str()), ("warn", "The feed's state changed."));
        assert_eq!(told[1].fields, "feed=pod-a rank 0 epoch=2 why=it restarted");
    }

    #[test]
    fn only_so_many_and_only_so_much_of_each_is_kept() {
        let told = told(|| {
            for number in 0..3 * KEPT {
                tracing::info!(number, more = "ü".repeat(LONGEST), "Again.");
            }
        });
        assert_eq!(told.len(), KEPT);
        assert!(told[0].fields.starts_with(&format!("number={} more=ü", 3 * KEPT - 1)), "{}", told[0].fields);
        assert!(told.iter().all(|one| one.fields.len() <= LONGEST + '…'.len_utf8() && one.fields.ends_with('…')));
    }
}
