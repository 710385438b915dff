//! One adapter per peer index. Every adapter calls only the peer's public API.
use dynamo_kv_router::indexer::{
    KvIndexer, KvIndexerInterface, KvIndexerMetrics, SyncIndexer, WorkerTask,
};
use dynamo_kv_router::indexer::positional::{PositionalIndexer as DynPos, SearchMode};
use dynamo_kv_router::protocols::*;
use dynamo_kv_router::{ConcurrentRadixTreeCompressed as Crtc, RadixTree};
use kvwl::{Exact, Op, REMOVE, STORE, Workload};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub const NAMES: &[&str] =
    &["kvtap", "kvtap-scores", "kvtap-prefix", "exact-naive", "dyn-radix", "dyn-crtc", "dyn-pos", "dyn-posbin", "smg1-pos", "smg2-chain", "smg2-score"];

pub type Out = Vec<(u32, u32)>;

/// The processor time of this thread: what else runs on the machine counts only by what it does to the caches.
fn cpu() -> Duration {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists, and `t` is written to.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// What a piece of work takes of it.
fn spent(work: impl FnOnce()) -> Duration {
    let t = cpu();
    work();
    cpu() - t
}

/// What a run needs from a peer. `apply*` return the time the index itself was busy.
pub trait Peer {
    fn apply(&mut self, wl: &Workload, r: Range<usize>) -> Duration;
    /// On a fresh instance: apply the phases in turn with `threads` writers (workers split by
    /// id), events built ahead. None when the peer has a single writer and `threads` > 1.
    fn phases(&mut self, wl: &Workload, rs: &[Range<usize>], threads: usize) -> Option<Vec<Duration>> {
        (threads == 1).then(|| rs.iter().map(|r| self.apply(wl, r.clone())).collect())
    }
    /// On a fresh instance: apply `fill`, then `churn` in the background while this thread runs
    /// `query` in a loop until it is done. Returns how long the churn took.
    fn mixed(&mut self, wl: &Workload, fill: Range<usize>, churn: Range<usize>, query: QueryLoop) -> Option<Duration>;
    /// Run the peer's own deferred cleanup now, if it has one; how long it took.
    fn maintain(&mut self) -> Option<Duration> {
        None
    }
    /// What a caller may do before the clock starts.
    fn prepare(&mut self, _: &Workload) {}
    /// Remove every worker; how long it took.
    fn remove_all(&mut self) -> Option<Duration> {
        None
    }
    /// Clear workers, one after the other; how long it took.
    fn clear(&mut self, _: Range<usize>) -> Option<Duration> {
        None
    }
    /// What it says of its own shape.
    fn shape(&self) -> Option<String> {
        None
    }
    /// (worker, score) pairs, any order.
    fn find(&self, q: &[u64], out: &mut Out);
    /// A query timed by the caller: returns the number of workers reported.
    fn find_n(&self, q: &[u64]) -> usize;
}
pub type QueryLoop<'a> = &'a mut dyn FnMut(&dyn Fn(&[u64]) -> usize);

// ---------------------------------------------------------------- exact naive
#[derive(Default)]
pub struct Naive(Exact);
impl Peer for Naive {
    fn apply(&mut self, wl: &Workload, r: Range<usize>) -> Duration {
        let t = Instant::now();
        for op in &wl.ops[r] {
            self.0.apply(wl, op);
        }
        t.elapsed()
    }
    fn mixed(&mut self, _: &Workload, _: Range<usize>, _: Range<usize>, _: QueryLoop) -> Option<Duration> {
        None
    }
    fn find(&self, q: &[u64], out: &mut Out) {
        self.0.find(q, out)
    }
    fn find_n(&self, q: &[u64]) -> usize {
        let mut o = vec![];
        self.0.find(q, &mut o);
        o.len()
    }
}

// ---------------------------------------------------------------- dynamo common
pub fn event(wl: &Workload, op: &Op, id: u64) -> RouterEvent {
    let words = wl.words(op);
    let data = match op.kind {
        STORE => KvCacheEventData::Stored(KvCacheStoreData {
            parent_hash: wl.parent(op).map(ExternalSequenceBlockHash),
            start_position: None,
            blocks: words
                .chunks(2)
                .map(|c| KvCacheStoredBlockData {
                    block_hash: ExternalSequenceBlockHash(c[0]),
                    tokens_hash: LocalBlockHash(c[1]),
                    mm_extra_info: None,
                })
                .collect(),
        }),
        REMOVE => KvCacheEventData::Removed(KvCacheRemoveData {
            block_hashes: words.iter().map(|h| ExternalSequenceBlockHash(*h)).collect(),
        }),
        _ => KvCacheEventData::Cleared,
    };
    RouterEvent::new(op.worker as u64, KvCacheEvent { event_id: id, data, dp_rank: 0 })
}
/// The query in the peer's own hash type without a copy, which is a harness cost and none of theirs.
pub fn locals(q: &[u64]) -> &[LocalBlockHash] {
    const { assert!(size_of::<LocalBlockHash>() == 8 && align_of::<LocalBlockHash>() == 8) };
    // SAFETY: a struct of one public u64 field with the size and alignment of u64.
    unsafe { std::slice::from_raw_parts(q.as_ptr().cast(), q.len()) }
}
fn put(o: &OverlapScores, out: &mut Out) {
    out.clear();
    out.extend(o.scores.iter().filter(|(_, s)| **s > 0).map(|(w, s)| (w.worker_id as u32, *s)));
}

// ---------------------------------------------------------------- dynamo RadixTree
pub struct Radix {
    tree: RadixTree,
    id: u64,
}
impl Radix {
    pub fn new() -> Self {
        Self { tree: RadixTree::new(), id: 0 }
    }
}
impl Peer for Radix {
    fn apply(&mut self, wl: &Workload, r: Range<usize>) -> Duration {
        let mut busy = Duration::ZERO;
        for chunk in wl.ops[r].chunks(4096) {
            let evs: Vec<_> = chunk.iter().map(|o| { self.id += 1; event(wl, o, self.id) }).collect();
            let t = cpu();
            for e in evs {
                let _ = self.tree.apply_event(e);
            }
            busy += cpu() - t;
        }
        busy
    }
    /// The shipped form: KvIndexer, one thread serving events and queries through channels.
    fn mixed(&mut self, wl: &Workload, fill: Range<usize>, r: Range<usize>, query: QueryLoop) -> Option<Duration> {
        let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ix = KvIndexer::new(Default::default(), 16, Arc::new(KvIndexerMetrics::new_unregistered()));
        let tx = ix.event_sender();
        for (i, o) in wl.ops[fill].iter().enumerate() {
            rt.block_on(tx.send(event(wl, o, i as u64))).ok().unwrap();
        }
        rt.block_on(ix.flush_and_wait()).unwrap();
        let done = AtomicBool::new(false);
        let mut took = Duration::ZERO;
        std::thread::scope(|s| {
            let h = s.spawn(|| {
                let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let evs: Vec<_> = wl.ops[r.clone()].iter().enumerate().map(|(i, o)| event(wl, o, i as u64)).collect();
                let t = Instant::now();
                for e in evs {
                    rt.block_on(tx.send(e)).ok().unwrap();
                }
                rt.block_on(ix.flush_and_wait()).unwrap();
                let d = t.elapsed();
                done.store(true, Ordering::Release);
                d
            });
            while !done.load(Ordering::Acquire) {
                query(&|q| rt.block_on(ix.find_matches(locals(q).to_vec())).map(|o| o.scores.len()).unwrap_or(0));
            }
            took = h.join().unwrap();
        });
        Some(took)
    }
    fn find(&self, q: &[u64], out: &mut Out) {
        put(&self.tree.find_matches(locals(q).to_vec(), false), out)
    }
    fn find_n(&self, q: &[u64]) -> usize {
        self.tree.find_matches(locals(q).to_vec(), false).scores.len()
    }
}

// ---------------------------------------------------------------- dynamo SyncIndexer backends
/// Drives a backend's own worker loop over flume, as its ThreadPoolIndexer does.
pub struct Sync_<T: SyncIndexer> {
    ix: Arc<T>,
    lanes: Vec<(flume::Sender<WorkerTask>, Option<std::thread::JoinHandle<()>>)>,
    id: u64,
}
impl<T: SyncIndexer> Sync_<T> {
    pub fn new(ix: T) -> Self {
        Self { ix: Arc::new(ix), lanes: vec![], id: 0 }
    }
    fn lane(ix: &Arc<T>, rx: flume::Receiver<WorkerTask>) -> std::thread::JoinHandle<()> {
        let ix = ix.clone();
        std::thread::spawn(move || ix.worker(rx, None).unwrap())
    }
    fn ensure(&mut self, n: usize) {
        assert!(self.lanes.is_empty() || self.lanes.len() == n, "one lane count per instance");
        while self.lanes.len() < n {
            let (tx, rx) = flume::unbounded();
            let h = Self::lane(&self.ix, rx);
            self.lanes.push((tx, Some(h)));
        }
    }
    fn flush(&self) {
        for (tx, _) in &self.lanes {
            let (s, r) = tokio::sync::oneshot::channel();
            tx.send(WorkerTask::Flush(s)).unwrap();
            r.blocking_recv().unwrap();
        }
    }
}
impl<T: SyncIndexer> Drop for Sync_<T> {
    fn drop(&mut self) {
        for (tx, h) in &mut self.lanes {
            let _ = tx.send(WorkerTask::Terminate);
            h.take().unwrap().join().unwrap();
        }
    }
}
impl<T: SyncIndexer> Sync_<T> {
    /// Queue every phase with a flush marker behind it, then start the lanes: a drain never
    /// waits for its producer. Returns per phase the markers of all lanes.
    fn prefill(&mut self, wl: &Workload, rs: &[Range<usize>], threads: usize) -> Vec<Vec<tokio::sync::oneshot::Receiver<()>>> {
        assert!(self.lanes.is_empty());
        let ch: Vec<_> = (0..threads).map(|_| flume::unbounded()).collect();
        let mut marks = vec![];
        for r in rs {
            for o in &wl.ops[r.clone()] {
                self.id += 1;
                ch[o.worker as usize % threads].0.send(WorkerTask::Event(event(wl, o, self.id))).unwrap();
            }
            marks.push(
                ch.iter()
                    .map(|(tx, _)| {
                        let (s, rx) = tokio::sync::oneshot::channel();
                        tx.send(WorkerTask::Flush(s)).unwrap();
                        rx
                    })
                    .collect(),
            );
        }
        for (tx, rx) in ch {
            let h = Self::lane(&self.ix, rx);
            self.lanes.push((tx, Some(h)));
        }
        marks
    }
}
impl<T: SyncIndexer> Peer for Sync_<T> {
    fn apply(&mut self, wl: &Workload, r: Range<usize>) -> Duration {
        self.ensure(1);
        let t = Instant::now();
        for (k, o) in wl.ops[r].iter().enumerate() {
            self.id += 1;
            self.lanes[0].0.send(WorkerTask::Event(event(wl, o, self.id))).unwrap();
            if k % 64 == 63 {
                self.flush();
            }
        }
        self.flush();
        t.elapsed()
    }
    fn maintain(&mut self) -> Option<Duration> {
        let t = Instant::now();
        self.lanes[0].0.send(WorkerTask::CleanupStaleChildren).unwrap();
        self.flush();
        Some(t.elapsed())
    }
    fn phases(&mut self, wl: &Workload, rs: &[Range<usize>], threads: usize) -> Option<Vec<Duration>> {
        let mut t = Instant::now();
        let marks = {
            let m = self.prefill(wl, rs, threads);
            t = std::cmp::max(t, Instant::now());
            m
        };
        let mut out = vec![];
        for m in marks {
            for r in m {
                r.blocking_recv().unwrap();
            }
            out.push(t.elapsed());
            t = Instant::now();
        }
        Some(out)
    }
    fn mixed(&mut self, wl: &Workload, fill: Range<usize>, r: Range<usize>, query: QueryLoop) -> Option<Duration> {
        let mut marks = self.prefill(wl, &[fill, r], 1);
        let mut end = marks[1].remove(0);
        marks.remove(0).remove(0).blocking_recv().unwrap();
        let t = Instant::now();
        while end.try_recv().is_err() {
            query(&|q| self.ix.find_matches(locals(q), false).scores.len());
        }
        Some(t.elapsed())
    }
    fn find(&self, q: &[u64], out: &mut Out) {
        put(&self.ix.find_matches(locals(q), false), out)
    }
    fn find_n(&self, q: &[u64]) -> usize {
        self.ix.find_matches(locals(q), false).scores.len()
    }
}
pub fn dyn_pos(mode: SearchMode) -> Sync_<DynPos> {
    Sync_::new(DynPos::new_with_mode(32, mode))
}
pub fn dyn_crtc() -> Sync_<Crtc> {
    Sync_::new(Crtc::new())
}

// ---------------------------------------------------------------- SMG kv-index 1.x and 2.x
macro_rules! smg {
    ($name:ident, $krate:ident, $ix:ty, $map:ty, $new:expr) => {
        pub struct $name {
            ix: $ix,
            ids: Vec<u32>,
            maps: Vec<$map>,
            back: Vec<u32>,
        }
        impl $name {
            pub fn new(workers: usize) -> Self {
                let ix: $ix = $new(workers);
                let ids: Vec<u32> = (0..workers).map(|w| ix.intern_worker(&format!("w{w}")).unwrap()).collect();
                let mut back = vec![0; workers];
                for (w, id) in ids.iter().enumerate() {
                    back[*id as usize] = w as u32;
                }
                Self { ix, maps: (0..workers).map(|_| <$map>::default()).collect(), ids, back }
            }
            fn one(ix: &$ix, id: u32, map: &mut $map, op: &Op, parent: Option<u64>, sb: &[$krate::StoredBlock], rm: &[$krate::SequenceHash]) {
                match op.kind {
                    STORE => {
                        let _ = ix.apply_stored(id, sb, parent.map($krate::SequenceHash), map);
                    }
                    REMOVE => ix.apply_removed(id, rm, map),
                    _ => ix.apply_cleared(id, map),
                }
            }
            /// (stored blocks, removed hashes, per-op offsets) in the peer's own types, built ahead.
            fn build(wl: &Workload, ops: &[Op]) -> (Vec<$krate::StoredBlock>, Vec<$krate::SequenceHash>, Vec<(usize, usize)>) {
                let (mut sb, mut rm, mut at) = (vec![], vec![], vec![]);
                for o in ops {
                    let w = wl.words(o);
                    if o.kind == STORE {
                        at.push((sb.len(), sb.len() + o.n as usize));
                        sb.extend(w.chunks(2).map(|c| $krate::StoredBlock {
                            seq_hash: $krate::SequenceHash(c[0]),
                            content_hash: $krate::ContentHash(c[1]),
                        }));
                    } else {
                        at.push((rm.len(), rm.len() + w.len()));
                        rm.extend(w.iter().map(|h| $krate::SequenceHash(*h)));
                    }
                }
                (sb, rm, at)
            }
            fn drain(ix: &$ix, ids: &[u32], maps: &mut [$map], stride: usize, wl: &Workload, ops: &[Op], b: &(Vec<$krate::StoredBlock>, Vec<$krate::SequenceHash>, Vec<(usize, usize)>)) {
                for (o, (s, e)) in ops.iter().zip(&b.2) {
                    let w = o.worker as usize;
                    let (sb, rm): (&[_], &[_]) = match o.kind {
                        STORE => (&b.0[*s..*e], &[]),
                        _ => (&[], &b.1[*s..*e]),
                    };
                    Self::one(ix, ids[w], &mut maps[w / stride], o, wl.parent(o), sb, rm);
                }
            }
            fn query(ix: &$ix, q: &[u64]) -> $krate::OverlapScores {
                const { assert!(size_of::<$krate::ContentHash>() == 8 && align_of::<$krate::ContentHash>() == 8) };
                // SAFETY: as in `locals`
                ix.find_matches(unsafe { std::slice::from_raw_parts(q.as_ptr().cast(), q.len()) }, false)
            }
        }
        impl Peer for $name {
            fn apply(&mut self, wl: &Workload, r: Range<usize>) -> Duration {
                let mut busy = Duration::ZERO;
                for chunk in wl.ops[r].chunks(4096) {
                    let b = Self::build(wl, chunk);
                    let t = cpu();
                    Self::drain(&self.ix, &self.ids, &mut self.maps, 1, wl, chunk, &b);
                    busy += cpu() - t;
                }
                busy
            }
            fn phases(&mut self, wl: &Workload, rs: &[Range<usize>], threads: usize) -> Option<Vec<Duration>> {
                let mut parts: Vec<Vec<$map>> = (0..threads).map(|_| vec![]).collect();
                for (w, m) in self.maps.drain(..).enumerate() {
                    parts[w % threads].push(m);
                }
                let (ix, ids) = (&self.ix, &self.ids);
                let mut out = vec![];
                for r in rs {
                    let ops: Vec<Vec<Op>> = (0..threads)
                        .map(|t| wl.ops[r.clone()].iter().filter(|o| o.worker as usize % threads == t).copied().collect())
                        .collect();
                    let built: Vec<_> = ops.iter().map(|o| Self::build(wl, o)).collect();
                    let t = Instant::now();
                    let spent = std::thread::scope(|s| {
                        let parts = ops.iter().zip(&built).zip(parts.iter_mut());
                        let running: Vec<_> = parts.map(|((o, b), p)| s.spawn(move || spent(|| Self::drain(ix, ids, p, threads, wl, o, b)))).collect();
                        running.into_iter().map(|thread| thread.join().unwrap()).sum()
                    });
                    out.push(if threads == 1 { spent } else { t.elapsed() });
                }
                let mut its: Vec<_> = parts.into_iter().map(|p| p.into_iter()).collect();
                for w in 0..self.ids.len() {
                    self.maps.push(its[w % threads].next().unwrap());
                }
                Some(out)
            }
            fn mixed(&mut self, wl: &Workload, fill: Range<usize>, r: Range<usize>, query: QueryLoop) -> Option<Duration> {
                self.phases(wl, &[fill], 1);
                let b = Self::build(wl, &wl.ops[r.clone()]);
                let (ix, ids, maps) = (&self.ix, &self.ids, &mut self.maps);
                let done = AtomicBool::new(false);
                let mut took = Duration::ZERO;
                std::thread::scope(|s| {
                    let h = s.spawn(|| {
                        let t = Instant::now();
                        Self::drain(ix, ids, maps, 1, wl, &wl.ops[r], &b);
                        let d = t.elapsed();
                        done.store(true, Ordering::Release);
                        d
                    });
                    while !done.load(Ordering::Acquire) {
                        query(&|q| Self::query(ix, q).scores.len());
                    }
                    took = h.join().unwrap();
                });
                Some(took)
            }
            fn clear(&mut self, workers: Range<usize>) -> Option<Duration> {
                let t = Instant::now();
                for w in workers {
                    self.ix.apply_cleared(self.ids[w], &mut self.maps[w]);
                }
                Some(t.elapsed())
            }
            fn find(&self, q: &[u64], out: &mut Out) {
                out.clear();
                out.extend(Self::query(&self.ix, q).scores.iter().filter(|(_, s)| **s > 0).map(|(w, s)| (self.back[*w as usize], *s)));
            }
            fn find_n(&self, q: &[u64]) -> usize {
                Self::query(&self.ix, q).scores.len()
            }
        }
    };
}
smg!(Smg1, kv_index_v1, kv_index_v1::PositionalIndexer, kv_index_v1::WorkerBlockMap, |_w: usize| kv_index_v1::PositionalIndexer::new(32));
smg!(Smg2, kv_index, kv_index::ChainIndex, kv_index::ChainBlockMap, |w: usize| kv_index::ChainIndex::with_max_workers(w.max(64)));

/// ChainIndex queried through `score_into` into a reused flat buffer: no typed copy of the query,
/// no result map.
pub struct Smg2Score(Smg2);
impl Peer for Smg2Score {
    fn apply(&mut self, wl: &Workload, r: Range<usize>) -> Duration {
        self.0.apply(wl, r)
    }
    fn phases(&mut self, wl: &Workload, rs: &[Range<usize>], threads: usize) -> Option<Vec<Duration>> {
        self.0.phases(wl, rs, threads)
    }
    fn mixed(&mut self, _: &Workload, _: Range<usize>, _: Range<usize>, _: QueryLoop) -> Option<Duration> {
        None
    }
    fn find(&self, q: &[u64], out: &mut Out) {
        out.clear();
        self.0.ix.score_into(q, |h| *h, false, |w, s| out.push((self.0.back[w as usize], s)));
    }
    fn find_n(&self, q: &[u64]) -> usize {
        // the scores go to a reused flat buffer, so that they are really produced
        thread_local!(static OUT: std::cell::RefCell<Out> = const { std::cell::RefCell::new(Vec::new()) });
        OUT.with(|o| {
            let mut o = o.borrow_mut();
            o.clear();
            self.0.ix.score_into(q, |h| *h, false, |w, s| o.push((w, s)));
            std::hint::black_box(o.as_ptr());
            o.len()
        })
    }
}

// ---------------------------------------------------------------- kvtap
/// How kvtap is asked: whole answers, lengths only, or lengths by prefix hashes that were made before the clock.
#[derive(Clone, Copy, PartialEq)]
pub enum Ask {
    Answers,
    Scores,
    Prefix,
}
pub struct Kvtap {
    ix: Arc<kvtap::index::Index>,
    scorer: kvtap::index::Scorer,
    writers: Vec<kvtap::index::RankWriter>,
    workers: std::collections::HashMap<kvtap::worker::RankId, u32>,
    grid: kvtap::block::Grid,
    ask: Ask,
    /// Prefix hashes of the queries by the address of their contents.
    prefixes: std::cell::RefCell<std::collections::HashMap<usize, Vec<kvtap::hash::PrefixHash>>>,
}
mod kv {
    pub use kvtap::block::{Grid, Group, Tier};
    pub use kvtap::hash::{ContentHash, EngineHash, PrefixHash, Seed};
    pub use kvtap::index::{Block, Chain, Copies, Index, Limits, Parent, RankMatch, RankScore, RankWriter};
    pub use kvtap::worker::Stamp;
}
/// Events in kvtap's own types, built ahead.
struct Built {
    blocks: Vec<kv::Block>,
    removed: Vec<kv::EngineHash>,
    at: Vec<(usize, usize)>,
}
impl Kvtap {
    pub fn new(workers: usize, ask: Ask) -> Self {
        let ix = kv::Index::new(kv::Limits::default());
        let grid = kv::Grid::new(16).unwrap();
        let writers: Vec<_> = (0..workers)
            .map(|_| {
                let mut w = ix.register("model", kv::Copies::Count).unwrap();
                let mut tx = w.begin().unwrap();
                tx.set_grid(grid).unwrap();
                tx.commit(kv::Stamp { epoch: 1, sequence: None });
                w
            })
            .collect();
        let ranks = (0..).zip(&writers).map(|(i, w)| (w.rank(), i)).collect();
        let scorer = ix.scorer("model", grid).unwrap();
        Self { ix, scorer, writers, workers: ranks, grid, ask, prefixes: Default::default() }
    }
    fn build(wl: &Workload, ops: &[Op]) -> Built {
        let mut b = Built { blocks: vec![], removed: vec![], at: vec![] };
        for o in ops {
            let w = wl.words(o);
            if o.kind == STORE {
                b.at.push((b.blocks.len(), b.blocks.len() + o.n as usize));
                b.blocks.extend(w.chunks(2).map(|c| kv::Block {
                    engine: kv::EngineHash::from_u64(c[0]),
                    content: kv::ContentHash(c[1]),
                }));
            } else {
                b.at.push((b.removed.len(), b.removed.len() + w.len()));
                b.removed.extend(w.iter().map(|h| kv::EngineHash::from_u64(*h)));
            }
        }
        b
    }
    /// One transaction an event, as a feed of one-event messages gives it.
    fn drain(writers: &mut [kv::RankWriter], stride: usize, wl: &Workload, ops: &[Op], b: &Built) {
        let group = kv::Group(0);
        for (n, (o, (s, e))) in (0u64..).zip(ops.iter().zip(&b.at)) {
            let mut tx = writers[o.worker as usize / stride].begin().unwrap();
            match o.kind {
                STORE => {
                    let parent = match wl.parent(o) {
                        None => Some(kv::Parent::Root(kv::Seed::PLAIN)),
                        // An orphan is not applied: the caller parks it.
                        Some(p) => tx.find(kv::EngineHash::from_u64(p)).map(|f| kv::Parent::Under(f.place)),
                    };
                    if let Some(parent) = parent {
                        tx.store(parent, kv::Tier::Device, group, &b.blocks[*s..*e]);
                    }
                }
                REMOVE => {
                    tx.remove(kv::Tier::Device, group, &b.removed[*s..*e]);
                }
                _ => tx.clear(),
            }
            tx.commit(kv::Stamp { epoch: 1, sequence: Some(n) });
        }
    }
    fn contents(q: &[u64]) -> &[kv::ContentHash] {
        const { assert!(size_of::<kv::ContentHash>() == 8 && align_of::<kv::ContentHash>() == 8) };
        // SAFETY: as in `locals`
        unsafe { std::slice::from_raw_parts(q.as_ptr().cast(), q.len()) }
    }
    fn query(ix: &kv::Index, scorer: &kvtap::index::Scorer, grid: kv::Grid, ask: Ask, chain: kv::Chain<'_>) -> usize {
        thread_local!(static OUT: std::cell::RefCell<(Vec<kv::RankMatch>, Vec<kv::RankScore>)> = const { std::cell::RefCell::new((Vec::new(), Vec::new())) });
        OUT.with(|o| {
            let mut o = o.borrow_mut();
            if ask == Ask::Answers {
                ix.match_chain("model", grid, chain, None, &mut o.0);
                std::hint::black_box(o.0.as_ptr());
                o.0.len()
            } else {
                o.1.clear();
                scorer.score_chain(chain, &mut o.1);
                std::hint::black_box(o.1.as_ptr());
                o.1.len()
            }
        })
    }
}
impl Peer for Kvtap {
    fn apply(&mut self, wl: &Workload, r: Range<usize>) -> Duration {
        let mut busy = Duration::ZERO;
        for chunk in wl.ops[r].chunks(4096) {
            let b = Self::build(wl, chunk);
            let t = cpu();
            Self::drain(&mut self.writers, 1, wl, chunk, &b);
            busy += cpu() - t;
        }
        busy
    }
    fn phases(&mut self, wl: &Workload, rs: &[Range<usize>], threads: usize) -> Option<Vec<Duration>> {
        let mut parts: Vec<Vec<kv::RankWriter>> = (0..threads).map(|_| vec![]).collect();
        let n = self.writers.len();
        for (w, m) in self.writers.drain(..).enumerate() {
            parts[w % threads].push(m);
        }
        let mut out = vec![];
        for r in rs {
            let ops: Vec<Vec<Op>> = (0..threads)
                .map(|t| wl.ops[r.clone()].iter().filter(|o| o.worker as usize % threads == t).copied().collect())
                .collect();
            let built: Vec<_> = ops.iter().map(|o| Self::build(wl, o)).collect();
            let t = Instant::now();
            let spent = std::thread::scope(|s| {
                let parts = ops.iter().zip(&built).zip(parts.iter_mut());
                let running: Vec<_> = parts.map(|((o, b), p)| s.spawn(move || spent(|| Self::drain(p, threads, wl, o, b)))).collect();
                running.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            out.push(if threads == 1 { spent } else { t.elapsed() });
        }
        let mut its: Vec<_> = parts.into_iter().map(|p| p.into_iter()).collect();
        for w in 0..n {
            self.writers.push(its[w % threads].next().unwrap());
        }
        Some(out)
    }
    fn mixed(&mut self, wl: &Workload, fill: Range<usize>, r: Range<usize>, query: QueryLoop) -> Option<Duration> {
        if self.ask == Ask::Prefix {
            return None;
        }
        self.phases(wl, &[fill], 1);
        let b = Self::build(wl, &wl.ops[r.clone()]);
        let (ix, scorer, grid, ask, writers) = (&self.ix, &self.scorer, self.grid, self.ask, &mut self.writers);
        let done = AtomicBool::new(false);
        let mut took = Duration::ZERO;
        std::thread::scope(|s| {
            let h = s.spawn(|| {
                let t = Instant::now();
                Self::drain(writers, 1, wl, &wl.ops[r], &b);
                let d = t.elapsed();
                done.store(true, Ordering::Release);
                d
            });
            while !done.load(Ordering::Acquire) {
                query(&|q| Self::query(ix, scorer, grid, ask, kv::Chain::Content(Self::contents(q))));
            }
            took = h.join().unwrap();
        });
        Some(took)
    }
    fn prepare(&mut self, wl: &Workload) {
        if self.ask == Ask::Prefix {
            let queries = (0..wl.queries.len()).map(|i| wl.query(i));
            let made = queries.map(|q| (q.as_ptr() as usize, kv::PrefixHash::chain(Self::contents(q))));
            self.prefixes = std::cell::RefCell::new(made.collect());
        }
    }
    fn remove_all(&mut self) -> Option<Duration> {
        let t = Instant::now();
        for w in &self.writers {
            self.ix.remove(w.rank());
        }
        Some(t.elapsed())
    }
    fn clear(&mut self, workers: Range<usize>) -> Option<Duration> {
        let t = Instant::now();
        for w in workers {
            let mut tx = self.writers[w].begin().unwrap();
            tx.clear();
            tx.commit(kv::Stamp { epoch: 1, sequence: None });
        }
        Some(t.elapsed())
    }
    fn shape(&self) -> Option<String> {
        self.ix.shape("model", self.grid).map(|s| format!("{s:?}"))
    }
    fn find(&self, q: &[u64], out: &mut Out) {
        out.clear();
        let prefixes = kv::PrefixHash::chain(Self::contents(q));
        let chain = match self.ask {
            Ask::Prefix => kv::Chain::Prefix(&prefixes),
            _ => kv::Chain::Content(Self::contents(q)),
        };
        if self.ask == Ask::Answers {
            let mut found = vec![];
            self.ix.match_chain("model", self.grid, chain, None, &mut found);
            out.extend(found.iter().map(|m| (self.workers[&m.rank], m.device)));
        } else {
            let mut found = vec![];
            self.scorer.score_chain(chain, &mut found);
            out.extend(found.iter().map(|m| (self.workers[&m.rank], m.device)));
        }
    }
    fn find_n(&self, q: &[u64]) -> usize {
        if self.ask == Ask::Prefix {
            let prefixes = self.prefixes.borrow();
            return Self::query(&self.ix, &self.scorer, self.grid, self.ask, kv::Chain::Prefix(&prefixes[&(q.as_ptr() as usize)]));
        }
        Self::query(&self.ix, &self.scorer, self.grid, self.ask, kv::Chain::Content(Self::contents(q)))
    }
}

pub fn make(name: &str, workers: usize) -> Box<dyn Peer> {
    match name {
        "kvtap" => Box::new(Kvtap::new(workers, Ask::Answers)),
        "kvtap-scores" => Box::new(Kvtap::new(workers, Ask::Scores)),
        "kvtap-prefix" => Box::new(Kvtap::new(workers, Ask::Prefix)),
        "exact-naive" => Box::new(Naive::default()),
        "dyn-radix" => Box::new(Radix::new()),
        "dyn-crtc" => Box::new(dyn_crtc()),
        "dyn-pos" => Box::new(dyn_pos(SearchMode::Strided)),
        "dyn-posbin" => Box::new(dyn_pos(SearchMode::Binary)),
        "smg1-pos" => Box::new(Smg1::new(workers)),
        "smg2-score" => Box::new(Smg2Score(Smg2::new(workers))),
        "smg2-chain" => Box::new(Smg2::new(workers)),
        _ => panic!("unknown peer {name}; one of {NAMES:?}"),
    }
}
