//! The machine as a table: what happens, and what is done about it, one sentence a row.
//!
//! A row is a script of steps. Each names an input and, after the arrow, everything that comes out but timers.
//! `7` is message 7 of the engine's first life, `7'` of its second: another digest.

use std::collections::VecDeque;

use super::{Command, Digest, Failure, Input, Limits, Machine, Message, Past, Timer, Why};
use crate::feed::status::State;
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

#[test]
fn a_first_connection() {
    check(&[
        Row {
            sentence: "a live message 0 is applied at once, without waiting for the replay",
            replay: REPLAY,
            steps: &["up -> ask 0, replaying LateJoin", "live 0 -> stop, apply 1:0, live Whole", "live 1 -> apply 1:1"],
        },
        Row {
            sentence: "without a replay endpoint nothing is known until the first message",
            replay: NONE,
            steps: &["up -> connecting NoMessageYet", "live 0 -> apply 1:0, live Whole", "live 1 -> apply 1:1"],
        },
        Row {
            sentence: "a link that is silent is asked once more for what was published while its subscription was on its way",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "replay 0 -> apply 1:0",
                "replay end -> stop, live Whole",
                "fired look -> ask 0",
                "replay 0 ->",
                "replay 1 -> apply 1:1",
                "replay end -> stop",
                "fired look ->",
                "live 2 -> replaying Seam, ask 1",
                "replay 1 ->",
                "replay 2 -> apply 1:2",
                "replay end -> stop, live Whole",
                "down -> connecting Disconnected",
                "up -> ask 2, replaying Reconnected",
                "replay 2 ->",
                "replay end -> stop, live Whole",
                "fired look -> ask 2",
                "replay 2' -> replaying Restarted, begin 2 digest_differs, ask 0",
            ],
        },
        Row {
            sentence: "what is heard during that second look is joined to it",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "replay 0 -> apply 1:0",
                "replay end -> stop, live Whole",
                "fired look -> ask 0",
                "live 2 -> replaying Seam",
                "replay 0 ->",
                "replay 1 -> apply 1:1",
                "replay 2 -> apply 1:2",
                "replay end -> stop, live Whole",
            ],
        },
        Row {
            sentence: "a second look that is not answered takes nothing back",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "replay end -> stop, live NoHistory",
                "fired look -> ask 0",
                "replay timeout -> ask 0 after 1",
                "fired recovery -> stop",
                "live 0 -> live Whole, apply 1:0",
            ],
        },
        Row {
            sentence: "who has been heard is not looked at again",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "replay end -> stop, live NoHistory",
                "live 0 -> live Whole, apply 1:0",
                "fired look ->",
            ],
        },
        Row {
            sentence: "an engine that has published nothing is live with no history",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "replay end -> stop, live NoHistory",
                "live 0 -> live Whole, apply 1:0",
            ],
        },
        Row {
            sentence: "a late subscriber gets the first messages from the replay, and what came live meanwhile once",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 2 ->",
                "live 3 ->",
                "replay 0 -> apply 1:0",
                "replay 1 -> apply 1:1",
                "replay 2 -> apply 1:2",
                "replay end -> apply 1:3, stop, live Whole",
            ],
        },
        Row {
            sentence: "the live feed is joined to a replay only by a message that both carried",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "replay 0 -> apply 1:0",
                "replay end -> stop, live Whole",
                "live 1 -> replaying Seam, ask 0",
                "replay 0 ->",
                "replay 1 -> apply 1:1",
                "replay end -> stop, live Whole",
                "live 2 -> apply 1:2",
            ],
        },
        Row {
            sentence: "a replay that no longer reaches back to 0 leaves the feed incomplete",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 7 ->",
                "replay 5 -> apply 1:5",
                "replay 6 -> apply 1:6",
                "replay 7 -> apply 1:7",
                "replay end -> stop, incomplete ReplayTooYoung",
                "live 8 -> apply 1:8",
            ],
        },
        Row {
            sentence: "a first message above 0 that nobody can complete is incomplete until a clear",
            replay: NONE,
            steps: &[
                "up -> connecting NoMessageYet",
                "live 3 -> apply 1:3, incomplete NoReplayEndpoint",
                "live 4 -> apply 1:4",
                "cleared 1:4 -> live Whole",
                "live 5 -> apply 1:5",
            ],
        },
        Row {
            sentence: "a replay endpoint that never answers is given up, and the engine's first message is still its first",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "replay broken -> ask 0 after 1",
                "replay timeout -> ask 0 after 2",
                "replay broken -> ask 0 after 3",
                "replay broken -> stop, incomplete ReplayFailed",
                "live 0 -> apply 1:0, live Whole",
            ],
        },
    ]);
}

