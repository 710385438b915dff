//! What a question costs beside an empty call, and what waiting for one costs. See README.md.

mod engine;
mod fleet;
mod floor;
mod fresh;
mod idle;
mod load;
mod process;
mod rival;
mod stats;

/// kvtap's protocol, as any client has it.
pub mod v1 {
    tonic::include_proto!("kvtap.v1");
}

use std::path::PathBuf;
use std::time::Duration;

use fleet::Fleet;
use load::Target;
use stats::{Row, table};

/// Rounds of each figure, interleaved; their medians count.
const ROUNDS: usize = 9;
/// How long one contestant has its turn.
const TURN: Duration = Duration::from_millis(600);
/// The lengths of the prompts that are asked for, in blocks.
const BLOCKS: [usize; 2] = [500, 4000];

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *words {
        ["echo"] => floor::echo().await,
        ["receive", endpoint] => fresh::receive(endpoint).await,
        ["run", kvtap, ref figures @ ..] => run(kvtap.into(), figures).await,
        _ => eprintln!("grpc run KVTAP [match|flight|stream|fresh|idle|dynamo=BINARY]..."),
    }
}

async fn run(kvtap: PathBuf, figures: &[&str]) {
    let asked = |figure: &str| figures.is_empty() || figures.contains(&figure);
    let rival = figures.iter().find_map(|figure| figure.strip_prefix("dynamo="));
    if asked("idle") {
        idle::run(&kvtap).await;
    }
    if asked("match") || asked("flight") || asked("stream") || rival.is_some() {
        let fleet = Fleet::start(&kvtap, rival).await;
        let echo = floor::Echo::start();
        if asked("match") {
            latencies(&fleet, &echo).await;
        }
        if asked("flight") || asked("stream") {
            flights(&fleet, &echo).await;
        }
        rival::run(&fleet).await;
    }
    if asked("fresh") {
        fresh::run(&kvtap).await;
    }
}

/// One call at a time.
async fn latencies(fleet: &Fleet, echo: &floor::Echo) {
    for blocks in BLOCKS {
        let answer = fleet.answer_bytes(blocks).await;
        let mut targets = [
            Target::kvtap("Match, tokens", fleet.channel().await, fleet.requests(blocks)),
            Target::kvtap("Match, brief", fleet.channel().await, brief(fleet.requests(blocks))),
            Target::unread("Match, the answer left unread", fleet.channel().await, fleet.requests(blocks)),
            Target::echo("echo", echo.channel().await, fleet.token_bytes(blocks), 0),
            Target::echo(
                "echo, an answer as large as Match's",
                echo.channel().await,
                fleet.token_bytes(blocks),
                answer,
            ),
        ];
        let mut rows: Vec<Row> = targets.iter().map(|target| Row::new(target.name)).collect();
        for _ in 0..ROUNDS {
            for (target, row) in targets.iter_mut().zip(&mut rows) {
                row.round(target.latencies(TURN).await);
            }
        }
        table(&format!("{blocks} blocks, 64 workers, one call at a time (answer: {answer} bytes)"), &rows);
    }
}

/// The same, to be answered with what a score needs.
fn brief(mut requests: Vec<v1::MatchRequest>) -> Vec<v1::MatchRequest> {
    requests.iter_mut().for_each(|request| request.brief = true);
    requests
}

/// 32 calls at a time on one connection.
async fn flights(fleet: &Fleet, echo: &floor::Echo) {
    for blocks in BLOCKS {
        let answer = fleet.answer_bytes(blocks).await;
        let mut targets = [
            Target::kvtap("Match, 32 in flight", fleet.channel().await, fleet.requests(blocks)),
            Target::kvtap("Match, brief", fleet.channel().await, brief(fleet.requests(blocks))),
            Target::unread("Match, the answers left unread", fleet.channel().await, fleet.requests(blocks)),
            Target::echo("echo, 32 in flight", echo.channel().await, fleet.token_bytes(blocks), 0),
            Target::echo(
                "echo, an answer as large as Match's",
                echo.channel().await,
                fleet.token_bytes(blocks),
                answer,
            ),
        ];
        let mut rows: Vec<Row> = targets.iter().map(|target| Row::new(target.name)).collect();
        let mut stream = Row::new("MatchStream, 32 in flight");
        let mut short = Row::new("MatchStream, brief");
        for _ in 0..ROUNDS {
            for (target, row) in targets.iter_mut().zip(&mut rows) {
                row.rate(target.flight(32, TURN).await);
            }
            stream.rate(load::stream(fleet.channel().await, &fleet.requests(blocks), 32, TURN).await);
            short.rate(load::stream(fleet.channel().await, &brief(fleet.requests(blocks)), 32, TURN).await);
        }
        rows.extend([stream, short]);
        table(&format!("{blocks} blocks, 64 workers, requests a second"), &rows);
    }
}
