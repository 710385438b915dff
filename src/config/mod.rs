//! The configuration: one YAML file, variables that override it, and every fault at once.
//!
//! ```text
//! file --tree--> values with their places --read, by rules--> sections, feeds --checks--> Config, Warnings
//! variables ---------------------------------^                                          or Faults
//! ```
//!
//! What holds:
//!
//! * Every setting is read in one line of code, which says its name, what it may be and its default. Unknown
//!   names, overriding variables and [`keys`], which the reference `docs/config.md` is checked against, follow
//!   from these lines.
//! * All faults are found in one go, each one line with its place and its key. Only what is not YAML at all
//!   stops the reading.
//! * [`schema`] follows from the same lines, so an editor knows every setting that the program reads.
//! * Nothing here looks at the process: variables come in as an [`Env`].
//! * A file that holds something else is noticed ([`Watch`]); what of it a running process cannot follow is said by
//!   [`Config::fixed_changes`].

mod admin_rpc;
mod change;
mod discovery;
mod env;
mod fault;
mod feed;
mod nats;
mod outside;
mod plan;
mod read;
mod relay;
mod rule;
mod schema;
mod sections;
mod tree;
mod watch;

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

pub use admin_rpc::AdminRpc;
pub use discovery::{Discovery, NotReady, Resource};
pub use env::Env;
pub use fault::{Fault, Faults, Place, Warnings};
pub use feed::{Engine, EventEndpoint, Feed};
pub use nats::{Nats, Subscription};
pub use outside::Setting;
pub use read::Key;
pub use schema::schema;
pub use sections::{Admin, Format, Grpc, Level, Log, Snapshot, Tuning};
pub use watch::Watch;

use crate::feed::zmq::Mode;
use crate::index::Limits;
use crate::relay::RelayOptions;
use read::Reader;

/// The largest file that is read, in bytes.
const MAX_FILE: u64 = 4 << 20;

/// A whole configuration, checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The query service.
    pub grpc: Grpc,
    /// The admin server.
    pub admin: Admin,
    /// The Admin service, if there is one.
    pub admin_rpc: AdminRpc,
    /// The log.
    pub log: Log,
    /// The index's bounds.
    pub limits: Limits,
    /// What outlives a restart.
    pub snapshot: Snapshot,
    /// How NATS servers are reached.
    pub nats: Nats,
    /// How a fleet is joined; `None`: none is.
    pub relay: Option<RelayOptions>,
    /// How feeds are followed that do not say otherwise.
    pub defaults: Tuning,
    /// Which engines are to be found in Kubernetes; `None`: none are looked for.
    pub discovery: Option<Discovery>,
    /// The engines to follow.
    pub feeds: Vec<Feed>,
}

// === impl Config ===

impl Config {
    /// Reads the file at `path`, as `env` overrides it.
    ///
    /// # Errors
    /// Everything that is wrong with it: at least one fault.
    pub fn load(path: &Path, env: &Env) -> Result<(Self, Warnings), Faults> {
        let name = path.display().to_string();
        let text = read_file(path).map_err(|what| one_fault(&name, Place::WHOLE_FILE, what))?;
        Self::parse(&text, &name, env)
    }

    /// Reads a configuration from `text`, the content of a file called `name`.
    ///
    /// # Errors
    /// Like [`Config::load`].
    pub fn parse(text: &str, name: &str, env: &Env) -> Result<(Self, Warnings), Faults> {
        let root = tree::parse(text).map_err(|fault| one_fault(name, fault.place, fault.value))?;
        let mut reader = Reader::new(name, env);
        let config = config(&mut reader, &root);
        match (Faults::of(reader.faults), config) {
            (None, Some(config)) => Ok((config, Warnings::of(reader.warnings))),
            (Some(faults), _) => Err(faults),
            // A setting that is missing was reported, so this is never seen; it is a fault all the same.
            (None, None) => Err(one_fault(name, Place::WHOLE_FILE, "cannot be used".to_owned())),
        }
    }
}

/// Every setting there is, in the order they are read.
pub fn keys() -> Vec<Key> {
    let env = Env::default();
    let mut reader = Reader::new("", &env);
    // One entry, so that its keys are asked for; what it lacks is of no interest here.
    if let Ok(root) = tree::parse("feeds: [{}]") {
        config(&mut reader, &root);
    }
    reader.keys
}

