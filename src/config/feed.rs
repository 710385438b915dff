//! One entry of `feeds`: an engine, its ranks, and what routers call it.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use super::fault::{Place, Placed};
use super::nats::{Keys, Subscription};
use super::read::{Default, Reader, Section};
use super::rule::{Flag, Number, Rule, Text, Words};
use super::sections::{Tuning, tuning};
use crate::block::{Grid, MAX_BLOCK_SIZE};
use crate::feed::http::{HttpEndpoint, HttpEndpointError};
use crate::feed::nats::{NatsEndpoint, NatsEndpointError};
use crate::feed::zmq::{Endpoint, EndpointError, Mode, SubOptions};
use crate::index::Copies;

/// Ranks that one entry may list.
pub(super) const MAX_RANKS: u64 = 1024;

/// One engine, with its ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Feed {
    /// What routers call the worker.
    pub worker: String,
    /// The address a router reaches it at, echoed verbatim; empty where none is given.
    pub address: String,
    /// Further names it may be asked for by.
    pub names: Vec<String>,
    /// The model it serves.
    pub model: String,
    /// What it runs.
    pub engine: Engine,
    /// Where its events come from.
    pub endpoint: EventEndpoint,
    /// Rank 0's replay endpoint.
    pub replay: Option<Endpoint>,
    /// Messages whose topic begins so are taken; empty takes all.
    pub topic: String,
    /// How many ranks there are, at least 1.
    pub ranks: u32,
    /// The first of them.
    pub first_rank: u32,
    /// Whether the engine connects and this side binds.
    pub mode: Mode,
    /// Tokens a block; `None`: learned from events.
    pub grid: Option<Grid>,
    /// Whether a block that is announced twice counts twice.
    pub copies: Copies,
    /// What is subscribed to, where the endpoint is NATS.
    pub subscription: Option<Subscription>,
    /// How it is followed.
    pub tuning: Tuning,
}

/// Where a feed's events come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventEndpoint {
    /// Rank 0's socket; rank r's is [`Endpoint::at_rank`] of it, which cannot fail for the feed's ranks.
    Zmq(Endpoint),
    /// One URL that is polled for all ranks.
    Http(HttpEndpoint),
    /// One subscription of NATS for all ranks.
    Nats(NatsEndpoint),
}

/// What publishes a feed. All of them are decoded by what is seen on the wire; the word is for people, and for
/// feeds that come another way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM.
    Trtllm,
    /// Dynamo's event plane.
    Dynamo,
    /// Whatever it turns out to be.
    Auto,
}

pub(super) const ENGINES: Words<Engine> = Words(&[
    ("vllm", Engine::Vllm),
    ("sglang", Engine::Sglang),
    ("trtllm", Engine::Trtllm),
    ("dynamo", Engine::Dynamo),
    ("auto", Engine::Auto),
]);

const COPIES: Words<Copies> = Words(&[("count", Copies::Count), ("set", Copies::Set)]);

/// A name that routers use.
pub(super) const NAME: Text = Text { min: 1, max: 512 };

struct BlockSize;

struct Connectable;

struct Source;

/// A feed as it was read, and where what others may contradict was written.
pub(super) struct Read {
    pub feed: Feed,
    pub path: String,
    pub worker_place: Place,
    pub endpoint_place: Place,
    pub replay_place: Option<Place>,
    pub transport_place: Place,
}

// === the rules ===

impl Rule for BlockSize {
    type Value = Grid;

    fn read(&self, text: &str) -> Result<Grid, String> {
        let grid = text.parse().ok().and_then(|size| Grid::new(size).ok());
        grid.ok_or_else(|| format!("expected {}, not `{text}`", self.allowed()))
    }

    fn allowed(&self) -> String {
        format!("1 to {MAX_BLOCK_SIZE} tokens")
    }

    fn schema(&self) -> serde_json::Value {
        Number { min: 1, max: u64::from(MAX_BLOCK_SIZE), unit: "tokens" }.schema()
    }
}

