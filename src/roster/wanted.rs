//! What a source wants: the feeds of one engine.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::feed::nats::PlaneOptions;
use crate::feed::zmq::Mode;
use crate::feed::{Options, PolledOptions};
use crate::worker::Identity;

/// Who may want feeds. The order is the order of precedence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The configuration file.
    Config,
    /// Calls of the Admin service.
    Admin,
    /// Kubernetes.
    Discovery,
}

/// The feeds of one engine, as one source wants them.
#[derive(Clone, PartialEq, Debug)]
pub struct Wanted {
    /// What the worker is called.
    pub worker: Arc<str>,
    /// Where this stands in its source, for people: `feeds[0]`, `pod default/vllm-0`.
    pub origin: String,
    /// What tells this engine from an earlier one of the same name, such as a pod's uid; empty where the name is all
    /// there is. Another instance is another feed, whatever else is the same.
    pub instance: Arc<str>,
    /// What is to run.
    pub plans: Vec<Plan>,
}

/// What is begun and ended as one.
#[derive(Clone, PartialEq, Debug)]
pub enum Plan {
    /// The feed of one rank.
    Rank(Box<Options>),
    /// The feeds of all ranks behind one URL.
    Polled(Box<PolledOptions>),
    /// The feeds of all ranks that speak through one subscription of NATS.
    Plane(Box<PlaneOptions>),
}

/// Which plan this is, among all: the worker and its first rank.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Key {
    pub worker: Arc<str>,
    pub rank: u32,
}

// === impl Source ===

impl Source {
    /// Every source, in order of precedence.
    pub const ALL: [Self; 3] = [Self::Config, Self::Admin, Self::Discovery];

    /// The source's word in metrics, status and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Admin => "admin",
            Self::Discovery => "discovery",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Config => "the configuration file",
            Self::Admin => "an Admin call",
            Self::Discovery => "discovery",
        })
    }
}

// === impl Wanted ===

impl Wanted {
    /// The ranks, as they are planned.
    pub fn ranks(&self) -> Vec<u32> {
        self.plans.iter().flat_map(Plan::ranks).collect()
    }
}

// === impl Plan ===

impl Plan {
    /// What its ranks are called; of a subscription, what stands for all of them.
    pub fn identities(&self) -> &[Identity] {
        match self {
            Self::Rank(options) => std::slice::from_ref(&options.identity),
            Self::Polled(options) => &options.identities,
            Self::Plane(options) => std::slice::from_ref(&options.identity),
        }
    }

    /// Its ranks, as far as they are planned: those that appear by themselves are not.
    pub fn ranks(&self) -> Vec<u32> {
        match self {
            Self::Rank(_) | Self::Polled(_) => self.identities().iter().map(|identity| identity.rank).collect(),
            Self::Plane(options) if options.discovers() => Vec::new(),
            Self::Plane(options) => options.ranks.clone().collect(),
        }
    }

    /// The engine, by its configured word.
    pub fn engine(&self) -> &'static str {
        match self {
            Self::Rank(options) => options.following.engine,
            Self::Polled(options) => options.following.engine,
            Self::Plane(options) => options.following.engine,
        }
    }

    /// Where its events come from.
    pub fn endpoint(&self) -> String {
        match self {
            Self::Rank(options) => options.link.endpoint.to_string(),
            Self::Polled(options) => options.poll.endpoint.to_string(),
            Self::Plane(options) => options.address(),
        }
    }

    /// Where it asks for what it missed.
    pub fn replay(&self) -> Option<String> {
        match self {
            Self::Rank(options) => options.replay.as_ref().map(|replay| replay.endpoint.to_string()),
            Self::Polled(_) | Self::Plane(_) => None,
        }
    }

    /// What only one feed in this process can have: the socket that it binds, or the URL that it drains.
    pub(super) fn claim(&self) -> Option<String> {
        match self {
            Self::Rank(options) if options.link.mode == Mode::Bind => {
                let socket = options.link.endpoint.socket();
                // Any free port is nobody's.
                (!socket.ends_with(":0")).then_some(socket)
            }
            Self::Rank(_) | Self::Plane(_) => None,
            Self::Polled(options) => Some(options.poll.endpoint.to_string()),
        }
    }

    pub(super) fn key(&self) -> Key {
        let identities = self.identities();
        let worker = identities.first().map_or_else(|| Arc::from(""), |identity| Arc::clone(&identity.worker));
        Key { worker, rank: identities.iter().map(|identity| identity.rank).min().unwrap_or(0) }
    }
}

#[cfg(test)]
pub(super) mod tests_support {
    use std::sync::Arc;

    use super::{Mode, Options, Plan, Wanted};
    use crate::feed::Following;
    use crate::feed::zmq::SubOptions;
    use crate::wire::Dialect;
    use crate::worker::Identity;

    /// A worker with ranks from 0 on, at `port` + rank, that nobody needs to serve.
    pub(in crate::roster) fn wanted(worker: &str, port: u16, ranks: u32) -> Wanted {
        entry(worker, port, ranks, Mode::Connect)
    }

    /// The same with one rank, whose socket is bound.
    pub(in crate::roster) fn bound(worker: &str, port: u16) -> Wanted {
        entry(worker, port, 1, Mode::Bind)
    }

    fn entry(worker: &str, port: u16, ranks: u32, mode: Mode) -> Wanted {
        let endpoint = format!("tcp://127.0.0.1:{port}").parse().unwrap();
        let identity =
            Identity { worker: worker.into(), address: "".into(), aliases: Arc::new([]), model: "m".into(), rank: 0 };
        let options = Options {
            identity,
            link: SubOptions::new(endpoint, mode),
            replay: None,
            following: Following::new("auto", Dialect::Auto),
            snapshots: None,
        };
        let plans = (0..ranks).map(|rank| Plan::Rank(Box::new(options.at_rank(rank).unwrap())));
        Wanted { worker: worker.into(), origin: "test".to_owned(), instance: "".into(), plans: plans.collect() }
    }
}
