//! Messages that are missing, and whether a replay brings them.

use super::{NONE, REPLAY, Row, check};

#[test]
fn a_gap_that_is_filled() {
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
    ]);
}

#[test]
fn a_gap_that_hides_another_life() {
    check(&[
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
    ]);
}

#[test]
fn a_gap_that_the_replay_does_not_fill() {
    check(&[
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