impl Rule for Connectable {
    type Value = Endpoint;

    fn read(&self, text: &str) -> Result<Endpoint, String> {
        text.parse().map_err(|error: EndpointError| error.to_string())
    }

    fn allowed(&self) -> String {
        "tcp://host:port or ipc:///path".to_owned()
    }

    fn is_text(&self) -> bool {
        true
    }
}

impl Rule for Source {
    type Value = EventEndpoint;

    fn read(&self, text: &str) -> Result<EventEndpoint, String> {
        if text.starts_with("http") {
            return text.parse().map(EventEndpoint::Http).map_err(|error: HttpEndpointError| error.to_string());
        }
        if text.starts_with("nats://") || text.starts_with("tls://") {
            return text.parse().map(EventEndpoint::Nats).map_err(|error: NatsEndpointError| error.to_string());
        }
        Connectable.read(text).map(EventEndpoint::Zmq)
    }

    fn allowed(&self) -> String {
        format!("{}, http://host:port/path, or nats://host:port", Connectable.allowed())
    }

    fn is_text(&self) -> bool {
        true
    }
}

// === impl EventEndpoint ===

impl EventEndpoint {
    /// The socket of one rank; `None` where all ranks share one.
    ///
    /// # Errors
    /// Those of [`Endpoint::at_rank`], for a rank that the feed does not have.
    pub fn socket(&self, rank: u32) -> Result<Option<Endpoint>, EndpointError> {
        match self {
            Self::Zmq(endpoint) => endpoint.at_rank(rank).map(Some),
            Self::Http(_) | Self::Nats(_) => Ok(None),
        }
    }
}

impl fmt::Display for EventEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zmq(endpoint) => endpoint.fmt(f),
            Self::Http(endpoint) => endpoint.fmt(f),
            Self::Nats(endpoint) => endpoint.fmt(f),
        }
    }
}

// === impl Feed ===

impl Feed {
    /// The ranks.
    pub fn rank_numbers(&self) -> Range<u32> {
        self.first_rank..self.first_rank.saturating_add(self.ranks)
    }
}