#[test]
fn a_gap() {
    check(&[
        Row {
            sentence: "a gap is filled from the last message we have, and what waited follows",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 3 -> replaying Gap, ask 0",
                "live 4 ->",
                "replay 0 ->",
                "replay 1 -> apply 1:1",
                "replay 2 -> apply 1:2",
                "replay 3 -> apply 1:3",
                "replay end -> apply 1:4, stop, live Whole",
                "live 5 -> apply 1:5",
            ],
        },
        Row {
            sentence: "a loss on our side is a gap, before any later message shows it",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "lost -> replaying Overflow, ask 0",
                "replay 0 ->",
                "replay 1 -> apply 1:1",
                "replay end -> stop, live Whole",
            ],
        },
        Row {
            sentence: "a restart hidden inside a gap is a new epoch",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 3' -> replaying Gap, ask 0",
                "replay 0' -> begin 2 digest_differs, ask 0, replaying Restarted",
                "replay 0' -> apply 2:0'",
                "replay 1' -> apply 2:1'",
                "replay 2' -> apply 2:2'",
                "replay 3' -> apply 2:3'",
                "replay end -> stop, live Whole",
            ],
        },
        Row {
            sentence: "a replay that holds nothing of ours, only later messages, proves nothing: the blocks are dropped",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 9 -> replaying Gap, ask 0",
                "replay 7 -> begin 2 unproven, apply 2:7",
                "replay 8 -> apply 2:8",
                "replay 9 -> apply 2:9",
                "replay end -> stop, incomplete ReplayTooYoung",
            ],
        },
        Row {
            sentence: "an end marker is not completeness: a hole is asked for again, from the message before it",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 4 -> replaying Gap, ask 0",
                "replay 0 ->",
                "replay 1 -> apply 1:1",
                "replay 3 ->",
                "replay end -> ask 1",
                "replay 1 ->",
                "replay 2 -> apply 1:2",
                "replay 3 -> apply 1:3",
                "replay 4 -> apply 1:4",
                "replay end -> stop, live Whole",
            ],
        },
        Row {
            sentence: "a hole that is there twice is a burned number: incomplete, and never asked for again",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 2 -> replaying Gap, ask 0",
                "replay 0 ->",
                "replay 2 ->",
                "replay end -> ask 0 after 1",
                "replay 0 ->",
                "replay 2 -> apply 1:2",
                "replay end -> stop, incomplete BurnedNumber",
                "live 3 -> apply 1:3",
            ],
        },
        Row {
            sentence: "a later gap of an incomplete feed is still filled",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "spoiled 1:0 -> incomplete Unreadable",
                "live 2 -> ask 0, replaying Gap",
                "replay 0 ->",
                "replay 1 -> apply 1:1",
                "replay 2 -> apply 1:2",
                "replay end -> stop, incomplete Unreadable",
            ],
        },
        Row {
            sentence: "a replay without what is missing ends after a few rounds, and what waited is applied",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 2 -> replaying Gap, ask 0",
                "replay 0 ->",
                "replay end -> ask 0 after 1",
                "replay 0 ->",
                "replay end -> ask 0 after 2",
                "replay 0 ->",
                "replay end -> ask 0 after 3",
                "replay 0 ->",
                "replay end -> apply 1:2, stop, incomplete ReplayShort",
            ],
        },
        Row {
            sentence: "a replay that has met the live feed needs no end marker",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 2 -> replaying Gap, ask 0",
                "replay 0 ->",
                "replay 1 -> apply 1:1",
                "replay 2 -> apply 1:2",
                "replay timeout -> stop, live Whole",
            ],
        },
        Row {
            sentence: "a replay that loops ends with its recovery's time",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 2 -> replaying Gap, ask 0",
                "replay 0 ->",
                "replay 0 ->",
                "replay 0 ->",
                "fired recovery -> apply 1:2, stop, incomplete ReplayFailed",
                "replay 0 ->",
            ],
        },
        Row {
            sentence: "without a replay endpoint a gap stays",
            replay: NONE,
            steps: &[
                "up -> connecting NoMessageYet",
                "live 0 -> apply 1:0, live Whole",
                "live 2 -> incomplete NoReplayEndpoint, apply 1:2",
                "lost ->",
            ],
        },
        Row {
            sentence: "the number of an end marker is no message's: what came under it is not known",
            replay: NONE,
            steps: &[
                "up -> connecting NoMessageYet",
                "live 0 -> apply 1:0, live Whole",
                "live max -> incomplete Unplaceable",
                "live 1 -> apply 1:1",
                "cleared 1:1 -> live Whole",
            ],
        },
        Row {
            sentence: "a message that comes twice is applied once",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 1 -> apply 1:1",
                "live 1 ->",
                "live 2 -> apply 1:2",
            ],
        },
        Row {
            sentence: "a burned number is no reason not to rebuild what a replay that failed after it left incomplete",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 2 -> replaying Gap, ask 0",
                "replay 0 ->",
                "replay 2 ->",
                "replay end -> ask 0 after 1",
                "replay 0 ->",
                "replay 2 -> apply 1:2",
                "live 5 ->",
                "fired recovery -> apply 1:5, stop, incomplete ReplayFailed",
                "fired rebuild -> ask 0, replaying Rebuilding",
                "replay 0 -> begin 2 rebuilt, apply 2:0",
                "replay 2 ->",
                "replay end -> ask 0",
                "replay 0 ->",
                "replay 2 -> apply 2:2",
                "replay 3 -> apply 2:3",
                "cleared 2:3 ->",
                "replay 4 -> apply 2:4",
                "replay 5 -> apply 2:5",
                "replay end -> stop, live Whole",
            ],
        },
        Row {
            sentence: "what a failed replay left incomplete is rebuilt from 0, as a new epoch",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 2 -> replaying Gap, ask 0",
                "fired recovery -> apply 1:2, stop, incomplete ReplayFailed",
                "fired rebuild -> ask 0, replaying Rebuilding",
                "replay 0 -> begin 2 rebuilt, apply 2:0",
                "replay 1 -> apply 2:1",
                "replay 2 -> apply 2:2",
                "replay end -> stop, live Whole",
            ],
        },
    ]);
}

