//! `kvtap serve`: follow every feed of a configuration and answer routers over gRPC until told to stop.

mod admin_rpc;
mod reload;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{Failure, Outcome};
use crate::admin::{self, Admin, Fleet, Readiness, RequestMetrics};
use crate::config::{Config, Env, Format, Watch};
use crate::discovery::Discovery;
use crate::feed::Snapshots;
use crate::feed::status::Board;
use crate::index::Index;
use crate::roster::{Roster, Source};
use crate::serve::{self, AdminRpc, Listener, listen};
use crate::telemetry;
use reload::Reloader;

/// What the last snapshots may take, even where draining has used up the grace.
const LAST_SNAPSHOT: Duration = Duration::from_secs(2);

/// The arguments of `kvtap serve`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The configuration file (YAML); docs/config.md explains every key.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Only read and check the configuration; exit code 64 where it is faulty.
    #[arg(long)]
    check_config: bool,
}

/// Serves until SIGTERM or SIGINT, then drains. A second signal ends the process at once.
///
/// # Errors
/// [`Failure::Config`] with every fault of the file; [`Failure::Failed`] where a socket cannot be bound.
pub async fn run(args: Args) -> Outcome {
    // Before the file is read, so that no change of it is missed.
    let watch = Watch::new(&args.config);
    let (config, warnings) = Config::load(&args.config, &Env::process()).map_err(Failure::Config)?;
    if args.check_config {
        for warning in warnings.iter() {
            eprintln!("{warning}");
        }
        let feeds: u32 = config.feeds.iter().map(|feed| feed.ranks).sum();
        println!("{}: ok, {feeds} feed{}", args.config.display(), if feeds == 1 { "" } else { "s" });
        return Ok(());
    }
    telemetry::start(config.log.level.name(), config.log.format == Format::Json);
    for warning in warnings.iter() {
        tracing::warn!("{warning}");
    }
    let shutdown = CancellationToken::new();
    stop_on_signals(shutdown.clone())?;
    let file = File { path: args.config, watch, hangup: signal(SignalKind::hangup())? };
    serve(config, file, shutdown).await
}

/// The configuration file, and what has it read again.
struct File {
    path: PathBuf,
    watch: Watch,
    hangup: Signal,
}

