//! What came of reading the configuration file again.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use serde::Serialize;

use super::report::millis;

/// The record of reloads: written by whoever reloads, read by the admin port.
#[derive(Debug)]
pub struct Reloads {
    record: Mutex<Record>,
}

#[derive(Debug)]
struct Record {
    counts: [u64; Reloaded::ALL.len()],
    read_at: SystemTime,
    in_force_since: SystemTime,
    faults: Vec<String>,
    needs_restart: Vec<&'static str>,
}

/// How things stand with the configuration. Its JSON field names are relied on by other programs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ConfigReport {
    /// Whether the file, as it was last read, is what is in force.
    pub ok: bool,
    /// When it was last read, in milliseconds since the Unix epoch.
    pub read_unix_ms: u64,
    /// Since when what is in force is so.
    pub in_force_since_unix_ms: u64,
    /// What is wrong with the file, one line each; then the one read before it is still in force.
    pub faults: Vec<String>,
    /// Keys whose new values come into force with a restart only.
    pub needs_restart: Vec<&'static str>,
}

/// What came of one reload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reloaded {
    /// The new file is in force, but for what needs a restart.
    Applied,
    /// The file says what was in force already.
    Unchanged,
    /// The file is faulty: the one before stays in force.
    Refused,
}

// === impl Reloaded ===

impl Reloaded {
    /// Every outcome.
    pub const ALL: [Self; 3] = [Self::Applied, Self::Unchanged, Self::Refused];

    /// The outcome's word in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Unchanged => "unchanged",
            Self::Refused => "refused",
        }
    }
}

// === impl Reloads ===

impl Default for Reloads {
    /// The file has been read now, for the first time, and is in force.
    fn default() -> Self {
        let now = SystemTime::now();
        let (faults, needs_restart) = Default::default();
        let record = Record { counts: [0; 3], read_at: now, in_force_since: now, faults, needs_restart };
        Self { record: Mutex::new(record) }
    }
}

impl Reloads {
    /// The file was read, and is in force but for these keys.
    pub fn accepted(&self, outcome: Reloaded, needs_restart: Vec<&'static str>) {
        let mut record = self.lock();
        record.count(outcome);
        record.faults.clear();
        record.needs_restart = needs_restart;
        if outcome == Reloaded::Applied {
            record.in_force_since = record.read_at;
        }
    }

    /// The file was read, and is not in force, for these reasons.
    pub fn refused(&self, faults: Vec<String>) {
        let mut record = self.lock();
        record.count(Reloaded::Refused);
        record.faults = faults;
    }

    /// How things stand.
    pub fn report(&self) -> ConfigReport {
        let record = self.lock();
        ConfigReport {
            ok: record.faults.is_empty(),
            read_unix_ms: millis(since_epoch(record.read_at)),
            in_force_since_unix_ms: millis(since_epoch(record.in_force_since)),
            faults: record.faults.clone(),
            needs_restart: record.needs_restart.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Record ===

impl Record {
    fn count(&mut self, outcome: Reloaded) {
        for (known, count) in Reloaded::ALL.into_iter().zip(&mut self.counts) {
            *count += u64::from(known == outcome);
        }
        self.read_at = SystemTime::now();
    }
}

fn since_epoch(at: SystemTime) -> Duration {
    at.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Exports a record.
#[derive(Debug)]
pub(super) struct ReloadFigures(pub(super) Arc<Reloads>);

impl Collector for ReloadFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let record = self.0.lock();
        let help = "How often the configuration file was read again, by outcome";
        let mut metric = encoder.encode_descriptor("kvtap_config_reloads", help, None, ConstCounter::<u64>::TYPE)?;
        for (outcome, count) in Reloaded::ALL.into_iter().zip(record.counts) {
            ConstCounter::new(count).encode(metric.encode_family(&[("outcome", outcome.name())])?)?;
        }
        let seconds = |at| since_epoch(at).as_secs_f64();
        let gauges: [(_, _, Option<Unit>, f64); 4] = [
            (
                "kvtap_config_last_read_ok",
                "1 where the file, as it was last read, is in force; 0 where it is faulty",
                None,
                f64::from(u8::from(record.faults.is_empty())),
            ),
            (
                "kvtap_config_last_read_timestamp",
                "When the file was last read, since the Unix epoch",
                Some(Unit::Seconds),
                seconds(record.read_at),
            ),
            (
                "kvtap_config_in_force_timestamp",
                "Since when what is in force is so, since the Unix epoch",
                Some(Unit::Seconds),
                seconds(record.in_force_since),
            ),
            (
                "kvtap_config_restart_needed_keys",
                "Keys whose new values come into force with a restart only",
                None,
                record.needs_restart.len() as f64,
            ),
        ];
        for (name, help, unit, value) in gauges {
            let metric = encoder.encode_descriptor(name, help, unit.as_ref(), ConstGauge::<f64>::TYPE)?;
            ConstGauge::new(value).encode(metric)?;
        }
        Ok(())
    }
}
