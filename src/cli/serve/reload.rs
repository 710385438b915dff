//! Reading the configuration file again, while everything runs.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::signal::unix::Signal;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::admin::{Reloaded, Reloads};
use crate::config::{Config, Env, Faults, Warnings, Watch};
use crate::feed::Snapshots;
use crate::index::Index;
use crate::roster::{Roster, Source};
use crate::telemetry;

/// What a new configuration is applied to.
pub(super) struct Reloader {
    pub path: PathBuf,
    /// The one that the process was started with: what cannot change is as it says.
    pub started: Config,
    /// The one in force, for all who go by it.
    pub in_force: watch::Sender<Arc<Config>>,
    pub roster: Roster,
    pub index: Arc<Index>,
    pub snapshots: Option<Snapshots>,
    pub reloads: Arc<Reloads>,
}

// === impl Reloader ===

impl Reloader {
    /// Reads the file again whenever it holds something else, and at each `hangup`, until `shutdown`.
    pub async fn run(self, mut watch: Watch, mut hangup: Signal, shutdown: CancellationToken) {
        loop {
            let cause = tokio::select! {
                () = shutdown.cancelled() => return,
                () = watch.changed() => "the file holds something else",
                _ = hangup.recv() => "SIGHUP",
            };
            self.reload(cause).await;
        }
    }

    async fn reload(&self, cause: &'static str) {
        let (path, file) = (self.path.clone(), self.path.display().to_string());
        let read = spawn_blocking(move || Config::load(&path, &Env::process())).await;
        match read {
            Ok(Ok((config, warnings))) => self.apply(config, &warnings, cause).await,
            Ok(Err(faults)) => self.refuse(&faults, cause),
            Err(error) => tracing::error!(file, %error, "The configuration file could not be read again."),
        }
    }

    fn refuse(&self, faults: &Faults, cause: &'static str) {
        let file = self.path.display();
        for fault in faults.iter() {
            tracing::error!("{fault}");
        }
        tracing::error!(%file, cause, "The configuration file is faulty: the one before stays in force.");
        self.reloads.refused(faults.iter().map(ToString::to_string).collect());
    }

    async fn apply(&self, config: Config, warnings: &Warnings, cause: &'static str) {
        let file = self.path.display().to_string();
        let wanted = match config.wanted(self.snapshots.as_ref()) {
            Ok(wanted) => wanted,
            Err(error) => {
                tracing::error!(file, %error, "The configuration file is faulty: the one before stays in force.");
                self.reloads.refused(vec![error.to_string()]);
                return;
            }
        };
        for warning in warnings.iter() {
            tracing::warn!("{warning}");
        }
        let running = Arc::clone(&self.in_force.borrow());
        let keys = self.started.fixed_changes(&config);
        if !keys.is_empty() && keys != self.started.fixed_changes(&running) {
            let keys = keys.join(", ");
            tracing::warn!(file, keys, "What these keys say comes into force with a restart only.");
        }
        if config.log.level != running.log.level && !telemetry::set_level(config.log.level.name()) {
            tracing::error!("The log's level could not be changed.");
        }
        self.index.set_limits(config.limits);
        let changes = self.roster.set(Source::Config, wanted).await;
        let outcome = if config == *running { Reloaded::Unchanged } else { Reloaded::Applied };
        let (begun, changed, withdrawn) = (changes.begun, changes.changed, changes.withdrawn);
        let untouched = changes.untouched;
        let outcome_word = outcome.name();
        tracing::info!(
            file,
            cause,
            outcome = outcome_word,
            begun,
            changed,
            withdrawn,
            untouched,
            "The configuration file was read again."
        );
        // Who goes by it hears of it after its feeds are there, and not at all of a file that says nothing new.
        if outcome == Reloaded::Applied {
            self.in_force.send_replace(Arc::new(config));
        }
        self.reloads.accepted(outcome, keys);
    }
}
