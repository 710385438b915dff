//! The settings that are there once: servers, log, limits, and the defaults of every feed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::fault::{Place, Placed};
use super::read::{Default, Reader, Section};
use super::rule::{Address, Bytes, Flag, Number, TcpAddress, Text, Time, Words};
use crate::feed::link::QueueLimits;
use crate::feed::zmq::{Heartbeat, Transport};
use crate::index::Limits;
use crate::net::Bounds;
use crate::serve::{self, Adapter, KeepAlive, ListenAddr, TlsFiles, WatchLimits};

/// The query service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grpc {
    /// Where it listens, one socket each.
    pub listen: Vec<ListenAddr>,
    /// The largest request that is accepted, in bytes.
    pub max_message_bytes: usize,
    /// Whether gRPC reflection is served.
    pub reflection: bool,
    /// How long calls in flight may go on once the process was told to stop.
    pub drain_grace: Duration,
    /// What callers are granted.
    pub limits: serve::Limits,
    /// How half-open connections are noticed.
    pub keep_alive: KeepAlive,
    /// TLS of tcp sockets, where there is any.
    pub tls: Option<TlsFiles>,
    /// The file of the token that callers must show, where they must.
    pub token_file: Option<PathBuf>,
    /// Services of other projects that are answered too.
    pub adapters: Vec<Adapter>,
    /// What watching the normalized feed may cost.
    pub watch: WatchLimits,
}

/// The plaintext server of `/live`, `/ready`, `/metrics` and `/status`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Admin {
    /// Where it listens.
    pub listen: SocketAddr,
    /// What whoever connects is granted.
    pub bounds: Bounds,
}

/// What outlives a restart of this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Where the snapshots lie; `None`: none are taken.
    pub directory: Option<PathBuf>,
    /// How often one is taken, where there is anything new.
    pub interval: Duration,
}

/// What is logged, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Log {
    /// The least important level that is written.
    pub level: Level,
    /// The shape of a line.
    pub format: Format,
}

/// How important a log line is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// Data is lost, or a person must act.
    Error,
    /// Something is wrong that may mend itself.
    Warn,
    /// What an operator wants to know in ordinary times.
    Info,
    /// What a developer wants to know.
    Debug,
    /// Every message.
    Trace,
}

/// The shape of a log line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// How one feed is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// What may wait between the socket and the index; beyond, a gap is recorded and recovered.
    pub queue: QueueLimits,
    /// The longest silence before and between the replies of a replay.
    pub replay_timeout: Duration,
    /// How long an engine may stay away before its blocks are withdrawn.
    pub disconnect_grace: Duration,
    /// The longest pause between two attempts to connect.
    pub reconnect_max: Duration,
    /// How a half-open connection is noticed.
    pub heartbeat: Heartbeat,
    /// What reads the socket.
    pub transport: Transport,
    /// The pause between two polls of an endpoint that is polled.
    pub poll_interval: Duration,
}

const ADAPTERS: Words<Adapter> = Words(&[("llm-d", Adapter::LlmD), ("smg", Adapter::Smg)]);

pub(super) const FILE: Text = Text { min: 1, max: 4096 };

const LEVELS: Words<Level> = Words(&[
    ("error", Level::Error),
    ("warn", Level::Warn),
    ("info", Level::Info),
    ("debug", Level::Debug),
    ("trace", Level::Trace),
]);

const FORMATS: Words<Format> = Words(&[("text", Format::Text), ("json", Format::Json)]);

const TRANSPORTS: Words<Transport> = Words(&[("own", Transport::Own), ("zeromq", Transport::Zeromq)]);

pub(super) const fn seconds(min: u64, max: u64) -> Time {
    Time { min: Duration::from_secs(min), max: Duration::from_secs(max) }
}

pub(super) const fn millis(min: u64, max: u64) -> Time {
    Time { min: Duration::from_millis(min), max: Duration::from_millis(max) }
}

// === impl Grpc, Admin ===

