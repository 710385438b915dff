//! The roster by its public door: what is left alone, begun anew, withdrawn, set aside.

use std::sync::Arc;
use std::time::Duration;

use kvtap::config::{Config, Env};
use kvtap::feed::status::Board;
use kvtap::index::{Copies, Index, Limits};
use kvtap::roster::{Place, Put, Roster, Source, Wanted};
use kvtap::worker::RankId;
use tokio::time::{sleep, timeout};

struct Scene {
    roster: Roster,
    board: Arc<Board>,
    index: Arc<Index>,
}

/// What a configuration with these entries of `feeds` wants. Nobody serves its endpoints.
fn wanted(feeds: &[&str]) -> Vec<Wanted> {
    let feeds: String = feeds.iter().map(|feed| format!("  - {{ model: m, {feed} }}\n")).collect();
    let text = if feeds.is_empty() { String::new() } else { format!("feeds:\n{feeds}") };
    let (config, _) = Config::parse(&text, "test", &Env::default()).unwrap();
    config.wanted(None).unwrap()
}

fn one(feed: &str) -> Wanted {
    wanted(&[feed]).remove(0)
}

impl Scene {
    fn new() -> Self {
        let (index, board) = (Index::new(Limits::default()), Arc::new(Board::default()));
        Self { roster: Roster::new(Arc::clone(&index), Arc::clone(&board)), board, index }
    }

    /// Worker, rank and registration of each feed that runs.
    fn running(&self) -> Vec<(String, u32, RankId)> {
        let all = self.board.all();
        all.iter().map(|entry| (entry.identity.worker.to_string(), entry.identity.rank, entry.rank)).collect()
    }

    fn names(&self) -> Vec<String> {
        self.running().into_iter().map(|(worker, rank, _)| format!("{worker}/{rank}")).collect()
    }

    fn places(&self) -> Vec<(Source, String, Place)> {
        let entries = self.roster.standing().picture().entries;
        entries.into_iter().map(|entry| (entry.source, entry.worker, entry.place)).collect()
    }
}

const A: &str = "worker: a, endpoint: tcp://127.0.0.1:15557";
const B: &str = "worker: b, endpoint: tcp://127.0.0.1:15567";

#[tokio::test]
async fn a_feed_that_is_wanted_as_it_runs_keeps_its_registration() {
    let scene = Scene::new();
    scene.roster.set(Source::Config, wanted(&[A, B])).await;
    let before = scene.running();
    let changes = scene.roster.set(Source::Config, wanted(&[B, A, "worker: c, endpoint: tcp://127.0.0.1:1"])).await;
    assert_eq!((changes.begun, changes.changed, changes.withdrawn, changes.untouched), (1, 0, 0, 2));
    assert_eq!(scene.running()[..2], before);
    scene.roster.finish(Duration::ZERO).await;
}

#[tokio::test]
async fn a_feed_that_is_wanted_otherwise_begins_anew_and_no_other_does() {
    let scene = Scene::new();
    scene.roster.set(Source::Config, wanted(&[A, B])).await;
    let before = scene.running();
    for other in [
        "worker: a, endpoint: tcp://127.0.0.1:15558",
        "worker: a, endpoint: tcp://127.0.0.1:15558, block_size: 16",
        "worker: a, endpoint: tcp://127.0.0.1:15558, block_size: 16, address: \"10.0.0.1:8000\"",
        "worker: a, endpoint: tcp://127.0.0.1:15558, replay: tcp://127.0.0.1:15559",
        "worker: a, endpoint: tcp://127.0.0.1:15558, disconnect_grace: 1h",
    ] {
        let registered = scene.running()[0].2;
        let changes = scene.roster.set(Source::Config, wanted(&[other, B])).await;
        assert_eq!((changes.changed, changes.untouched), (1, 1), "{other}");
        let running = scene.running();
        assert_ne!(running[0].2, registered, "{other}");
        assert_eq!(scene.index.usage(registered), None, "{other}");
        assert_eq!(running[1], before[1]);
    }
}

#[tokio::test]
async fn a_rank_more_leaves_the_others_alone() {
    let scene = Scene::new();
    scene.roster.set(Source::Config, wanted(&["worker: a, endpoint: tcp://127.0.0.1:15557, ranks: 2"])).await;
    let before = scene.running();
    let changes =
        scene.roster.set(Source::Config, wanted(&["worker: a, endpoint: tcp://127.0.0.1:15557, ranks: 3"])).await;
    assert_eq!((changes.begun, changes.untouched), (1, 2));
    assert_eq!(scene.running()[..2], before);
    let changes =
        scene.roster.set(Source::Config, wanted(&["worker: a, endpoint: tcp://127.0.0.1:15557, ranks: 1"])).await;
    assert_eq!((changes.withdrawn, changes.untouched), (2, 1));
    assert_eq!(scene.running(), before[..1]);
}

#[tokio::test]
async fn what_nobody_wants_any_more_has_left_board_and_index() {
    let scene = Scene::new();
    scene.roster.set(Source::Config, wanted(&[A, B])).await;
    let (_, _, a) = scene.running().remove(0);
    let changes = scene.roster.set(Source::Config, wanted(&[B])).await;
    assert_eq!(changes.withdrawn, 1);
    assert_eq!(scene.names(), ["b/0"]);
    assert_eq!(scene.index.usage(a), None);
}