/// Messages 5 to 7 of the engine's first life are the last of epoch 3.
fn restored(_: &Row) -> Machine<String> {
    let past = Past { epoch: 3, messages: (5..8).map(|n| (n, Digest(n))).collect() };
    let mut out = VecDeque::new();
    let machine = Machine::resume(past, LIMITS, &mut out);
    let expected = [Command::Arm(Timer::Grace, 0), Command::Report(State::Replaying, Why::Restored)];
    assert_eq!(out, expected, "not live, and not for ever");
    machine
}

#[test]
fn a_restart_of_our_own() {
    let rows = [
        Row {
            sentence: "the same engine's replay proves the epoch and brings what was missed, from the last message on",
            replay: REPLAY,
            steps: &[
                "up -> ask 7, replaying Reconnected",
                "live 9 ->",
                "replay 7 ->",
                "replay 8 -> apply 3:8",
                "replay 9 -> apply 3:9",
                "replay end -> stop, live Whole",
                "live 10 -> apply 3:10",
            ],
        },
        Row {
            sentence: "an engine that has published nothing since is live at once",
            replay: REPLAY,
            steps: &["up -> ask 7, replaying Reconnected", "replay 7 ->", "replay end -> stop, live Whole"],
        },
        Row {
            sentence: "another engine under the same number is a new epoch",
            replay: REPLAY,
            steps: &[
                "up -> ask 7, replaying Reconnected",
                "replay 7' -> begin 4 digest_differs, ask 0, replaying Restarted",
                "replay 0' -> apply 4:0'",
                "replay 1' -> apply 4:1'",
                "replay end -> stop, live Whole",
            ],
        },
        Row {
            sentence: "an engine that has not come as far is a new epoch",
            replay: REPLAY,
            steps: &[
                "up -> ask 7, replaying Reconnected",
                "replay end -> begin 4 replay_empty, ask 0, replaying Restarted",
                "replay end -> stop, live NoHistory",
            ],
        },
        Row {
            sentence: "a beginning heard live is a new epoch before any replay says so",
            replay: REPLAY,
            steps: &[
                "up -> ask 7, replaying Reconnected",
                "live 0' -> begin 4 sequence_lower, stop, apply 4:0', live Whole",
            ],
        },
        Row {
            sentence: "a replay that no longer reaches back proves nothing, and what was restored is dropped",
            replay: REPLAY,
            steps: &[
                "up -> ask 7, replaying Reconnected",
                "replay 9 -> begin 4 unproven, apply 4:9",
                "replay end -> stop, incomplete ReplayTooYoung",
            ],
        },
        Row {
            sentence: "an engine that never comes back is withdrawn after the grace",
            replay: REPLAY,
            steps: &["fired grace -> begin 4 grace_expired, gone GraceOver", "up -> ask 0, replaying LateJoin"],
        },
    ];
    check_from(&rows, restored);
    let late = [Row {
        sentence: "a feed that only knows which numbers were used begins with the next",
        replay: REPLAY,
        steps: &["up -> ask 0, replaying LateJoin", "live 0 -> stop, apply 5:0, live Whole"],
    }];
    check_from(&late, |row| Machine::begin_at(5, row.replay, LIMITS));
}

