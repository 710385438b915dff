//! A restart of our own: what a snapshot hands on, and how its epoch is proven.

use std::collections::VecDeque;

use super::{LIMITS, NONE, REPLAY, Row, check_from, input};
use crate::feed::machine::{Command, Digest, Machine, Past, Timer, Why};
use crate::feed::status::State;

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
