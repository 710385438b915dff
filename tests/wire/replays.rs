//! Replay replies of every release, in both layouts.

use kvtap::wire::frames::{self, LiveFrame, ReplayFrame};
use kvtap::wire::{Batch, Dialect, MessageError, decode};

use crate::support::{self, lines, text};

const REPLAYS: [&str; 13] = [
    "replay-sglang-0.4.10.post2",
    "replay-sglang-0.5.10.post1",
    "replay-sglang-0.5.18",
    "replay-sglang-0.5.23",
    "replay-sglang-0.5.6.post2",
    "replay-trtllm-native-main",
    "replay-vllm-0.10.2",
    "replay-vllm-0.14.1",
    "replay-vllm-0.19.1",
    "replay-vllm-0.22.1",
    "replay-vllm-0.25.1",
    "replay-vllm-0.33.0",
    "replay-vllm-0.9.0",
];

/// The first number that a request asks for. Servers read any length.
fn start(request: &[Vec<u8>]) -> u64 {
    request.last().unwrap().iter().fold(0, |n, byte| (n << 8) | u64::from(*byte))
}

#[test]
fn replies_carry_the_live_batches_in_order_and_end_once() {
    let mut batch = Batch::default();
    for file in REPLAYS {
        let mut lines = lines(file).into_iter();
        let live_line = lines.next().unwrap();
        let live: Vec<_> = live_line["live_frames_hex"].as_array().unwrap().iter().map(support::frames).collect();
        for line in lines {
            let name = format!("{file} {}", text(&line, "name"));
            let request = support::frames(&line["request_frames_hex"]);
            let replies: Vec<_> = line["response_frames_hex"].as_array().unwrap().iter().map(support::frames).collect();
            let parsed: Vec<_> = replies.iter().map(|reply| frames::replay(reply).unwrap()).collect();
            if replies.is_empty() {
                // What servers do not answer: a DEALER without its delimiter, or with a frame too many.
                assert_ne!(request, frames::replay_request(start(&request)), "{name}");
                continue;
            }
            // A buffer of six out of eight.
            let first = start(&request).max(2);
            for (index, frame) in parsed.iter().enumerate() {
                let ReplayFrame::Batch { sequence, payload } = frame else { break };
                assert_eq!(*sequence, first + index as u64, "{name}");
                let LiveFrame { payload: live, .. } = frames::live(&live[*sequence as usize]).unwrap();
                assert_eq!(*payload, live, "{name}: the same bytes as live");
                decode(Dialect::Auto, payload, &mut batch).unwrap();
                assert_eq!(batch.events.len(), 1, "{name}");
            }
            let batches = parsed.iter().filter(|frame| matches!(frame, ReplayFrame::Batch { .. })).count();
            if line["client"] == "REQ" {
                assert_eq!((parsed.len(), batches), (1, 1), "{name}: a REQ reads one reply");
                continue;
            }
            assert_eq!(batches as u64, 8_u64.saturating_sub(first), "{name}");
            assert_eq!(parsed.len(), batches + 1, "{name}");
            assert_eq!(parsed.last(), Some(&ReplayFrame::End), "{name}");
        }
    }
}

#[test]
fn a_request_is_what_servers_answer() {
    for file in REPLAYS {
        for line in lines(file).iter().filter(|line| line["name"] == "replay_from_5") {
            assert_eq!(frames::replay_request(5).as_slice(), support::frames(&line["request_frames_hex"]));
        }
    }
}

#[test]
fn replies_of_a_wrong_shape_are_refused() {
    let eight = [0xff; 8];
    let refused = |frames: &[&[u8]]| frames::replay(frames).unwrap_err();
    assert_eq!(refused(&[]), MessageError::FrameCount { got: 0 });
    assert_eq!(refused(&[b""]), MessageError::FrameCount { got: 1 });
    assert_eq!(refused(&[b"", b"", b"", &eight, b""]), MessageError::FrameCount { got: 5 });
    assert_eq!(refused(&[b"", &eight[..4], b""]), MessageError::SequenceLength { got: 4 });
    assert_eq!(refused(&[b"", &eight, b"x"]), MessageError::ReservedSequence);
}
