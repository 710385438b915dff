//! A first connection: what is known of an engine before its first message, and after it.

use super::{NONE, REPLAY, Row, check};

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
