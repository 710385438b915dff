//! Who holds blocks: the identity of a worker and of its ranks.
//!
//! Identity comes from configuration and is echoed verbatim; it is never an address or a hash. Routers know
//! the same worker by different names (a pod, `ip:port`, a URL, a number), so a worker has a name and any
//! number of aliases, and may be asked for by each.

use std::fmt;
use std::sync::Arc;

/// One data-parallel rank of one worker, for as long as it is registered with an index.
///
/// `slot` is re-used after the rank has been removed, `generation` is not: an event of a removed rank finds
/// another generation in its slot and is refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RankId {
    /// The rank's place in the index's tables.
    pub slot: u32,
    /// Which registration of that slot this is.
    pub generation: u32,
}

/// How far a rank's feed had come when a batch was applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stamp {
    /// One life of the engine process: 1 for the first that was seen, then upwards; 0 before any.
    pub epoch: u64,
    /// The sequence number of the last applied message; `None` before any in this epoch.
    pub sequence: Option<u64>,
}

/// What a rank is called: shared by the index's answers, the status board and every reading command.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Identity {
    /// The worker's name, as configured.
    pub worker: Arc<str>,
    /// The address a router reaches it at, verbatim; empty where none is configured.
    pub address: Arc<str>,
    /// Further names it may be asked for by.
    pub aliases: Arc<[String]>,
    /// The model it serves, as configured.
    pub model: Arc<str>,
    /// The data-parallel rank.
    pub rank: u32,
}

// === impl Identity ===

impl Identity {
    /// Whether `name` is this worker's name, its address or one of its aliases.
    pub fn is_called(&self, name: &str) -> bool {
        &*self.worker == name
            || (!self.address.is_empty() && &*self.address == name)
            || self.aliases.iter().any(|alias| alias == name)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.worker, self.rank)
    }
}
