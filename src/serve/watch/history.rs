//! What has happened, in order, as far back as a bound in bytes allows.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::feed::status::State;
use crate::index::Delta;
use crate::proto::v1;
use crate::worker::{Identity, RankId};

/// A rank that has a name.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) rank: RankId,
    pub(super) identity: Identity,
    pub(super) key: v1::RankKey,
}

/// One happening.
#[derive(Clone, Debug)]
pub(super) enum Happening {
    Added(Arc<Named>),
    Changed(Arc<Named>, State, String),
    Gone(Arc<Named>),
    Delta(Arc<Named>, Arc<Delta>),
}

/// A bounded history. Happenings are numbered from 0.
#[derive(Debug)]
pub(super) struct History {
    /// Tells this history's positions from those of another.
    instance: u64,
    kept: VecDeque<Kept>,
    /// The position behind the last happening.
    end: u64,
    /// Bytes of everything that has happened.
    bytes: u64,
    limit: u64,
}

#[derive(Debug)]
struct Kept {
    happening: Happening,
    /// Bytes of everything before it.
    before: u64,
}

/// Why a position cannot be read on from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lost {
    /// It is of another history.
    Other,
    /// What follows it is kept no more, or will soon not be.
    Behind,
}

/// What a happening costs besides its hashes, in bytes.
const OVERHEAD: usize = 128;

// === impl History ===

impl History {
    pub(super) fn new() -> Self {
        Self { instance: fastrand::u64(1..), kept: VecDeque::new(), end: 0, bytes: 0, limit: 0 }
    }

    pub(super) fn instance(&self) -> u64 {
        self.instance
    }

    /// The position behind everything.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Keeps so many bytes from here on.
    pub(super) fn keep(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Something was missed: nothing that was told so far can be gone on from.
    pub(super) fn begin_anew(&mut self) {
        *self = Self { limit: self.limit, ..Self::new() };
    }

    pub(super) fn push(&mut self, happening: Happening) {
        let bytes = OVERHEAD + if let Happening::Delta(_, delta) = &happening { delta.bytes() } else { 0 };
        self.kept.push_back(Kept { happening, before: self.bytes });
        self.bytes += bytes as u64;
        self.end += 1;
        while self.kept.front().is_some_and(|first| self.bytes - first.before > self.limit) {
            self.kept.pop_front();
        }
    }

    /// What happened at a position of the history of this instance; `None`: nothing yet.
    pub(super) fn read(&self, instance: u64, position: u64) -> Result<Option<&Happening>, Lost> {
        if instance != self.instance || position > self.end {
            return Err(Lost::Other);
        }
        let back = self.end - position;
        if back == 0 {
            return Ok(None);
        }
        let at = usize::try_from(back).ok().and_then(|back| self.kept.len().checked_sub(back)).ok_or(Lost::Behind)?;
        self.kept.get(at).map(|kept| Some(&kept.happening)).ok_or(Lost::Behind)
    }

    /// Whether so much has happened behind a position that its reader should be cut while it can still resume.
    pub(super) fn is_far_behind(&self, position: u64) -> bool {
        let back = usize::try_from(self.end - position.min(self.end)).unwrap_or(usize::MAX);
        let first = self.kept.len().checked_sub(back).and_then(|at| self.kept.get(at));
        first.is_some_and(|kept| self.bytes - kept.before > self.limit / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named() -> Arc<Named> {
        let identity = Identity {
            worker: "pod-a".into(),
            address: "".into(),
            aliases: Arc::default(),
            model: "m".into(),
            rank: 0,
        };
        Arc::new(Named { rank: RankId { slot: 0, generation: 1 }, identity, key: v1::RankKey::default() })
    }

    #[test]
    fn what_is_kept_is_bounded_and_a_reader_is_warned_before_it_is_lost() {
        let mut history = History::new();
        let instance = history.instance();
        history.push(Happening::Gone(named()));
        assert_eq!(history.read(instance, 0).map(|_| ()), Err(Lost::Behind), "nothing is kept for nobody");
        history.keep(10 * OVERHEAD as u64);
        let begin = history.end();
        for n in 1..=12 {
            history.push(Happening::Gone(named()));
            assert_eq!(history.read(instance, begin).is_ok(), n <= 10, "{n}");
            assert_eq!(history.is_far_behind(begin), (6..=10).contains(&n), "{n}");
        }
        assert!(matches!(history.read(instance, history.end()), Ok(None)));
        assert!(matches!(history.read(instance, history.end() - 1), Ok(Some(Happening::Gone(_)))));
        assert_eq!(history.read(instance, history.end() + 1).map(|_| ()), Err(Lost::Other));
        history.begin_anew();
        assert_eq!(history.read(instance, 0).map(|_| ()), Err(Lost::Other));
    }
}