#[test]
fn what_is_handed_on_is_whole_or_nothing() {
    let mut machine = Machine::new(NONE, LIMITS);
    let mut out = VecDeque::new();
    let mut past = |steps: &[&str]| {
        steps.iter().for_each(|step| machine.handle(input(step), &mut out));
        machine.past().map(|past| (past.epoch, past.messages.iter().map(|(n, _)| *n).collect::<Vec<_>>()))
    };
    assert_eq!(past(&["up"]), None, "nothing was applied");
    assert_eq!(past(&["live 0", "live 1"]), Some((1, vec![0, 1])));
    assert_eq!(past(&["live 3"]), None, "a message is missing");
    assert_eq!(past(&["live 4", "cleared 1:4"]), Some((1, vec![0, 1, 3, 4])), "and no longer matters");
    assert_eq!(past(&["spoiled 1:4"]), None, "a message could not be read");
}

#[test]
fn a_restart() {
    check(&[
        Row {
            sentence: "a lower number is a new epoch, with a replay from 0",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 1 -> apply 1:1",
                "live 2 -> apply 1:2",
                "live 1' -> replaying Restarted, begin 2 sequence_lower, ask 0",
                "replay 0' -> apply 2:0'",
                "replay 1' -> apply 2:1'",
                "replay end -> stop, live Whole",
            ],
        },
        Row {
            sentence: "the same number with other bytes is a new epoch",
            replay: NONE,
            steps: &[
                "up -> connecting NoMessageYet",
                "live 0 -> apply 1:0, live Whole",
                "live 0' -> begin 2 sequence_lower, apply 2:0'",
                "live 1' -> apply 2:1'",
            ],
        },
        Row {
            sentence: "a lower number without a replay endpoint is a new epoch, incomplete unless it is 0",
            replay: NONE,
            steps: &[
                "up -> connecting NoMessageYet",
                "live 0 -> apply 1:0, live Whole",
                "live 1 -> apply 1:1",
                "live 2 -> apply 1:2",
                "live 1' -> incomplete NoReplayEndpoint, begin 2 sequence_lower, apply 2:1'",
                "live 2' -> apply 2:2'",
            ],
        },
        Row {
            sentence: "a publisher that always runs backwards is asked ever more slowly",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 9 -> replaying Gap, ask 0",
                "live 8 -> begin 2 sequence_lower, ask 0 after 1, replaying Restarted",
                "live 7 -> ask 0 after 2",
                "live 6 -> ask 0 after 3",
                "live 5 -> apply 2:5, stop, incomplete ReplayShort",
                "live 4 -> begin 3 sequence_lower, ask 0 after 3, replaying Restarted",
            ],
        },
        Row {
            sentence: "a clear of an epoch that is over changes nothing",
            replay: NONE,
            steps: &[
                "up -> connecting NoMessageYet",
                "live 0 -> apply 1:0, live Whole",
                "live 2 -> incomplete NoReplayEndpoint, apply 1:2",
                "live 1' -> begin 2 sequence_lower, apply 2:1'",
                "cleared 1:2 ->",
                "cleared 2:1 -> live Whole",
            ],
        },
    ]);
}