/// Reads one entry and checks it by itself; `None` where it cannot be used at all.
pub(super) fn read(reader: &mut Reader<'_>, mut section: Section<'_>, base: Option<&Tuning>) -> Option<Read> {
    let worker = section.required(reader, "worker", &NAME);
    let address = section.optional(reader, "address", &NAME);
    let names = section.list(reader, "names", &NAME, "");
    let model = section.required(reader, "model", &NAME);
    let engine = section.or(reader, "engine", &ENGINES, Default::Text("auto"));
    let endpoint = section.required(reader, "endpoint", &Source);
    let replay = section.optional(reader, "replay", &Connectable);
    let topic = section.optional(reader, "topic", &Text { min: 0, max: 512 });
    let ranks = section.or(reader, "ranks", &Number { min: 1, max: MAX_RANKS, unit: "ranks" }, Default::Text("1"));
    let first_rank = section.or(reader, "first_rank", &Number { min: 0, max: 65_535, unit: "" }, Default::Text("0"));
    let bind = section.or(reader, "bind", &Flag, Default::Text("false"));
    let grid = section.optional(reader, "block_size", &BlockSize);
    let copies = section.or(reader, "copies", &COPIES, Default::Text("count"));
    let keys = Keys::read(reader, &mut section);
    let tuning = tuning(reader, &mut section, base);

    let over_nats = matches!(&endpoint, Some(Placed { value: EventEndpoint::Nats(_), .. }));
    if let (Some(Placed { value: Engine::Dynamo, place }), false) = (&engine, over_nats) {
        let what = "dynamo's event plane is followed over NATS (`endpoint: nats://host:port`); else tap the engine behind it (vllm, sglang or trtllm)";
        reader.fault(place, &section.path_of("engine"), what);
    }
    let mode = if bind?.value { Mode::Bind } else { Mode::Connect };
    let (endpoint_path, replay_path) = (section.path_of("endpoint"), section.path_of("replay"));
    let worker_path = section.path_of("worker");
    match &endpoint {
        Some(Placed { value: EventEndpoint::Zmq(socket), place }) => {
            if let Err(error) = socket.check(mode) {
                reader.fault(place, &endpoint_path, error.to_string());
            }
        }
        Some(Placed { value: EventEndpoint::Http(_), place }) => {
            if engine.as_ref().is_some_and(|engine| engine.value != Engine::Trtllm) {
                let what = "only TensorRT-LLM's events are polled over http: `engine: trtllm`";
                reader.fault(place, &endpoint_path, what);
            }
            if mode == Mode::Bind {
                reader.fault(place, &endpoint_path, "a URL is asked, it cannot be bound");
            }
            if let Some(Placed { place, .. }) = &replay {
                reader.fault(place, &replay_path, "there is no replay of what is polled over http");
            }
            if let Some(Placed { place, .. }) = &topic {
                reader.fault(place, &section.path_of("topic"), "what is polled over http has no topics");
            }
        }
        Some(Placed { value: EventEndpoint::Nats(_), place }) => {
            if mode == Mode::Bind {
                reader.fault(place, &endpoint_path, "a NATS server is connected to, it cannot be bound");
            }
            for (name, place) in
                [("replay", replay.as_ref().map(|r| &r.place)), ("topic", topic.as_ref().map(|t| &t.place))]
            {
                if let Some(place) = place {
                    reader.fault(place, &section.path_of(name), "is of ZMQ sockets: NATS has subjects, and streams");
                }
            }
            if engine.as_ref().is_some_and(|engine| engine.value == Engine::Dynamo) && grid.is_none() {
                let what = "is required for dynamo: its events do not say how many tokens a block has";
                reader.fault(place, &section.path_of("block_size"), what);
            }
        }
        None => {}
    }
    let subscription = match &endpoint {
        Some(Placed { value: EventEndpoint::Nats(servers), place }) => {
            let servers = Placed { value: servers.clone(), place: place.clone() };
            Some(keys.subscription(reader, &section, &servers))
        }
        _ => {
            keys.refuse(reader, &section);
            None
        }
    };
    if let (Some(Some(subscription)), Some(ranks), Some(engine)) = (&subscription, &ranks, &engine) {
        let appear = subscription.subject.names_workers() || engine.value == Engine::Dynamo;
        let what = match (appear, ranks.value) {
            (_, 1) => None,
            (true, _) => Some("ranks appear by themselves where the wire names the workers: bound them by `max_ranks`"),
            (false, _) if !subscription.subject.names_ranks() => Some("several ranks need a `{rank}` in the subject"),
            (false, _) => None,
        };
        if let Some(what) = what {
            reader.fault(&ranks.place, &section.path_of("ranks"), what);
        }
    }
    // Engines bind their replay socket, also those that connect for their events.
    if let Some(Placed { value, place }) = &replay
        && let Err(error) = value.check(Mode::Connect)
    {
        reader.fault(place, &replay_path, error.to_string());
    }
    section.finish(reader);

    let (worker, endpoint, (tuning, transport_place)) = (worker?, endpoint?, tuning?);
    let read = Read {
        feed: Feed {
            worker: worker.value,
            address: address.map(|address| address.value).unwrap_or_default(),
            names: names.into_iter().map(|name| name.value).collect(),
            model: model?.value,
            engine: engine?.value,
            endpoint: endpoint.value,
            replay: replay.as_ref().map(|replay| replay.value.clone()),
            topic: topic.map(|topic| topic.value).unwrap_or_default(),
            // Both are within their rules' bounds.
            ranks: ranks?.value as u32,
            first_rank: first_rank?.value as u32,
            mode,
            grid: grid.map(|grid| grid.value),
            copies: copies?.value,
            subscription: match subscription {
                Some(None) => return None,
                given => given.flatten(),
            },
            tuning,
        },
        path: worker_path.trim_end_matches(".worker").to_owned(),
        worker_place: worker.place,
        endpoint_place: endpoint.place,
        replay_place: replay.map(|replay| replay.place),
        transport_place,
    };
    check_ports(reader, &read, &endpoint_path, &replay_path);
    check_links(reader, &read, &endpoint_path, &replay_path);
    Some(read)
}

