//! `kvtap serve`: follow every feed of a configuration and answer routers over gRPC until told to stop.

mod admin_rpc;
mod changing;
mod reload;

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Failure, Outcome};
use crate::admin::report::SnapshotFolder;
use crate::admin::{self, Admin, Fleet, Readiness, RequestMetrics};
use crate::config::{Config, Env, Format, Watch};
use crate::feed::Snapshots;
use crate::feed::status::Board;
use crate::index::Index;
use crate::relay::Relay;
use crate::roster::{Roster, Source};
use crate::serve::{self, Listener, listen};
use crate::snapshot::Store;
use crate::telemetry::{self, Telemetry, Traces, announce};
use changing::Changing;
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
        if let Some(Err(error)) = config.snapshot.directory.as_deref().map(Store::check) {
            eprintln!("snapshot.directory: cannot be used here, so no snapshot would be taken or loaded: {error}");
        }
        let feeds: u32 = config.feeds.iter().map(|feed| feed.ranks).sum();
        let plural = if feeds == 1 { "" } else { "s" };
        return Ok(writeln!(std::io::stdout(), "{}: ok, {feeds} feed{plural}", args.config.display())?);
    }
    let traces = Traces::from_env().map_err(|error| Failure::Usage(error.to_string()))?;
    let telemetry = telemetry::start(config.log.level.name(), config.log.format == Format::Json, traces.as_ref());
    for warning in warnings.iter() {
        tracing::warn!("{warning}");
    }
    let shutdown = CancellationToken::new();
    stop_on_signals(shutdown.clone())?;
    let file = File { path: args.config, watch, hangup: signal(SignalKind::hangup())? };
    let served = serve(config, file, telemetry, shutdown).await;
    if let Some(traces) = traces {
        // It gives up by itself when the collector does not answer.
        let sent = tokio::task::spawn_blocking(move || traces.finish()).await;
        sent.map_err(|error| Failure::Failed(error.to_string()))?;
    }
    served
}

/// The configuration file, and what has it read again.
struct File {
    path: PathBuf,
    watch: Watch,
    hangup: Signal,
}

async fn serve(config: Config, file: File, telemetry: Telemetry, shutdown: CancellationToken) -> Outcome {
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
    let rpc_listeners = config.admin_rpc.listen.iter().map(Listener::bind).collect::<Result<Vec<_>, _>>();
    let rpc_listeners = rpc_listeners.map_err(|error| Failure::Failed(format!("{error} (admin_rpc.listen)")))?;
    announce(&format!("admin listening on {}", admin_listener.local_addr()?));
    let level = telemetry.level.clone();
    let admin =
        Admin::new(Arc::clone(&fleet), &requests, readiness.clone()).bounded(config.admin.bounds).telling(telemetry);
    let admin_stop = CancellationToken::new();
    let admin_task = tokio::spawn(admin::serve(admin_listener, admin, admin_stop.clone()));

    let snapshots = snapshots(&config, &fleet);
    let wanted = config.wanted(snapshots.as_ref()).map_err(|error| Failure::Failed(error.to_string()))?;
    let begun = roster.set(Source::Config, wanted).await;
    if !begun.failed.is_empty() {
        return Err(Failure::Failed(begun.failed.join("\n")));
    }
    let (in_force, config_in_force) = watch::channel(Arc::new(config.clone()));
    let changing = Changing { roster: roster.clone(), snapshots: snapshots.clone(), config: config_in_force };
    let discovery = changing.discovery(&config, &fleet).await?;
    let guards = config.admin_rpc.guards.clone();
    let admin_rpc = changing.admin_rpc(rpc_listeners, guards, requests.clone(), shutdown.clone())?;
    let reloader = Reloader {
        path: file.path,
        started: config.clone(),
        in_force,
        roster: roster.clone(),
        index,
        level,
        snapshots,
        reloads: Arc::clone(&fleet.reloads),
    };
    tokio::spawn(reloader.run(file.watch, file.hangup, shutdown.clone()));
    let relay =
        config.relay.clone().map(|relay| Relay::spawn_counted(relay, &fleet.index, &fleet.board, &fleet.relayed));
    let options = serve::Options {
        max_message_bytes: config.grpc.max_message_bytes,
        reflection: config.grpc.reflection,
        grace: config.grpc.drain_grace,
        limits: config.grpc.limits,
        keep_alive: config.grpc.keep_alive,
        tls: config.grpc.tls.clone(),
        token_file: config.grpc.token_file.clone(),
        adapters: config.grpc.adapters.clone(),
        watch: config.grpc.watch,
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
    if let Some(relay) = relay {
        relay.stop().await;
    }
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

/// Where snapshots go. A directory that cannot be used costs the snapshots, not the service.
fn snapshots(config: &Config, fleet: &Fleet) -> Option<Snapshots> {
    let path = config.snapshot.directory.as_deref()?;
    let directory = path.display().to_string();
    let opened = config.snapshot.open();
    let fault = opened.as_ref().err().map(ToString::to_string);
    if let Some(error) = &fault {
        tracing::error!(directory, error, "No snapshots are taken or loaded: the directory cannot be used.");
    }
    // What is there can be loaded even where nothing more can be written.
    let fault = fault.or_else(|| Store::check(path).err().map(|error| error.to_string()));
    fleet.set_snapshots(SnapshotFolder { directory, fault });
    opened.ok().flatten()
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