/// Reads both servers, which must not share a socket.
pub(super) fn servers(reader: &mut Reader<'_>, root: &mut Section<'_>) -> Option<(Grpc, Admin)> {
    let mut grpc = root.section(reader, "grpc");
    let listen = grpc.list(reader, "listen", &Address, "127.0.0.1:9400");
    let max_message_bytes =
        grpc.or(reader, "max_message_bytes", &Bytes { min: 64 << 10, max: 1 << 30 }, Default::Text("16MiB"));
    let reflection = grpc.or(reader, "reflection", &Flag, Default::Text("true"));
    let drain_grace = grpc.or(reader, "drain_grace", &seconds(0, 3600), Default::Text("10s"));
    let (limits, keep_alive) = (grpc_limits(reader, &mut grpc), keep_alive(reader, &mut grpc));
    let tls = tls(reader, &mut grpc);
    let token_file = grpc.optional(reader, "token_file", &FILE);
    let adapters = grpc.list(reader, "adapters", &ADAPTERS, "");
    let watch = watch(reader, &mut grpc);
    let grpc_path = grpc.path_of("listen");
    grpc.finish(reader);

    let mut admin = root.section(reader, "admin");
    let admin_listen = admin.or(reader, "listen", &TcpAddress, Default::Text("127.0.0.1:9401"));
    let admin_path = admin.path_of("listen");
    let bounds = admin_bounds(reader, &mut admin);
    admin.finish(reader);

    for (i, Placed { value, place }) in listen.iter().enumerate() {
        if !takes_any_port(value) && listen.iter().take(i).any(|earlier| earlier.value == *value) {
            reader.fault(place, &grpc_path, format!("names {value} twice"));
        }
    }
    let admin_listen = admin_listen?;
    let as_listen = ListenAddr::Tcp(admin_listen.value);
    if !takes_any_port(&as_listen) && listen.iter().any(|grpc| grpc.value == as_listen) {
        reader.fault(&admin_listen.place, &admin_path, format!("{as_listen} is in {grpc_path} too"));
    }
    let grpc = Grpc {
        listen: listen.into_iter().map(|listen| listen.value).collect(),
        max_message_bytes: as_usize(max_message_bytes?.value),
        reflection: reflection?.value,
        drain_grace: drain_grace?.value,
        limits: limits?,
        keep_alive: keep_alive?,
        tls: tls?,
        token_file: token_file.map(|file| file.value.into()),
        adapters: adapters.into_iter().map(|adapter| adapter.value).collect(),
        watch: watch?,
    };
    Some((grpc, Admin { listen: admin_listen.value, bounds: bounds? }))
}

fn grpc_limits(reader: &mut Reader<'_>, grpc: &mut Section<'_>) -> Option<serve::Limits> {
    let number = |max, unit| Number { min: 1, max, unit };
    let mut limits = grpc.section(reader, "limits");
    let connections = limits.or(reader, "connections", &number(1 << 20, "connections"), Default::Text("1024"));
    let streams = limits.or(reader, "streams", &number(1 << 20, "requests"), Default::Text("256"));
    let in_flight = limits.or(reader, "in_flight", &number(1 << 20, "requests"), Default::Text("4096"));
    let bytes = Bytes { min: 1 << 20, max: 1 << 40 };
    let request_bytes = limits.or(reader, "request_bytes", &bytes, Default::Text("256MiB"));
    let rate = Number { min: 0, max: 1 << 32, unit: "requests" };
    let requests_per_second = limits.or(reader, "requests_per_second", &rate, Default::Text("0"));
    let request_time = limits.or(reader, "request_time", &millis(100, 600_000), Default::Text("10s"));
    let handshake_time = limits.or(reader, "handshake_time", &millis(100, 600_000), Default::Text("10s"));
    let idle_time = limits.or(reader, "idle_time", &millis(100, 86_400_000), Default::Text("5m"));
    let stall_time = limits.or(reader, "stall_time", &millis(100, 600_000), Default::Text("20s"));
    limits.finish(reader);
    Some(serve::Limits {
        connections: Bounds {
            connections: as_usize(connections?.value),
            handshake: handshake_time?.value,
            idle: idle_time?.value,
            stall: stall_time?.value,
        },
        streams: u32::try_from(streams?.value).unwrap_or(u32::MAX),
        in_flight: as_usize(in_flight?.value),
        request_bytes: as_usize(request_bytes?.value),
        request_time: request_time?.value,
        requests_per_second: requests_per_second?.value,
    })
}