fn config(reader: &mut Reader<'_>, root: &fault::Placed<tree::Node>) -> Option<Config> {
    let mut root = reader.root(root);
    let servers = sections::servers(reader, &mut root);
    let taken = servers.as_ref().map(|(grpc, admin)| sections::sockets(grpc, admin)).unwrap_or_default();
    let admin_rpc = admin_rpc::admin_rpc(reader, &mut root, &taken);
    let log = sections::log(reader, &mut root);
    let limits = sections::limits(reader, &mut root);
    let snapshot = sections::snapshot(reader, &mut root);
    let nats = nats::nats(reader, &mut root);
    let relay = relay::relay(reader, &mut root, nats.as_ref());
    let defaults = sections::defaults(reader, &mut root);
    let discovery = discovery::discovery(reader, &mut root);
    let entries = root.sections(reader, "feeds");
    let feeds: Vec<Option<feed::Read>> =
        entries.into_iter().map(|entry| feed::read(reader, entry, defaults.as_ref())).collect();
    let no_calls = admin_rpc.as_ref().is_none_or(|admin_rpc| admin_rpc.listen.is_empty());
    let nobody_else = no_calls && matches!(discovery, Some(None)) && !matches!(relay, Some(Some(_)));
    if feeds.is_empty() && nobody_else {
        reader.warn(&root.place, "feeds", "no engine is listed: every answer will be empty");
    }
    root.finish(reader);
    reader.unknown_variables();
    let usable: Vec<&feed::Read> = feeds.iter().flatten().collect();
    check_identities(reader, &usable);
    check_sockets(reader, &usable);

    let ((grpc, admin), admin_rpc) = (servers?, admin_rpc?);
    let feeds = feeds.into_iter().map(|read| Some(read?.feed)).collect::<Option<_>>()?;
    let (log, limits, snapshot, nats, relay) = (log?, limits?, snapshot?, nats?, relay?);
    let (defaults, discovery) = (defaults?, discovery?);
    Some(Config { grpc, admin, admin_rpc, log, limits, snapshot, nats, relay, defaults, discovery, feeds })
}

/// A rank of a worker has one feed, and a name means one worker.
fn check_identities(reader: &mut Reader<'_>, feeds: &[&feed::Read]) {
    let mut ranks: HashMap<(&str, u32), &feed::Read> = HashMap::new();
    let mut names: HashMap<&str, &feed::Read> = HashMap::new();
    for &read in feeds {
        let feed = &read.feed;
        let key = format!("{}.worker", read.path);
        let mut taken = None;
        for rank in feed.rank_numbers() {
            let first = *ranks.entry((&feed.worker, rank)).or_insert(read);
            if !std::ptr::eq(first, read) {
                taken = taken.or(Some((rank, first)));
            }
        }
        if let Some((rank, first)) = taken {
            let what = format!("{} rank {rank} is {}'s already", feed.worker, first.path);
            reader.fault(&read.worker_place, &key, what);
        }
        let all = [&feed.worker, &feed.address].into_iter().chain(&feed.names).filter(|name| !name.is_empty());
        for name in all {
            let first = *names.entry(name).or_insert(read);
            if first.feed.worker != feed.worker {
                let what = format!("`{name}` means {} too ({})", first.feed.worker, first.path);
                reader.warn(&read.worker_place, &key, what);
            }
        }
    }
}

/// A socket carries one rank's events.
fn check_sockets(reader: &mut Reader<'_>, feeds: &[&feed::Read]) {
    let mut sockets: HashMap<String, &feed::Read> = HashMap::new();
    for &read in feeds {
        let endpoints = read.feed.rank_numbers().filter_map(|rank| read.feed.endpoint.socket(rank).ok().flatten());
        let bound = endpoints.map(|endpoint| endpoint.socket()).filter(|socket| !socket.ends_with(":0"));
        let polled = matches!(read.feed.endpoint, EventEndpoint::Http(_));
        let taken = bound.chain(polled.then(|| read.feed.endpoint.to_string()));
        let taken: Vec<_> = taken
            .filter_map(|socket| {
                let first = *sockets.entry(socket.clone()).or_insert(read);
                (!std::ptr::eq(first, read)).then_some((socket, first))
            })
            .collect();
        let Some((socket, first)) = taken.first() else { continue };
        let key = format!("{}.endpoint", read.path);
        let why = if polled { "whoever polls takes the events away" } else { "a socket carries one rank's events" };
        let what = format!("{socket} is {}'s already: {why}", first.path);
        if polled || read.feed.mode == Mode::Bind || first.feed.mode == Mode::Bind {
            reader.fault(&read.endpoint_place, &key, what);
        } else {
            reader.warn(&read.endpoint_place, &key, what);
        }
    }
}

fn read_file(path: &Path) -> Result<String, String> {
    let file = File::open(path).map_err(|error| format!("cannot be opened: {error}"))?;
    let mut text = String::new();
    let mut bounded = file.take(MAX_FILE + 1);
    bounded.read_to_string(&mut text).map_err(|error| format!("cannot be read: {error}"))?;
    if text.len() as u64 > MAX_FILE {
        return Err(format!("is larger than {} MiB", MAX_FILE >> 20));
    }
    Ok(text)
}

fn one_fault(file: &str, place: Place, what: String) -> Faults {
    Faults::one(Fault::new(file, place, "", &what))
}
