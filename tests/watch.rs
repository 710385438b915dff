//! `Watch`: what it tells, how it resumes, and what becomes of watchers that do not read.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod serve_support;

use std::sync::Arc;

use kvtap::block::{Grid, Group, Tier};
use kvtap::feed::status::State;
use kvtap::hash::{EngineHash, Seed};
use kvtap::index::{Chain, Index, Limits};
use kvtap::proto::v1;
use kvtap::proto::v1::event::Event;
use kvtap::proto::v1::watch_response::What;
use kvtap::proto::v1::watch_service_client::WatchServiceClient;
use kvtap::replica::{News, Replica};
use kvtap::serve::{Options, WatchLimits};
use serve_support::{PATIENCE, Server, Worker, contents};
use tokio::time::timeout;
use tonic::{Code, Status, Streaming};

/// One watch, and the replica that it feeds.
struct Watch {
    stream: Streaming<v1::WatchResponse>,
    replica: Replica,
}

impl Watch {
    async fn begin(server: &Server, request: v1::WatchRequest) -> Self {
        let replica = Replica::new(Index::new(Limits::default()));
        Self { stream: watch(server, request).await.unwrap(), replica }
    }

    /// The next message, applied.
    async fn next(&mut self) -> Result<(v1::WatchResponse, News), Status> {
        let message = timeout(PATIENCE, self.stream.message()).await.unwrap()?.unwrap();
        let news = self.replica.hear(message.clone()).unwrap();
        Ok((message, news))
    }

    /// Reads until a worker is mirrored up to a sequence number; every event that came.
    async fn until(&mut self, worker: &str, sequence: u64) -> Vec<Event> {
        let mut events = Vec::new();
        while self.mirrored(worker) != Some(sequence) {
            if let (v1::WatchResponse { what: Some(What::Event(event)), .. }, _) = self.next().await.unwrap() {
                events.extend(event.event);
            }
        }
        events
    }

    fn mirrored(&self, worker: &str) -> Option<u64> {
        self.replica.rank(worker, "m", 0)?.at()?.stamp.sequence
    }

    /// Leading blocks that a worker's mirror holds of a prompt, and of these how many on the device.
    fn matched(&self, worker: &str, tokens: &[u32]) -> (u32, u32) {
        let chain = contents(grid(), tokens, Seed::PLAIN);
        let mut found = Vec::new();
        let listed = [self.replica.rank(worker, "m", 0).unwrap().rank()];
        self.replica.index().match_chain("m", grid(), Chain::Content(&chain), Some(&listed), &mut found);
        (found[0].blocks, found[0].device)
    }
}

async fn watch(server: &Server, request: v1::WatchRequest) -> Result<Streaming<v1::WatchResponse>, Status> {
    let mut client = WatchServiceClient::new(server.channel().await).max_decoding_message_size(16 << 20);
    Ok(client.watch(request).await?.into_inner())
}

fn grid() -> Grid {
    Grid::new(4).unwrap()
}

fn tokens(blocks: u32) -> Vec<u32> {
    (0..blocks * 4).collect()
}

/// Removes the blocks from `from` on of a prompt that [`Worker::store`] has stored, in one message.
fn remove(worker: &mut Worker, tokens: &[u32], from: usize, sequence: u64) {
    let name = |(i, content): (usize, &kvtap::hash::ContentHash)| {
        EngineHash::from_u64(content.0.wrapping_mul(31).wrapping_add(i as u64))
    };
    let names: Vec<_> = contents(grid(), tokens, Seed::PLAIN).iter().enumerate().map(name).collect();
    let mut tx = worker.writer.begin().unwrap();
    tx.remove(Tier::Device, Group(0), &names[from..]);
    tx.commit(kvtap::worker::Stamp { epoch: 1, sequence: Some(sequence) });
}

#[tokio::test]
async fn a_watch_tells_what_is_held_and_then_what_changes() {
    let server = Server::start().await;
    let mut worker = server.worker("m", "pod-a", 0);
    worker.store(grid(), &tokens(5), Seed::PLAIN);
    let mut watch = Watch::begin(&server, v1::WatchRequest::default()).await;
    watch.until("pod-a", 0).await;
    assert_eq!(watch.matched("pod-a", &tokens(8)), (5, 5));
    let longer = contents(grid(), &tokens(8), Seed::PLAIN);
    worker.store_on(Tier::Host, grid(), &longer, Seed::PLAIN);
    let events = watch.until("pod-a", 1).await;
    assert!(events.iter().all(|event| matches!(event, Event::Delta(_))), "{events:?}");
    assert_eq!(watch.matched("pod-a", &tokens(8)), (8, 5));
    remove(&mut worker, &tokens(5), 2, 9);
    watch.until("pod-a", 9).await;
    assert_eq!(watch.matched("pod-a", &tokens(8)), (8, 2));
    server.stop().await;
}