async fn serve(config: Config, file: File, shutdown: CancellationToken) -> Outcome {
    let index = Index::new(config.limits);
    let board = Arc::new(Board::default());
    let roster = Roster::new(Arc::clone(&index), Arc::clone(&board));
    let fleet = Arc::new(Fleet::new(Arc::clone(&index), board).decided_by(&roster));
    let (requests, readiness) = (RequestMetrics::new(), Readiness::default());

    // Every port is open before the first feed begins: being there does not depend on any engine.
    let listeners = config.grpc.listen.iter().map(Listener::bind).collect::<Result<Vec<_>, _>>();
    let listeners = listeners.map_err(|error| Failure::Failed(error.to_string()))?;
    let admin_at = config.admin.listen;
    let admin_listener = listen::bind_tcp(admin_at)
        .map_err(|error| Failure::Failed(format!("cannot listen on {admin_at} (admin.listen): {error}")))?;
    let rpc_listeners = config.admin_rpc.iter().map(Listener::bind).collect::<Result<Vec<_>, _>>();
    let rpc_listeners = rpc_listeners.map_err(|error| Failure::Failed(format!("{error} (admin_rpc.listen)")))?;
    eprintln!("admin listening on {}", admin_listener.local_addr()?);
    let admin = Admin::new(Arc::clone(&fleet), &requests, readiness.clone());
    let admin_stop = CancellationToken::new();
    let admin_task = tokio::spawn(admin::serve(admin_listener, admin, admin_stop.clone()));

    let snapshots = config.snapshot.open();
    let wanted = config.wanted(snapshots.as_ref()).map_err(|error| Failure::Failed(error.to_string()))?;
    let begun = roster.set(Source::Config, wanted).await;
    if let Some(failed) = begun.failed.into_iter().next() {
        return Err(Failure::Failed(failed));
    }
    let (in_force, config_in_force) = watch::channel(Arc::new(config.clone()));
    let changing = Changing { roster: roster.clone(), snapshots: snapshots.clone(), config: config_in_force };
    let discovery = changing.discovery(&config, &fleet).await?;
    let admin_rpc = changing.admin_rpc(rpc_listeners, shutdown.clone());
    let reloader = Reloader {
        path: file.path,
        started: config.clone(),
        in_force,
        roster: roster.clone(),
        index,
        snapshots,
        reloads: Arc::clone(&fleet.reloads),
    };
    tokio::spawn(reloader.run(file.watch, file.hangup, shutdown.clone()));
    let options = serve::Options {
        max_message_bytes: config.grpc.max_message_bytes,
        reflection: config.grpc.reflection,
        grace: config.grpc.drain_grace,
    };
    let told = tokio::spawn(shutdown.clone().cancelled_owned().map(|()| Instant::now()));
    let served = serve::run(listeners, fleet, requests, readiness, options, shutdown.clone()).await;
    // Without that the server has ended by itself, and nobody waits.
    let drained =
        if shutdown.is_cancelled() { told.await.map_or(Duration::ZERO, |told| told.elapsed()) } else { Duration::ZERO };
    // Nobody changes what runs while it ends.
    if let Some(discovery) = discovery {
        discovery.abort();
    }
    shutdown.cancel();
    admin_rpc.await;
    let left = config.grpc.drain_grace.saturating_sub(drained).max(LAST_SNAPSHOT);
    roster.finish(left).await;
    // The admin port goes last, so that readiness says 503 while requests drain.
    admin_stop.cancel();
    match admin_task.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%error, "The admin port failed."),
        Err(error) => tracing::error!(%error, "The admin port's task failed."),
    }
    served.map_err(|error| Failure::Failed(error.to_string()))
}

/// What may want other feeds than the file does.
struct Changing {
    roster: Roster,
    snapshots: Option<Snapshots>,
    config: watch::Receiver<Arc<Config>>,
}

// === impl Changing ===

impl Changing {
    /// Begins to discover, where that is configured.
    async fn discovery(&self, config: &Config, fleet: &Fleet) -> Result<Option<JoinHandle<()>>, Failure> {
        let Some(settings) = config.discovery.clone() else { return Ok(None) };
        let (roster, snapshots, config) = (self.roster.clone(), self.snapshots.clone(), self.config.clone());
        let discovery = Discovery::new(settings, roster, snapshots, Arc::clone(&fleet.discovered), config).await;
        let discovery = discovery.map_err(|error| Failure::Failed(error.to_string()))?;
        Ok(Some(tokio::spawn(discovery.run())))
    }

    /// Begins to take Admin calls, where that is configured; returns what waits for the end of it.
    fn admin_rpc(self, listeners: Vec<Listener>, shutdown: CancellationToken) -> impl Future<Output = ()> {
        let served = (!listeners.is_empty()).then(|| {
            let service = AdminRpc::new(self.roster, admin_rpc::reader(self.config, self.snapshots));
            tokio::spawn(serve::admin_rpc::run(listeners, service, shutdown))
        });
        async move {
            match served {
                None => {}
                Some(served) => match served.await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::error!(%error, "The Admin service failed."),
                    Err(error) => tracing::error!(%error, "The Admin service's task failed."),
                },
            }
        }
    }
}

/// Cancels `shutdown` at the first SIGTERM or SIGINT; the second ends the process.
fn stop_on_signals(shutdown: CancellationToken) -> std::io::Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        for first in [true, false] {
            tokio::select! {
                _ = term.recv() => {}
                _ = interrupt.recv() => {}
            }
            if first {
                tracing::info!("Told to stop: finishing what is in flight.");
                shutdown.cancel();
            } else {
                std::process::exit(1);
            }
        }
    });
    Ok(())
}
