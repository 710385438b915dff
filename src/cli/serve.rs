//! `kvtap serve`: follow every feed of a configuration and answer routers over gRPC until told to stop.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{Failure, Outcome};
use crate::admin::report::SnapshotFolder;
use crate::admin::{self, Admin, Fleet, Readiness, RequestMetrics};
use crate::config::{self, Config, Engine, Env, Format};
use crate::feed::http::PollOptions;
use crate::feed::nats::{Plane, PlaneOptions};
use crate::feed::status::Board;
use crate::feed::zmq::EndpointError;
use crate::feed::{self, Feed, Snapshots, runner::Timing};
use crate::index::Index;
use crate::normalize;
use crate::relay::Relay;
use crate::serve::{self, Listener, listen};
use crate::snapshot::Store;
use crate::telemetry;
use crate::wire::Dialect;

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
    telemetry::start(config.log.level.name(), config.log.format == Format::Json);
    for warning in warnings.iter() {
        tracing::warn!("{warning}");
    }
    let shutdown = CancellationToken::new();
    stop_on_signals(shutdown.clone())?;
    serve(config, shutdown).await
}

async fn serve(config: Config, shutdown: CancellationToken) -> Outcome {
    let index = Index::new(config.limits);
    let board = Arc::new(Board::default());
    let fleet = Arc::new(Fleet::new(Arc::clone(&index), Arc::clone(&board)));
    let (requests, readiness) = (RequestMetrics::new(), Readiness::default());

    // Every port is open before the first feed begins: being there does not depend on any engine.
    let listeners = config.grpc.listen.iter().map(Listener::bind).collect::<Result<Vec<_>, _>>();
    let listeners = listeners.map_err(|error| Failure::Failed(error.to_string()))?;
    let admin_at = config.admin.listen;
    let admin_listener = listen::bind_tcp(admin_at)
        .map_err(|error| Failure::Failed(format!("cannot listen on {admin_at} (admin.listen): {error}")))?;
    eprintln!("admin listening on {}", admin_listener.local_addr()?);
    let admin = Admin::new(Arc::clone(&fleet), &requests, readiness.clone());
    let admin_stop = CancellationToken::new();
    let admin_task = tokio::spawn(admin::serve(admin_listener, admin, admin_stop.clone()));

    let feeds = spawn_feeds(&config, &fleet)?;
    let planes = spawn_planes(&config, &fleet)?;
    let relay = config.relay.clone().map(|relay| Relay::spawn(relay, &fleet.index, &fleet.board));
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
    let left = config.grpc.drain_grace.saturating_sub(drained).max(LAST_SNAPSHOT);
    if let Some(relay) = relay {
        relay.stop().await;
    }
    join_all(feeds.into_iter().map(|feed| feed.finish(left))).await;
    join_all(planes.into_iter().map(Plane::stop)).await;
    // The admin port goes last, so that readiness says 503 while requests drain.
    admin_stop.cancel();
    match admin_task.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%error, "The admin port failed."),
        Err(error) => tracing::error!(%error, "The admin port's task failed."),
    }
    served.map_err(|error| Failure::Failed(error.to_string()))
}

fn spawn_feeds(config: &Config, fleet: &Fleet) -> Result<Vec<Feed>, Failure> {
    let (index, board) = (&fleet.index, &fleet.board);
    let snapshots = snapshots(&config.snapshot, fleet);
    let mut feeds = Vec::new();
    for feed in &config.feeds {
        if let Some(poll) = feed.poll() {
            let spawned = Feed::spawn_polled(polled_options(feed, poll), index, board);
            feeds.extend(spawned.map_err(|error| Failure::Failed(format!("{}: {error}", feed.worker)))?);
            continue;
        }
        for rank in feed.rank_numbers() {
            // What is not polled has a link.
            let Some(options) = feed_options(feed, rank, snapshots.as_ref()).transpose() else { continue };
            let spawned =
                options.map_err(feed::SpawnError::from).and_then(|options| Feed::spawn(options, index, board));
            feeds.push(spawned.map_err(|error| Failure::Failed(format!("{}: {error}", feed.identity(rank))))?);
        }
    }
    Ok(feeds)
}

/// The subscriptions of NATS.
fn spawn_planes(config: &Config, fleet: &Fleet) -> Result<Vec<Plane>, Failure> {
    let over_nats = config.feeds.iter().filter_map(|feed| Some((feed, feed.nats(&config.nats)?)));
    let planes = over_nats.map(|(feed, (connection, subscription))| {
        let options = PlaneOptions {
            identity: feed.identity(feed.first_rank),
            engine: feed.engine.name(),
            dialect: dialect(feed.engine),
            connection,
            pattern: subscription.subject.clone(),
            stream: subscription.stream.clone(),
            ranks: feed.rank_numbers(),
            max_ranks: subscription.max_ranks,
            silence: subscription.silence_grace,
            copies: feed.copies,
            normalize: normalize_options(feed),
            timing: timing(feed),
            limits: Default::default(),
            queue: feed.tuning.queue,
        };
        Plane::spawn(options, &fleet.index, &fleet.board)
            .map_err(|error| Failure::Failed(format!("{}: {error}", feed.worker)))
    });
    planes.collect()
}

/// Where snapshots go. A directory that cannot be used costs the snapshots, not the service.
fn snapshots(config: &config::Snapshot, fleet: &Fleet) -> Option<Snapshots> {
    let directory = config.directory.as_deref()?;
    let opened = Store::open(directory);
    let fault = opened.as_ref().err().map(ToString::to_string);
    fleet.set_snapshots(SnapshotFolder { directory: directory.display().to_string(), fault });
    match opened {
        Ok(store) => Some(Snapshots { store, interval: config.interval }),
        Err(error) => {
            tracing::error!(directory = %directory.display(), %error, "No snapshots are taken or loaded: the directory cannot be used.");
            None
        }
    }
}

fn feed_options(
    feed: &config::Feed,
    rank: u32,
    snapshots: Option<&Snapshots>,
) -> Result<Option<feed::Options>, EndpointError> {
    let Some(link) = feed.link(rank)? else { return Ok(None) };
    Ok(Some(feed::Options {
        identity: feed.identity(rank),
        engine: feed.engine.name(),
        dialect: dialect(feed.engine),
        link,
        replay: feed.replay(rank)?,
        copies: feed.copies,
        normalize: normalize_options(feed),
        timing: timing(feed),
        limits: Default::default(),
        snapshots: snapshots.cloned(),
    }))
}

fn polled_options(feed: &config::Feed, poll: PollOptions) -> feed::PolledOptions {
    feed::PolledOptions {
        identities: feed.rank_numbers().map(|rank| feed.identity(rank)).collect(),
        engine: feed.engine.name(),
        dialect: dialect(feed.engine),
        poll,
        copies: feed.copies,
        normalize: normalize_options(feed),
        timing: timing(feed),
        limits: Default::default(),
    }
}

fn dialect(engine: Engine) -> Dialect {
    match engine {
        Engine::Vllm => Dialect::Vllm,
        Engine::Sglang => Dialect::Sglang,
        Engine::Trtllm => Dialect::Trtllm,
        // The configuration refuses `dynamo` for ZMQ feeds.
        Engine::Dynamo => Dialect::Dynamo,
        Engine::Auto => Dialect::Auto,
    }
}

fn normalize_options(feed: &config::Feed) -> normalize::Options {
    normalize::Options { block_size: feed.grid.map(|grid| grid.size()), ..Default::default() }
}

fn timing(feed: &config::Feed) -> Timing {
    Timing { grace: Some(feed.tuning.disconnect_grace), ..Timing::default() }
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
