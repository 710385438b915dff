//! The frames around a payload: live messages, replay requests, replay replies.

use bytes::Bytes;

use super::error::MessageError;

/// The sequence number that marks the end of a replay, and so numbers no batch.
pub const END_OF_REPLAY: u64 = u64::MAX;

/// A live message. Generic over the frame's owner, so that a shared payload may be kept without a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveFrame<'a, B> {
    /// Whatever the publisher calls its topic; not always UTF-8.
    pub topic: &'a B,
    /// The batch's number in its publisher's life, from 0.
    pub sequence: u64,
    /// The batch, not yet decoded.
    pub payload: &'a B,
}

/// One reply of a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayFrame<'a, B> {
    /// A batch that is still in the publisher's buffer.
    Batch {
        /// Its number.
        sequence: u64,
        /// The batch, not yet decoded.
        payload: &'a B,
    },
    /// No more replies follow. It does not mean that none was lost.
    End,
}

/// Splits a live message: `[topic][sequence: 8 bytes big-endian][payload]`.
///
/// # Errors
/// [`MessageError::FrameCount`] for any other number of frames, [`MessageError::SequenceLength`] for a sequence
/// of another length, [`MessageError::ReservedSequence`] for [`END_OF_REPLAY`], which no batch has.
pub fn live<B: AsRef<[u8]>>(frames: &[B]) -> Result<LiveFrame<'_, B>, MessageError> {
    let [topic, sequence, payload] = frames else { return Err(MessageError::FrameCount { got: frames.len() }) };
    match number(sequence.as_ref())? {
        END_OF_REPLAY => Err(MessageError::ReservedSequence),
        sequence => Ok(LiveFrame { topic, sequence, payload }),
    }
}

/// Splits a replay reply by its last two frames.
///
/// A DEALER sees `["", sequence, payload]` (vLLM before 0.26, SGLang before 0.5.22) or
/// `["", topic, sequence, payload]` (later, and TensorRT-LLM); without the delimiter both are one frame shorter.
///
/// # Errors
/// [`MessageError::FrameCount`] for fewer than two frames or more than four, [`MessageError::SequenceLength`] for a
/// sequence that is not eight bytes, [`MessageError::ReservedSequence`] for an end marker that carries a payload.
pub fn replay<B: AsRef<[u8]>>(frames: &[B]) -> Result<ReplayFrame<'_, B>, MessageError> {
    let [.., sequence, payload] = frames else { return Err(MessageError::FrameCount { got: frames.len() }) };
    if frames.len() > 4 {
        return Err(MessageError::FrameCount { got: frames.len() });
    }
    match (number(sequence.as_ref())?, payload.as_ref().is_empty()) {
        (END_OF_REPLAY, true) => Ok(ReplayFrame::End),
        (END_OF_REPLAY, false) => Err(MessageError::ReservedSequence),
        (sequence, _) => Ok(ReplayFrame::Batch { sequence, payload }),
    }
}

/// What a DEALER sends to ask for every batch from `start` on that the publisher still has.
///
/// The empty delimiter is needed: without it, or with more frames, publishers log an error and answer nothing.
pub fn replay_request(start: u64) -> [Bytes; 2] {
    [Bytes::new(), Bytes::copy_from_slice(&start.to_be_bytes())]
}

fn number(frame: &[u8]) -> Result<u64, MessageError> {
    let bytes = frame.try_into().map_err(|_| MessageError::SequenceLength { got: frame.len() })?;
    Ok(u64::from_be_bytes(bytes))
}
