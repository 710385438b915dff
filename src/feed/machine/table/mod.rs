//! The machine as a table: what happens, and what is done about it, one sentence a row.
//!
//! A row is a script of steps. Each names an input and, after the arrow, everything that comes out but timers.
//! `7` is message 7 of the engine's first life, `7'` of its second: another digest.

mod bounds;
mod connection;
mod gap;
mod healing;
mod link;
mod number;
mod restart;
mod resumed;

use std::collections::VecDeque;

use super::{Command, Digest, Failure, Input, Limits, Machine, Message, Timer};
use crate::worker::Stamp;

const REPLAY: bool = true;
const NONE: bool = false;

struct Row {
    sentence: &'static str,
    replay: bool,
    steps: &'static [&'static str],
}

fn message(word: &str) -> Message<String> {
    let life = word.bytes().filter(|byte| *byte == b'\'').count() as u64;
    let sequence = match word.trim_end_matches('\'') {
        "max" => u64::MAX,
        number => number.parse().expect("a number"),
    };
    Message { sequence, digest: Digest(life << 32 | sequence), size: 1, payload: word.to_owned() }
}

fn stamp(word: &str) -> Stamp {
    let (epoch, sequence) = word.split_once(':').expect("epoch:sequence");
    Stamp { epoch: epoch.parse().expect("an epoch"), sequence: Some(sequence.parse().expect("a sequence")) }
}

fn input(words: &str) -> Input<String> {
    match words.split_once(' ').unwrap_or((words, "")) {
        ("up", _) => Input::Connected,
        ("down", _) => Input::Disconnected,
        ("lost", _) => Input::Lost,
        ("unnumbered", _) => Input::Unnumbered,
        ("other", "life") => Input::OtherLife,
        ("same", "life") => Input::SameLife,
        ("live", word) => Input::Live(message(word)),
        ("replay", "end") => Input::ReplayEnded,
        ("replay", "unread") => Input::ReplyUnread,
        ("replay", "timeout") => Input::ReplayFailed(Failure::Timeout),
        ("replay", "broken") => Input::ReplayFailed(Failure::Broken),
        ("replay", word) => Input::Replayed(message(word)),
        ("fired", "grace") => Input::Fired(Timer::Grace),
        ("fired", "recovery") => Input::Fired(Timer::Recovery),
        ("fired", "rebuild") => Input::Fired(Timer::Rebuild),
        ("fired", "look") => Input::Fired(Timer::SecondLook),
        ("cleared", word) => Input::Cleared(stamp(word)),
        ("spoiled", word) => Input::Spoiled(stamp(word)),
        _ => panic!("no such input: {words}"),
    }
}

fn words(command: Command<String>) -> Option<String> {
    Some(match command {
        Command::Apply { stamp, payload } => {
            assert_eq!(stamp.sequence, Some(message(&payload).sequence));
            format!("apply {}:{payload}", stamp.epoch)
        }
        Command::Begin { epoch, cause } => format!("begin {epoch} {}", cause.name()),
        Command::Ask { from, attempt: 0 } => format!("ask {from}"),
        Command::Ask { from, attempt } => format!("ask {from} after {attempt}"),
        Command::StopAsking => "stop".to_owned(),
        Command::Report(state, why) => format!("{} {why:?}", state.name()),
        Command::Arm(..) | Command::Disarm(_) => return None,
    })
}

fn run(row: &Row, machine: &mut Machine<String>) -> Vec<String> {
    let mut out = VecDeque::new();
    row.steps
        .iter()
        .map(|step| {
            let (left, _) = step.split_once("->").unwrap_or((step, ""));
            machine.handle(input(left.trim()), &mut out);
            let done: Vec<_> = out.drain(..).filter_map(words).collect();
            format!("{left}-> {}", done.join(", ")).trim_end().to_owned()
        })
        .collect()
}

const LIMITS: Limits = Limits { messages: 8, bytes: 1 << 20 };

fn check(rows: &[Row]) {
    check_from(rows, |row| Machine::new(row.replay, LIMITS));
}

fn check_from(rows: &[Row], machine: impl Fn(&Row) -> Machine<String>) {
    let mut wrong = String::new();
    for row in rows {
        let mut machine = machine(row);
        let got = run(row, &mut machine);
        if got != row.steps {
            wrong += &format!("\n{}:\n", row.sentence);
            for (got, expected) in got.iter().zip(row.steps) {
                let mark = if got == expected { ' ' } else { '!' };
                wrong += &format!("{mark} \"{got}\",\n");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