#[test]
fn a_link_that_breaks() {
    check(&[
        Row {
            sentence: "a broken link ends live at once, and the same epoch goes on once it is proven",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 1 -> apply 1:1",
                "down -> connecting Disconnected",
                "up -> ask 1, replaying Reconnected",
                "replay 1 ->",
                "replay 2 -> apply 1:2",
                "replay end -> stop, live Whole",
            ],
        },
        Row {
            sentence: "after a restart the replay answers with other bytes",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "down -> connecting Disconnected",
                "up -> ask 0, replaying Reconnected",
                "replay 0' -> begin 2 digest_differs, ask 0, replaying Restarted",
                "replay 0' -> apply 2:0'",
                "replay end -> stop, live Whole",
            ],
        },
        Row {
            sentence: "after a restart the replay has not come as far as we had: an empty replay is a new epoch",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 1 -> apply 1:1",
                "down -> connecting Disconnected",
                "up -> ask 1, replaying Reconnected",
                "replay end -> begin 2 replay_empty, ask 0, replaying Restarted",
                "replay end -> stop, live NoHistory",
            ],
        },
        Row {
            sentence: "a first message that comes live after a restart begins the new epoch before any replay",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 1 -> apply 1:1",
                "down -> connecting Disconnected",
                "up -> ask 1, replaying Reconnected",
                "live 0' -> begin 2 sequence_lower, stop, apply 2:0', live Whole",
            ],
        },
        Row {
            sentence: "without a replay endpoint a reconnection is not proven until a clear",
            replay: NONE,
            steps: &[
                "up -> connecting NoMessageYet",
                "live 0 -> apply 1:0, live Whole",
                "down -> connecting Disconnected",
                "up -> incomplete NoProofOfEpoch",
                "live 1 -> apply 1:1",
                "cleared 1:1 -> live Whole",
            ],
        },
        Row {
            sentence: "a source that names its lives proves a reconnection itself, and what it missed meanwhile is missing",
            replay: NONE,
            steps: &[
                "up -> connecting NoMessageYet",
                "live 0 -> apply 1:0, live Whole",
                "down -> connecting Disconnected",
                "up -> incomplete NoProofOfEpoch",
                "same life -> live Whole",
                "live 1 -> apply 1:1",
                "down -> connecting Disconnected",
                "up -> incomplete NoProofOfEpoch",
                "same life -> live Whole",
                "live 3 -> incomplete NoReplayEndpoint, apply 1:3",
            ],
        },
        Row {
            sentence: "a source that names its lives begins another one, from its first message or with a hole",
            replay: NONE,
            steps: &[
                "up -> connecting NoMessageYet",
                "live 0 -> apply 1:0, live Whole",
                "other life -> connecting NoMessageYet, begin 2 publisher_changed",
                "live 0 -> apply 2:0, live Whole",
                "other life -> connecting NoMessageYet, begin 3 publisher_changed",
                "live 1 -> apply 3:1, incomplete NoReplayEndpoint",
            ],
        },
        Row {
            sentence: "where there is a replay, it proves: a source that names its lives only says when to ask",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "same life ->",
                "other life -> replaying Restarted, begin 2 publisher_changed, ask 0",
                "replay 0' -> apply 2:0'",
                "replay end -> stop, live Whole",
            ],
        },
        Row {
            sentence: "a replay that fails after a reconnection leaves the epoch unproven, and is tried again later",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "down -> connecting Disconnected",
                "up -> ask 0, replaying Reconnected",
                "live 1 ->",
                "fired recovery -> apply 1:1, stop, incomplete ReplayFailed",
                "live 2 -> apply 1:2",
                "fired rebuild -> ask 0, replaying Rebuilding",
                "replay 0 -> begin 2 rebuilt, apply 2:0",
                "replay 1 -> apply 2:1",
                "replay 2 -> apply 2:2",
                "replay end -> stop, live Whole",
            ],
        },
        Row {
            sentence: "the replay of a broken link is not listened to",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 5 ->",
                "down -> stop, connecting Disconnected",
                "replay 0 ->",
                "replay end ->",
            ],
        },
        Row {
            sentence: "an engine that stays away is withdrawn after the grace, and comes back as a new epoch",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "down -> connecting Disconnected",
                "fired grace -> begin 2 grace_expired, gone GraceOver",
                "up -> ask 0, replaying LateJoin",
                "replay 0 -> apply 2:0",
                "replay end -> stop, live Whole",
            ],
        },
        Row {
            sentence: "a grace that is over after the engine came back withdraws nothing",
            replay: NONE,
            steps: &[
                "up -> connecting NoMessageYet",
                "live 0 -> apply 1:0, live Whole",
                "down -> connecting Disconnected",
                "up -> incomplete NoProofOfEpoch",
                "fired grace ->",
            ],
        },
        Row {
            sentence: "a clear heals though a dead engine's link was heard beyond it while the next one's replay had holes",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 8 -> replaying Gap, ask 0",
                "fired recovery -> apply 1:8, stop, incomplete ReplayFailed",
                "fired rebuild -> ask 0, replaying Rebuilding",
                "replay 0' -> begin 2 rebuilt, apply 2:0'",
                "replay 2' ->",
                "replay end -> ask 0",
                "replay 0' ->",
                "replay 2' -> apply 2:2'",
                "replay end -> ask 2",
                "replay 2' ->",
                "replay end -> ask 2 after 1",
                "replay 2' ->",
                "replay end -> ask 2 after 2",
                "replay 2' ->",
                "replay end -> ask 2 after 3",
                "replay 2' ->",
                "replay end -> stop, incomplete ReplayShort",
                "down -> connecting Disconnected",
                "up -> ask 2, replaying Reconnected",
                "replay 2' ->",
                "replay end -> stop, incomplete ReplayShort",
                "live 3' -> ask 2, replaying Seam",
                "replay 2' ->",
                "replay 3' -> apply 2:3'",
                "replay end -> stop, incomplete ReplayShort",
                "live 4' -> apply 2:4'",
                "cleared 2:4 -> live Whole",
            ],
        },
        Row {
            sentence: "so does a clear that a replay brings, at the end of that, and before the live feed says anything",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 8 -> replaying Gap, ask 0",
                "fired recovery -> apply 1:8, stop, incomplete ReplayFailed",
                "fired rebuild -> ask 0, replaying Rebuilding",
                "replay 0' -> begin 2 rebuilt, apply 2:0'",
                "replay 2' ->",
                "replay end -> ask 0",
                "replay 0' ->",
                "replay 2' -> apply 2:2'",
                "replay end -> ask 2",
                "replay 2' ->",
                "replay end -> ask 2 after 1",
                "replay 2' ->",
                "replay end -> ask 2 after 2",
                "replay 2' ->",
                "replay end -> ask 2 after 3",
                "replay 2' ->",
                "replay end -> stop, incomplete ReplayShort",
                "down -> connecting Disconnected",
                "up -> ask 2, replaying Reconnected",
                "replay 2' ->",
                "replay 3' -> apply 2:3'",
                "cleared 2:3 ->",
                "replay 4' -> apply 2:4'",
                "replay end -> stop, live Whole",
            ],
        },
        Row {
            sentence: "a clear heals nothing before a message that was heard on a link that still stands, and never came",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 8 -> replaying Gap, ask 0",
                "fired recovery -> apply 1:8, stop, incomplete ReplayFailed",
                "fired rebuild -> ask 0, replaying Rebuilding",
                "replay 0' -> begin 2 rebuilt, apply 2:0'",
                "replay 2' ->",
                "replay end -> ask 0",
                "replay 0' ->",
                "replay 2' -> apply 2:2'",
                "replay end -> ask 2",
                "replay 2' ->",
                "replay end -> ask 2 after 1",
                "replay 2' ->",
                "replay end -> ask 2 after 2",
                "replay 2' ->",
                "replay end -> ask 2 after 3",
                "replay 2' ->",
                "replay end -> stop, incomplete ReplayShort",
                "live 9 -> ask 2, replaying Gap",
                "replay 2' ->",
                "replay 3' -> apply 2:3'",
                "cleared 2:3 ->",
                "replay end -> ask 3",
                "replay 3' ->",
                "replay end -> ask 3 after 1",
                "replay 3' ->",
                "replay end -> ask 3 after 2",
                "replay 3' ->",
                "replay end -> ask 3 after 3",
                "replay 3' ->",
                "replay end -> apply 2:9, stop, incomplete ReplayShort",
            ],
        },
        Row {
            sentence: "a message that could not be read leaves the feed incomplete until a later clear",
            replay: NONE,
            steps: &[
                "up -> connecting NoMessageYet",
                "live 0 -> apply 1:0, live Whole",
                "spoiled 1:0 -> incomplete Unreadable",
                "live 1 -> apply 1:1",
                "cleared 1:1 -> live Whole",
            ],
        },
    ]);
}