#[tokio::test]
async fn a_watch_that_is_resumed_is_told_only_what_it_missed() {
    let server = Server::start().await;
    let mut worker = server.worker("m", "pod-a", 0);
    worker.store(grid(), &tokens(5), Seed::PLAIN);
    let mut watch = Watch::begin(&server, v1::WatchRequest::default()).await;
    watch.until("pod-a", 0).await;
    while watch.replica.resume_after().is_empty() {
        watch.next().await.unwrap();
    }
    let resume_after = watch.replica.resume_after();
    drop(watch.stream);
    for more in 6..9 {
        worker.store(grid(), &tokens(more), Seed::PLAIN);
    }
    let request = v1::WatchRequest { resume_after: resume_after.clone(), ..Default::default() };
    watch.stream = self::watch(&server, request).await.unwrap();
    let (started, _) = watch.next().await.unwrap();
    assert!(matches!(started.what, Some(What::Started(started)) if started.resumed && started.why.is_empty()));
    let events = watch.until("pod-a", 3).await;
    assert!(events.iter().all(|event| matches!(event, Event::Delta(_))), "{events:?}");
    assert_eq!(watch.matched("pod-a", &tokens(10)), (8, 8));

    // With another filter, from another server, or made up, it is no place to go on from.
    let other = Server::start().await;
    let filtered = v1::WatchRequest { model: "m".to_owned(), resume_after: resume_after.clone(), ..Default::default() };
    let whole = v1::WatchRequest { resume_after, ..Default::default() };
    let made_up = v1::WatchRequest { resume_after: vec![7; 23].into(), ..Default::default() };
    for (server, request, why) in
        [(&server, filtered, "other workers"), (&other, whole, "another server"), (&server, made_up, "no cursor")]
    {
        let (started, _) = Watch::begin(server, request).await.next().await.unwrap();
        let Some(What::Started(started)) = started.what else { panic!("{started:?}") };
        assert!(!started.resumed && started.why.contains(why), "{started:?}");
    }
}

#[tokio::test]
async fn a_watcher_that_does_not_read_is_cut_and_gets_there_all_the_same() {
    let watch = WatchLimits { history_bytes: 64 << 10, ..WatchLimits::default() };
    let server = Server::start_with(Options { watch, ..Options::default() }, Vec::new()).await;
    let mut worker = server.worker("m", "pod-a", 0);
    worker.store(grid(), &tokens(2), Seed::PLAIN);
    let mut watch = Watch::begin(&server, v1::WatchRequest::default()).await;
    watch.until("pod-a", 0).await;
    // More than the sockets, the windows and the history hold together.
    let long = tokens(2_000);
    let mut last = 0;
    for round in 1..=400 {
        worker.store(grid(), &long, Seed::PLAIN);
        remove(&mut worker, &long, 2, 1_000_000 + round);
        last = 1_000_000 + round;
    }
    worker.store(grid(), &tokens(3), Seed::PLAIN);
    let ended = loop {
        match watch.next().await {
            Ok(_) => {}
            Err(status) => break status,
        }
    };
    assert_eq!((ended.code(), ended.message().contains("too far behind")), (Code::Aborted, true), "{ended:?}");
    assert_ne!(watch.mirrored("pod-a"), Some(last));
    let request = v1::WatchRequest { resume_after: watch.replica.resume_after(), ..Default::default() };
    watch.stream = self::watch(&server, request).await.unwrap();
    watch.until("pod-a", 401).await;
    assert_eq!(watch.matched("pod-a", &tokens(5)), (3, 3));
    let metrics = kvtap::admin::Metrics::new(&server.fleet, &server.requests).encode().unwrap();
    assert!(metrics.contains("kvtap_watches_cut_total 1\n") && metrics.contains("kvtap_watchers 1\n"), "{metrics}");
}

#[tokio::test]
async fn a_watch_of_some_workers_hears_of_no_others() {
    let server = Server::start().await;
    let mut others = [server.worker("n", "pod-a", 0), server.worker("m", "pod-b", 0)];
    let mut worker = server.named_worker("m", "pod-c", 0, "10.0.0.1:8000", &[]);
    let request = v1::WatchRequest {
        model: "m".to_owned(),
        workers: vec!["10.0.0.1:8000".to_owned(), "pod-a".to_owned()],
        ..Default::default()
    };
    let mut watch = Watch::begin(&server, request).await;
    for worker in &mut others {
        worker.store(grid(), &tokens(1), Seed::PLAIN);
    }
    worker.store(grid(), &tokens(1), Seed::PLAIN);
    for event in watch.until("pod-c", 0).await {
        let event = format!("{event:?}");
        assert!(event.contains("pod-c") && !event.contains("pod-a") && !event.contains("pod-b"), "{event}");
    }
}