fn keep_alive(reader: &mut Reader<'_>, grpc: &mut Section<'_>) -> Option<KeepAlive> {
    let mut section = grpc.section(reader, "keep_alive");
    let interval = section.or(reader, "interval", &millis(100, 7_200_000), Default::Text("30s"));
    let timeout = section.or(reader, "timeout", &millis(100, 600_000), Default::Text("10s"));
    section.finish(reader);
    Some(KeepAlive { interval: interval?.value, timeout: timeout?.value })
}

fn watch(reader: &mut Reader<'_>, grpc: &mut Section<'_>) -> Option<WatchLimits> {
    let mut section = grpc.section(reader, "watch");
    let number = Number { min: 0, max: 1 << 16, unit: "watchers" };
    let watchers = section.or(reader, "watchers", &number, Default::Text("64"));
    let bytes = Bytes { min: 64 << 10, max: 1 << 36 };
    let history_bytes = section.or(reader, "history_bytes", &bytes, Default::Text("32MiB"));
    section.finish(reader);
    Some(WatchLimits { watchers: as_usize(watchers?.value), history_bytes: history_bytes?.value })
}

/// `None` where it is faulty, `Some(None)` where there is none.
pub(super) fn tls(reader: &mut Reader<'_>, server: &mut Section<'_>) -> Option<Option<TlsFiles>> {
    let mut section = server.section(reader, "tls");
    let cert = section.optional(reader, "cert", &FILE);
    let key = section.optional(reader, "key", &FILE);
    let client_ca = section.optional(reader, "client_ca", &FILE);
    let path = section.path_of("cert");
    let place = section.place.clone();
    section.finish(reader);
    match (cert, key, client_ca) {
        (None, None, None) => Some(None),
        (Some(cert), Some(key), client_ca) => Some(Some(TlsFiles {
            cert: cert.value.into(),
            key: key.value.into(),
            client_ca: client_ca.map(|file| file.value.into()),
        })),
        _ => {
            reader.fault(&place, &path, "TLS needs both `cert` and `key`");
            None
        }
    }
}

fn admin_bounds(reader: &mut Reader<'_>, admin: &mut Section<'_>) -> Option<Bounds> {
    let rule = Number { min: 1, max: 1 << 20, unit: "connections" };
    let connections = admin.or(reader, "connections", &rule, Default::Text("64"));
    let time = admin.or(reader, "request_time", &millis(100, 600_000), Default::Text("10s"))?.value;
    Some(Bounds { connections: as_usize(connections?.value), handshake: time, idle: time, stall: time })
}

/// The sockets of both servers, with their keys.
pub(super) fn sockets(grpc: &Grpc, admin: &Admin) -> Vec<(ListenAddr, &'static str)> {
    let grpc = grpc.listen.iter().map(|listen| (listen.clone(), "grpc.listen"));
    grpc.chain([(ListenAddr::Tcp(admin.listen), "admin.listen")]).collect()
}

fn takes_any_port(listen: &ListenAddr) -> bool {
    matches!(listen, ListenAddr::Tcp(address) if address.port() == 0)
}

// === impl Log, Limits ===

pub(super) fn log(reader: &mut Reader<'_>, root: &mut Section<'_>) -> Option<Log> {
    let mut log = root.section(reader, "log");
    let level = log.or(reader, "level", &LEVELS, Default::Text("info"));
    let format = log.or(reader, "format", &FORMATS, Default::Text("text"));
    log.finish(reader);
    Some(Log { level: level?.value, format: format?.value })
}

/// Snapshots: none without a directory.
pub(super) fn snapshot(reader: &mut Reader<'_>, root: &mut Section<'_>) -> Option<Snapshot> {
    let mut snapshot = root.section(reader, "snapshot");
    let directory = snapshot.optional(reader, "directory", &Text { min: 1, max: 4096 });
    let interval = snapshot.or(reader, "interval", &seconds(1, 86_400), Default::Text("60s"));
    snapshot.finish(reader);
    Some(Snapshot { directory: directory.map(|directory| directory.value.into()), interval: interval?.value })
}