#[test]
fn what_waits_is_bounded_and_the_replay_brings_it_again() {
    let mut machine = Machine::new(REPLAY, Limits { messages: 2, bytes: 1 << 20 });
    let mut out = VecDeque::new();
    for step in ["up", "live 1", "live 2", "live 3", "live 4", "replay 0", "replay 1", "replay 2", "replay end"] {
        machine.handle(input(step), &mut out);
    }
    assert_eq!(machine.counters().overflowed, 2);
    out.clear();
    for step in ["replay 2", "replay 3", "replay end"] {
        machine.handle(input(step), &mut out);
    }
    let done: Vec<_> = out.drain(..).filter_map(words).collect();
    assert_eq!(done, ["apply 1:3", "apply 1:4", "stop", "live Whole"]);
}

#[test]
fn counters_tell_what_happened() {
    let mut machine = Machine::new(NONE, Limits::default());
    let mut out = VecDeque::new();
    for step in ["up", "live 2", "live 2", "live 5", "live max", "live 0'", "lost", "live 2'"] {
        machine.handle(input(step), &mut out);
    }
    let counters = machine.counters();
    assert_eq!((counters.gaps, counters.missed, counters.duplicates, counters.reserved), (4, 5, 1, 1));
    assert_eq!(counters.resets, [1, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_number_that_no_engine_reaches() {
    check(&[
        Row {
            sentence: "is not believed where the replay knows nothing of it, and the next message joins again",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 9223372036854775808 -> replaying Implausible, ask 0",
                "replay 0 ->",
                "replay end -> stop, live Whole",
                "live 1 -> replaying Seam, ask 0",
                "replay 0 ->",
                "replay 1 -> apply 1:1",
                "replay end -> stop, live Whole",
            ],
        },
        Row {
            sentence: "may have been a message that the replay has under its proper number",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 18446744073709551614 -> replaying Implausible, ask 0",
                "replay 0 ->",
                "replay 1 -> apply 1:1",
                "replay end -> stop, live Whole",
            ],
        },
        Row {
            sentence: "that the replay tells too leaves the feed incomplete until a clear, and what fits is applied",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 9223372036854775808 -> replaying Implausible, ask 0",
                "replay 0 ->",
                "replay 9223372036854775808 ->",
                "replay 1 -> apply 1:1",
                "replay end -> stop, incomplete Unplaceable",
                "live 1 ->",
                "live 2 -> apply 1:2",
                "cleared 1:2 -> live Whole",
            ],
        },
        Row {
            sentence: "that every replay tells stands before what comes after it there: a clear behind that heals for good",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 9223372036854775808 -> replaying Implausible, ask 0",
                "replay 0 ->",
                "replay 9223372036854775808 ->",
                "replay 1 -> apply 1:1",
                "replay end -> stop, incomplete Unplaceable",
                "live 1 ->",
                "live 2 -> apply 1:2",
                "cleared 1:2 -> live Whole",
                "down -> connecting Disconnected",
                "up -> ask 2, replaying Reconnected",
                "replay 9223372036854775808 ->",
                "replay 2 ->",
                "replay end -> stop, live Whole",
                "down -> connecting Disconnected",
                "up -> ask 2, replaying Reconnected",
                "replay 2 ->",
                "replay 9223372036854775808 ->",
                "replay end -> stop, incomplete Unplaceable",
            ],
        },
        Row {
            sentence: "leaves a feed without replay incomplete until a clear, and the next message is no restart",
            replay: NONE,
            steps: &[
                "up -> connecting NoMessageYet",
                "live 0 -> apply 1:0, live Whole",
                "live 9223372036854775808 -> incomplete Unplaceable",
                "live 1 -> apply 1:1",
                "live 2 -> apply 1:2",
                "cleared 1:2 -> live Whole",
            ],
        },
        Row {
            sentence: "is no beginning either",
            replay: NONE,
            steps: &[
                "up -> connecting NoMessageYet",
                "live 9223372036854775808 -> incomplete Unplaceable",
                "live 7 -> apply 1:7, incomplete NoReplayEndpoint",
                "live 8 -> apply 1:8",
            ],
        },
        Row {
            sentence: "again and again is asked about ever more slowly",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "live 9223372036854775808 -> replaying Implausible, ask 0",
                "live 9223372036854775809 ->",
                "replay 0 ->",
                "replay end -> ask 0 after 1",
                "replay 0 ->",
                "replay end -> stop, live Whole",
                "live 9223372036854775810 -> replaying Implausible, ask 0 after 2",
            ],
        },
    ]);
}