#[tokio::test]
async fn another_instance_of_the_same_name_is_another_feed() {
    let scene = Scene::new();
    scene.roster.put(Source::Discovery, Wanted { instance: "uid-1".into(), ..one(A) }).await;
    let before = scene.running();
    let same = scene.roster.put(Source::Discovery, Wanted { instance: "uid-1".into(), ..one(A) }).await;
    assert_eq!((same.0, scene.running()), (Put::Unchanged, before.clone()));
    let other = scene.roster.put(Source::Discovery, Wanted { instance: "uid-2".into(), ..one(A) }).await;
    assert_eq!((other.0, other.1.changed), (Put::Changed, 1));
    assert_ne!(scene.running(), before);
}

#[tokio::test]
async fn a_worker_that_two_sources_want_is_the_files_and_the_other_gets_it_when_the_file_lets_go() {
    let scene = Scene::new();
    let other = "worker: a, endpoint: tcp://127.0.0.1:15999";
    scene.roster.put(Source::Admin, one(other)).await;
    scene.roster.set(Source::Config, wanted(&[A, B])).await;
    assert_eq!(scene.board.all()[0].endpoint, "tcp://127.0.0.1:15557");
    let expected = [
        (Source::Config, "a".to_owned(), Place::Running),
        (Source::Config, "b".to_owned(), Place::Running),
        (Source::Admin, "a".to_owned(), Place::SetAside),
    ];
    assert_eq!(scene.places(), expected);
    let why = scene.roster.standing().picture().entries[2].why.clone();
    assert_eq!(why, "the configuration file has a worker of that name");

    scene.roster.set(Source::Config, wanted(&[B])).await;
    assert_eq!(scene.board.all()[0].endpoint, "tcp://127.0.0.1:15999");
    assert!(scene.places().iter().all(|(.., place)| *place == Place::Running));
}

#[tokio::test]
async fn a_feed_that_changes_hands_as_it_is_is_not_touched() {
    let scene = Scene::new();
    scene.roster.set(Source::Config, wanted(&[A])).await;
    let before = scene.running();
    scene.roster.put(Source::Admin, one(A)).await;
    let changes = scene.roster.set(Source::Config, wanted(&[])).await;
    assert_eq!((changes.untouched, changes.withdrawn), (1, 0));
    assert_eq!(scene.running(), before);
}

#[tokio::test]
async fn a_cleared_worker_begins_anew_with_the_listed_ranks_only() {
    let scene = Scene::new();
    scene.roster.set(Source::Config, wanted(&["worker: a, endpoint: tcp://127.0.0.1:15557, ranks: 3", B])).await;
    let before = scene.running();
    assert_eq!(scene.roster.clear("a", &[1]).await, [1]);
    let after = scene.running();
    let same: Vec<bool> = before.iter().zip(&after).map(|(before, after)| before == after).collect();
    assert_eq!(same, [true, false, true, true]);
    assert_eq!(scene.roster.clear("a", &[]).await, [0, 1, 2]);
    assert_eq!(scene.roster.clear("nobody", &[]).await, [0; 0]);
    // As it is wanted, so it runs.
    let changes =
        scene.roster.set(Source::Config, wanted(&["worker: a, endpoint: tcp://127.0.0.1:15557, ranks: 3", B])).await;
    assert_eq!((changes.changed, changes.untouched), (0, 4));
}

#[tokio::test]
async fn a_change_is_made_to_its_end_though_whoever_asked_for_it_went_away() {
    let scene = Scene::new();
    scene.roster.set(Source::Config, wanted(&[A])).await;
    {
        let mut asked = std::pin::pin!(scene.roster.set(Source::Config, wanted(&[B])));
        // Asked, and given up before anything could come of it.
        assert!(futures_util::poll!(&mut asked).is_pending());
    }
    // The next change waits for that one.
    let changes = scene.roster.set(Source::Admin, Vec::new()).await;
    assert_eq!(changes.untouched, 1);
    assert_eq!(scene.names(), ["b/0"]);
}

#[tokio::test]
async fn after_the_end_nothing_is_begun_any_more() {
    let scene = Scene::new();
    scene.roster.set(Source::Config, wanted(&[A])).await;
    scene.roster.finish(Duration::ZERO).await;
    assert_eq!(scene.names(), [""; 0]);
    scene.roster.put(Source::Admin, one(B)).await;
    assert_eq!(scene.names(), [""; 0]);
}

#[tokio::test]
async fn a_feed_that_could_not_begin_is_tried_again_by_itself_and_begins_once_there_is_room() {
    let scene = Scene::new();
    let mut others = Vec::new();
    while let Ok(other) = scene.index.register("another", Copies::Count) {
        others.push(other);
    }
    let changes = scene.roster.set(Source::Config, wanted(&[A])).await;
    assert_eq!(changes.failed.len(), 1, "{changes:?}");
    assert_eq!(scene.places(), [(Source::Config, "a".to_owned(), Place::Failed)]);

    scene.index.remove(others[0].rank());
    let begun = async {
        while scene.names().is_empty() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(60), begun).await.expect("it is tried again");
    assert_eq!(scene.names(), ["a/0"]);
    let mut picture = scene.roster.standing().picture();
    while picture.count(Source::Config, Place::Running) == 0 {
        sleep(Duration::from_millis(20)).await;
        picture = scene.roster.standing().picture();
    }
    assert_eq!(picture.entries[0].why, "");
}
