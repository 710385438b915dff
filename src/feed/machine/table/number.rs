//! Numbers that no message can have.

use std::collections::VecDeque;

use super::{NONE, REPLAY, Row, check, input};
use crate::feed::machine::{Limits, Machine};

#[test]
fn the_number_of_an_end_marker() {
    check(&[Row {
        sentence: "the number of an end marker is no message's: what came under it is not known",
        replay: NONE,
        steps: &[
            "up -> connecting NoMessageYet",
            "live 0 -> apply 1:0, live Whole",
            "live max -> incomplete Unplaceable",
            "live 1 -> apply 1:1",
            "cleared 1:1 -> live Whole",
        ],
    }]);
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
            sentence: "leaves a feed without replay incomplete until the next number shows that it spent none",
            replay: NONE,
            steps: &[
                "up -> connecting NoMessageYet",
                "unnumbered -> incomplete Unplaceable",
                "live 0 -> apply 1:0, live Whole",
                "unnumbered -> incomplete Unplaceable",
                "live 1 -> apply 1:1, live Whole",
                "unnumbered -> incomplete Unplaceable",
                "live 3 -> apply 1:3, incomplete NoReplayEndpoint",
                "cleared 1:3 -> live Whole",
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
