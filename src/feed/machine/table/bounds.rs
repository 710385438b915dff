//! What waits during a recovery, and what is counted of it.

use std::collections::VecDeque;

use super::{NONE, REPLAY, input, words};
use crate::feed::machine::{Limits, Machine};

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