#[tokio::test]
async fn workers_that_come_change_and_go_are_told() {
    let server = Server::start().await;
    let mut watch = Watch::begin(&server, v1::WatchRequest::default()).await;
    assert!(matches!(watch.next().await.unwrap().0.what, Some(What::Started(_))));
    assert_eq!(watch.next().await.unwrap().1, News::Synced);
    let mut worker = server.worker("m", "pod-a", 0);
    worker.store(grid(), &tokens(2), Seed::PLAIN);
    let News::Added(_, added) = watch.next().await.unwrap().1 else { panic!("it comes first") };
    assert_eq!((added.state(), &*added.worker_rank.unwrap().worker), (v1::FeedState::Live, "pod-a"));
    watch.until("pod-a", 0).await;
    // A state is compared with the one that was seen before.
    let mut turn = 0;
    let changed = loop {
        worker.entry.status().state = if turn % 2 == 0 { State::Incomplete } else { State::Live };
        turn += 1;
        match timeout(std::time::Duration::from_millis(400), watch.stream.message()).await {
            Ok(message) => break message.unwrap().unwrap(),
            Err(_) => assert!(turn < 50, "no change was told"),
        }
    };
    let Some(What::Event(v1::Event { event: Some(Event::Changed(_)) })) = changed.what else { panic!("{changed:?}") };
    server.fleet.board.remove(worker.entry.rank);
    server.fleet.index.remove(worker.entry.rank);
    loop {
        if let News::Gone(ranks) = watch.next().await.unwrap().1 {
            assert_eq!(ranks.len(), 1);
            break;
        }
    }
    assert!(watch.replica.index().ranks().is_empty());
}

#[tokio::test]
async fn the_first_change_of_a_rank_is_told_whether_it_came_before_the_watch_or_after() {
    let server = Server::start().await;
    let before = server.worker("m", "before", 0);
    before.entry.status().state = State::Incomplete;
    let mut watch = Watch::begin(&server, v1::WatchRequest::default()).await;
    let mut after = None;
    for _ in 0..2 {
        let added = loop {
            match watch.next().await.unwrap().1 {
                News::Added(_, added) => break added,
                News::Changed(..) => panic!("nothing has changed"),
                _ => {}
            }
        };
        // It changes as soon as it was told, and never again.
        let entry = &after.as_ref().unwrap_or(&before).entry;
        let now = if added.state() == v1::FeedState::Live { State::Incomplete } else { State::Live };
        entry.status().state = now;
        let changed = loop {
            if let Some(What::Event(v1::Event { event: Some(Event::Changed(changed)) })) =
                watch.next().await.unwrap().0.what
            {
                break changed;
            }
        };
        let told = (changed.worker_rank.as_ref().unwrap().worker.clone(), changed.state().as_str_name());
        let name = &*entry.identity.worker;
        assert_eq!(
            told,
            (name.to_owned(), if now == State::Live { "FEED_STATE_LIVE" } else { "FEED_STATE_INCOMPLETE" })
        );
        after.get_or_insert_with(|| server.worker("m", "after", 0));
    }
    server.stop().await;
}

#[tokio::test]
async fn only_so_many_watch_at_one_time_and_a_place_is_free_again_when_one_ends() {
    let watch = WatchLimits { watchers: 1, ..WatchLimits::default() };
    let server = Server::start_with(Options { watch, ..Options::default() }, Vec::new()).await;
    let first = self::watch(&server, v1::WatchRequest::default()).await.unwrap();
    let refused = self::watch(&server, v1::WatchRequest::default()).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message().starts_with("grpc.watch.watchers: 1 ")),
        (Code::ResourceExhausted, true)
    );
    drop(first);
    let requests = &server.requests;
    let fleet = Arc::clone(&server.fleet);
    let is_free = || kvtap::admin::Metrics::new(&fleet, requests).encode().unwrap().contains("kvtap_watchers 0\n");
    serve_support::eventually("the place is free", is_free).await;
    self::watch(&server, v1::WatchRequest::default()).await.unwrap();
    let counted = kvtap::admin::Metrics::new(&fleet, requests).encode().unwrap();
    for (code, calls) in [("ok", 2), ("resource_exhausted", 1)] {
        let line = format!("kvtap_grpc_requests_total{{rpc=\"Watch\",code=\"{code}\"}} {calls}\n");
        assert!(counted.contains(&line), "{counted}");
    }
    let many = vec![String::new(); 4_097];
    let refused = self::watch(&server, v1::WatchRequest { workers: many, ..Default::default() }).await.unwrap_err();
    assert_eq!((refused.code(), refused.message().starts_with("workers")), (Code::InvalidArgument, true));
}

#[tokio::test]
async fn a_server_that_stops_ends_its_watches() {
    let server = Server::start().await;
    let mut watch = Watch::begin(&server, v1::WatchRequest::default()).await;
    assert!(matches!(watch.next().await.unwrap().0.what, Some(What::Started(_))));
    server.stop().await;
    let ended = loop {
        match watch.next().await {
            Ok(_) => {}
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), Code::Unavailable, "{ended:?}");
}
