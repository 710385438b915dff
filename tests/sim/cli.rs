use clap::Parser;
use kvtap::cli::sim::{Args, simulate};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::peer::Peer;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn args(line: &str) -> Result<Args, clap::Error> {
    Command::try_parse_from(std::iter::once("sim").chain(line.split_whitespace())).map(|command| command.args)
}

async fn lines(line: &str) -> Vec<String> {
    let mut out = Vec::new();
    simulate(args(line).unwrap(), &mut out, CancellationToken::new()).await.unwrap();
    String::from_utf8(out).unwrap().lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn each_rank_says_where_it_is_bound_and_at_the_end_what_it_counted() {
    let out = lines("--ranks 2 --requests 20 --linger 0.001 --model m").await;
    assert_eq!(out.len(), 6);
    for (rank, line) in out[..2].iter().enumerate() {
        let start = format!("rank {rank} of m: publishing on tcp://127.0.0.1:");
        assert!(line.starts_with(&start) && line.contains(" replay on tcp://127.0.0.1:"), "{line}");
        assert!(!line.contains(":0"), "{line}");
    }
    assert_eq!(out[3], "  seq 1 33 | kvtap match --server 127.0.0.1:9400 --model m --tokens-file -");
    assert!(out[4].starts_with("rank 0: 20 requests, "), "{}", out[4]);
    assert!(out[5].starts_with("rank 1: 20 requests, "), "{}", out[5]);
}

#[tokio::test]
async fn the_same_seed_counts_the_same_and_the_json_lines_say_so() {
    let counted = |seed| async move {
        let line = format!("--json --requests 60 --blocks 200 --tenants 2 --adapters 1 --linger 0.001 --seed {seed}");
        serde_json::from_str::<Value>(&lines(&line).await[1]).unwrap()
    };
    let first = counted(4).await;
    assert_eq!(first, counted(4).await);
    assert_ne!(first, counted(5).await);
    assert_eq!(first["requests"], 60);
    assert!(first["cached_tokens"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn faults_come_after_their_request_and_stopping_ends_an_endless_load() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    let line = format!(
        "--json --endpoint ipc://{path}/pub --replay ipc://{path}/replay --rate 200 --fault lose=1@1 --fault restart@3"
    );
    let stop = CancellationToken::new();
    let run = tokio::spawn({
        let (args, stop) = (args(&line).unwrap(), stop.clone());
        async move {
            let mut out = Vec::new();
            simulate(args, &mut out, stop).await.map(|()| out)
        }
    });
    let replay = format!("ipc://{path}/replay");
    let mut peer = Peer::spawn();
    // Of the first life the second message was lost; the second life has them all.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let replies = peer.request(&replay, "DEALER", &[vec![String::new(), String::new()]]).await;
        let sequences: Vec<_> =
            replies[..replies.len() - 1].iter().map(|frames| u64::from_str_radix(&frames[2], 16).unwrap()).collect();
        if sequences.len() > 10 && sequences.iter().copied().eq(0..sequences.len() as u64) {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{sequences:?}");
    }
    stop.cancel();
    let out = String::from_utf8(run.await.unwrap().unwrap()).unwrap();
    assert_eq!(out.lines().count(), 2);
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    for wrong in [
        "--ranks 0",
        "--block-size 0",
        "--block-size 65537",
        "--blocks 1",
        "--rate 0",
        "--rate nan",
        "--encoding json",
        "--fault explode@3",
        "--fault restart",
        "--fault restart@soon",
    ] {
        assert!(args(wrong).is_err(), "{wrong}");
    }
    assert!(args("--encoding array-0.19 --hashes bytes --fault delay=2x30@7 --replay none").is_ok());
}