#[test]
fn a_loss_while_a_replay_runs() {
    check(&[
        Row {
            sentence: "is asked about once more, since the replay may have been served before what was lost was published",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 1 ->",
                "lost ->",
                "replay 0 -> apply 1:0",
                "replay 1 -> apply 1:1",
                "replay end -> ask 1",
                "replay 1 ->",
                "replay 2 -> apply 1:2",
                "replay end -> stop, live Whole",
            ],
        },
        Row {
            sentence: "leaves the feed incomplete where no replay ends without another one",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "replay 0 -> apply 1:0",
                "lost ->",
                "replay end -> ask 0",
                "replay 0 ->",
                "lost ->",
                "replay end -> ask 0 after 1",
                "replay 0 ->",
                "lost ->",
                "replay end -> ask 0 after 2",
                "replay 0 ->",
                "lost ->",
                "replay end -> ask 0 after 3",
                "replay 0 ->",
                "lost ->",
                "replay end -> stop, incomplete ReplayShort",
                "cleared 1:0 ->",
                "live 1 -> apply 1:1",
                "cleared 1:1 -> live Whole",
            ],
        },
        Row {
            sentence: "an old server's lost end marker does not make up for it",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 1 ->",
                "replay 0 -> apply 1:0",
                "replay 1 -> apply 1:1",
                "lost ->",
                "replay timeout -> ask 1",
                "replay 1 ->",
                "replay end -> stop, live Whole",
            ],
        },
    ]);
}