pub(super) fn limits(reader: &mut Reader<'_>, root: &mut Section<'_>) -> Option<Limits> {
    let rule = Number { min: 1, max: 1 << 32, unit: "blocks" };
    let mut limits = root.section(reader, "limits");
    let blocks_per_rank = limits.or(reader, "blocks_per_rank", &rule, Default::Text("1000000"));
    let blocks_in_all = limits.or(reader, "blocks_in_all", &rule, Default::Text("8000000"));
    limits.finish(reader);
    Some(Limits { blocks_per_rank: as_usize(blocks_per_rank?.value), blocks_in_all: as_usize(blocks_in_all?.value) })
}

// === impl Level ===

impl Level {
    /// The level's word.
    pub fn name(self) -> &'static str {
        LEVELS.word(self)
    }
}

// === impl Tuning ===

/// The defaults of every feed.
pub(super) fn defaults(reader: &mut Reader<'_>, root: &mut Section<'_>) -> Option<Tuning> {
    let mut section = root.section(reader, "defaults");
    let tuning = tuning(reader, &mut section, None);
    section.finish(reader);
    tuning.map(|(tuning, _)| tuning)
}

/// The same settings, of one feed: what it does not say, `base` says. Also where `transport` was written.
pub(super) fn tuning(
    reader: &mut Reader<'_>,
    section: &mut Section<'_>,
    base: Option<&Tuning>,
) -> Option<(Tuning, Place)> {
    // A default is a text of its own in `defaults`, and what `defaults` came to in a feed.
    fn or<T>(text: &'static str, key: &'static str, base: Option<T>) -> Default<T> {
        base.map_or(Default::Text(text), |value| Default::Of(key, value))
    }
    let messages = Number { min: 1, max: 1 << 24, unit: "messages" };
    let bytes = Bytes { min: 1 << 20, max: 1 << 36 };

    let default = or("65536", "defaults.queue_messages", base.map(|base| base.queue.messages as u64));
    let queue_messages = section.or(reader, "queue_messages", &messages, default);
    let default = or("256MiB", "defaults.queue_bytes", base.map(|base| base.queue.bytes as u64));
    let queue_bytes = section.or(reader, "queue_bytes", &bytes, default);
    let default = or("5s", "defaults.replay_timeout", base.map(|base| base.replay_timeout));
    let replay_timeout = section.or(reader, "replay_timeout", &millis(100, 600_000), default);
    let default = or("30s", "defaults.disconnect_grace", base.map(|base| base.disconnect_grace));
    let disconnect_grace = section.or(reader, "disconnect_grace", &seconds(0, 86_400), default);
    let default = or("1s", "defaults.reconnect_max", base.map(|base| base.reconnect_max));
    let reconnect_max = section.or(reader, "reconnect_max", &millis(100, 300_000), default);
    let default = or("2s", "defaults.heartbeat_interval", base.map(|base| base.heartbeat.interval));
    let heartbeat_interval = section.or(reader, "heartbeat_interval", &millis(100, 300_000), default);
    let default = or("4s", "defaults.heartbeat_timeout", base.map(|base| base.heartbeat.timeout));
    let heartbeat_timeout = section.or(reader, "heartbeat_timeout", &millis(100, 300_000), default);
    let default = or("own", "defaults.transport", base.map(|base| base.transport));
    let transport = section.or(reader, "transport", &TRANSPORTS, default)?;
    let default = or("100ms", "defaults.poll_interval", base.map(|base| base.poll_interval));
    let poll_interval = section.or(reader, "poll_interval", &millis(10, 60_000), default);

    let tuning = Tuning {
        queue: QueueLimits { messages: as_usize(queue_messages?.value), bytes: as_usize(queue_bytes?.value) },
        replay_timeout: replay_timeout?.value,
        disconnect_grace: disconnect_grace?.value,
        reconnect_max: reconnect_max?.value,
        heartbeat: Heartbeat { interval: heartbeat_interval?.value, timeout: heartbeat_timeout?.value },
        transport: transport.value,
        poll_interval: poll_interval?.value,
    };
    Some((tuning, transport.place))
}

pub(super) fn as_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