/// Every rank has a socket of its own.
fn check_ports(reader: &mut Reader<'_>, read: &Read, endpoint_path: &str, replay_path: &str) {
    let feed = &read.feed;
    let EventEndpoint::Zmq(endpoint) = &feed.endpoint else { return };
    let mut of_ranks = |endpoint: &Endpoint, place: &Place, path: &str| {
        let sockets: Result<Vec<_>, _> = feed.rank_numbers().map(|rank| Ok((rank, endpoint.at_rank(rank)?))).collect();
        sockets.map_err(|error: EndpointError| reader.fault(place, path, error.to_string())).ok()
    };
    let events = of_ranks(endpoint, &read.endpoint_place, endpoint_path);
    let (Some(replay), Some(place)) = (&feed.replay, &read.replay_place) else { return };
    let (Some(events), Some(replays)) = (events, of_ranks(replay, place, replay_path)) else { return };
    let replay_sockets: HashSet<String> = replays.iter().map(|(_, endpoint)| endpoint.socket()).collect();
    let Some((rank, event)) = events.iter().find(|(_, endpoint)| replay_sockets.contains(&endpoint.socket())) else {
        return;
    };
    let other =
        replays.iter().find(|(_, endpoint)| endpoint.socket() == event.socket()).map_or(*rank, |(rank, _)| *rank);
    let mut what = format!("{} is rank {rank}'s event socket and rank {other}'s replay socket", event.socket());
    if *rank != other {
        what.push_str(&format!("; put the two at least {} ports apart", feed.ranks));
    }
    reader.fault(place, replay_path, what);
}

/// What the chosen transport does not reach is refused, what anyone on the network may read or forge is warned of.
fn check_links(reader: &mut Reader<'_>, read: &Read, endpoint_path: &str, replay_path: &str) {
    let feed = &read.feed;
    let endpoint = match &feed.endpoint {
        EventEndpoint::Zmq(endpoint) => endpoint,
        EventEndpoint::Http(endpoint) => {
            if !endpoint.is_local() {
                let what = format!("{endpoint} is not local: http is neither encrypted nor authenticated");
                reader.warn(&read.endpoint_place, endpoint_path, what);
            }
            return;
        }
        EventEndpoint::Nats(endpoint) => {
            if !endpoint.is_local() && !endpoint.is_tls() {
                let what = format!("{endpoint} is neither local nor tls://: whoever is on the way can read it");
                reader.warn(&read.endpoint_place, endpoint_path, what);
            }
            return;
        }
    };
    let link = SubOptions { transport: feed.tuning.transport, ..SubOptions::new(endpoint.clone(), feed.mode) };
    if let Err(error @ EndpointError::NotLocal(_)) = link.check() {
        reader.fault(&read.transport_place, endpoint_path, error.to_string());
    }
    let replay = feed.replay.as_ref().zip(read.replay_place.as_ref());
    let sockets = [Some((endpoint, &read.endpoint_place, endpoint_path)), replay.map(|(r, p)| (r, p, replay_path))];
    for (endpoint, place, path) in sockets.into_iter().flatten().filter(|(endpoint, _, _)| !endpoint.is_local()) {
        reader.warn(place, path, format!("{endpoint} is not local: ZMQ is neither encrypted nor authenticated"));
    }
}

// === impl Engine ===

impl Engine {
    /// The engine's word.
    pub fn name(self) -> &'static str {
        ENGINES.word(self)
    }
}
