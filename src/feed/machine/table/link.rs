//! A link that breaks: whose life is it that comes back?

use super::{NONE, REPLAY, Row, check};

#[test]
fn a_link_that_breaks_with_a_replay_to_prove_the_epoch() {
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
    ]);
}

#[test]
fn a_link_that_breaks_without_a_replay() {
    check(&[
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
    ]);
}

#[test]
fn a_source_that_names_its_lives() {
    check(&[
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
    ]);
}

#[test]
fn an_engine_that_stays_away() {
    check(&[
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
    ]);
}
