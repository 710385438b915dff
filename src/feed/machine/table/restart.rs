//! An engine that begins anew.

use super::{NONE, REPLAY, Row, check};

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
