//! An incomplete feed that becomes whole: by a rebuild, or by a clear.

use super::{NONE, REPLAY, Row, check};

#[test]
fn an_incomplete_feed_that_is_rebuilt() {
    check(&[
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
    ]);
}

#[test]
fn a_clear_that_heals() {
    check(&[
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
    ]);
}