#[test]
fn a_message_whose_number_cannot_be_read() {
    check(&[
        Row {
            sentence: "is asked about, and the replay has it under its number",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "unnumbered -> replaying Unnumbered, ask 0",
                "replay 0 ->",
                "replay 1 -> apply 1:1",
                "replay end -> stop, live Whole",
            ],
        },
        Row {
            sentence: "is none of the engine's where its replay knows nothing of it",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "live 0 -> stop, apply 1:0, live Whole",
                "unnumbered -> replaying Unnumbered, ask 0",
                "replay 0 ->",
                "replay end -> stop, live Whole",
            ],
        },
        Row {
            sentence: "says that something was published, whatever the replay says",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "replay end -> stop, live NoHistory",
                "unnumbered -> replaying Unnumbered, ask 0",
                "replay end -> stop, incomplete Unplaceable",
                "live 0 -> apply 1:0, live Whole",
            ],
        },
        Row {
            sentence: "leaves a feed without replay incomplete until a clear",
            replay: NONE,
            steps: &[
                "up -> connecting NoMessageYet",
                "live 0 -> apply 1:0, live Whole",
                "unnumbered -> incomplete Unplaceable",
                "live 1 -> apply 1:1",
                "live 2 -> apply 1:2",
                "cleared 1:2 -> live Whole",
            ],
        },
    ]);
}

#[test]
fn a_reply_that_cannot_be_read() {
    check(&[
        Row {
            sentence: "leaves the replay without what it held, and it is asked once more",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "replay 0 -> apply 1:0",
                "replay unread ->",
                "replay end -> ask 0",
                "replay 0 ->",
                "replay 1 -> apply 1:1",
                "replay end -> stop, live Whole",
            ],
        },
        Row {
            sentence: "again and again leaves the feed incomplete",
            replay: REPLAY,
            steps: &[
                "up -> ask 0, replaying LateJoin",
                "replay 0 -> apply 1:0",
                "replay unread ->",
                "replay end -> ask 0",
                "replay 0 ->",
                "replay unread ->",
                "replay end -> ask 0 after 1",
                "replay 0 ->",
                "replay unread ->",
                "replay end -> ask 0 after 2",
                "replay 0 ->",
                "replay unread ->",
                "replay end -> ask 0 after 3",
                "replay 0 ->",
                "replay unread ->",
                "replay end -> stop, incomplete ReplayShort",
            ],
        },
    ]);
}

#[test]
fn nonsense_numbers_are_counted_and_never_as_missing_messages() {
    for replay in [REPLAY, NONE] {
        let mut machine = Machine::new(replay, Limits::default());
        let mut out = VecDeque::new();
        let last = (u64::MAX - 1).to_string();
        let live = format!("live {last}");
        let replayed = format!("replay {last}");
        let steps =
            ["up", &live, &replayed, "replay end", "lost", &live, "lost", "fired recovery", "live 0", "live max"];
        for step in steps {
            machine.handle(input(step), &mut out);
        }
        let counters = machine.counters();
        assert_eq!((counters.missed, counters.reserved), (0, 1));
        assert!(counters.implausible >= 2, "{counters:?}");
    }
}
