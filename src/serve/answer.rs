//! Answers of `Match`, `MatchStream` and `MatchBatch`, written to the wire from what was found.
//!
//! As messages they would cost an allocation for every name of every rank: of 64 workers, more than hashing and matching
//! 500 blocks. What is written is byte for byte what [`match_response`](super::response::match_response) encodes to.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::time::Instant;

use bytes::BufMut;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic::{Status, codec};

use super::error::QueryError;
use super::matching::{Answer, RankAnswer, Who};
use super::query::failure;
use super::response::{match_response, nobody};
use crate::admin::report::{TierBlocks, millis};
use crate::block::Grid;
use crate::proto::codec::Bounded;
use crate::proto::v1;

/// `MatchResponse`.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) model: String,
    /// Without what a score does not need.
    pub(super) brief: bool,
    pub(super) answer: Answer,
}

/// `MatchStreamResponse`.
#[derive(Debug)]
pub(super) struct StreamAnswered {
    pub(super) id: u64,
    pub(super) result: Result<Answered, v1::MatchFailure>,
}

/// `MatchBatchResponse`: each result is written as it comes, since answers take three times as much as what is written.
#[derive(Debug, Default)]
pub(super) struct BatchAnswered(Vec<u8>);

/// A message that knows how it is written.
pub(super) trait Written {
    /// Appends it.
    fn write(&self, out: &mut Vec<u8>);
}

/// Reads requests as everywhere, and writes answers.
#[derive(Debug)]
pub(super) struct AnswerCodec<A, R>(PhantomData<(A, R)>);

/// Writes answers.
#[derive(Debug)]
pub(super) struct AnswerEncoder<A>(PhantomData<A>);

thread_local! {
    /// Where answers are put together: a length stands before what it is of.
    static SCRATCH: RefCell<[Vec<u8>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// More is not kept for the next answer, in bytes.
const KEPT: usize = 64 << 10;

// === impl AnswerCodec ===

impl<A, R> Default for AnswerCodec<A, R> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<A: Written + Send + 'static, R: Message + Default + Send + 'static> Codec for AnswerCodec<A, R> {
    type Encode = A;
    type Decode = R;
    type Encoder = AnswerEncoder<A>;
    type Decoder = Bounded<R>;

    fn encoder(&mut self) -> Self::Encoder {
        AnswerEncoder(PhantomData)
    }

    fn decoder(&mut self) -> Self::Decoder {
        Bounded::default()
    }
}

impl<A: Written> Encoder for AnswerEncoder<A> {
    type Item = A;
    type Error = Status;

    fn encode(&mut self, answer: A, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        let mut written = scratch(0);
        answer.write(&mut written);
        out.put_slice(&written);
        keep(0, written);
        Ok(())
    }

    fn buffer_settings(&self) -> codec::BufferSettings {
        codec::BufferSettings::default()
    }
}

fn scratch(place: usize) -> Vec<u8> {
    SCRATCH.with_borrow_mut(|all| all.get_mut(place).map(std::mem::take)).unwrap_or_default()
}

fn keep(place: usize, mut scratch: Vec<u8>) {
    scratch.clear();
    if scratch.capacity() <= KEPT {
        SCRATCH.with_borrow_mut(|all| {
            if let Some(kept) = all.get_mut(place) {
                *kept = scratch;
            }
        });
    }
}

// === impl Written ===

impl Written for Answered {
    fn write(&self, out: &mut Vec<u8>) {
        text(1, &self.model, out);
        for (of, blocks) in &self.answer.grids {
            let mut used = Numbers::new();
            used.grid(1, *of);
            used.number(2, *blocks);
            message(2, used.bytes(), out);
        }
        let now = Instant::now();
        for rank in &self.answer.ranks {
            self.rank(rank, now, out);
        }
    }
}

impl Answered {
    /// The same as a message, for answers that hold others.
    pub(super) fn into_message(self) -> v1::MatchResponse {
        match_response(&self.model, self.brief, self.answer)
    }

    /// One match. All of its length is known before anything of it is copied.
    fn rank(&self, rank: &RankAnswer, now: Instant, out: &mut Vec<u8>) {
        let held = &rank.held;
        let unknown;
        let who = match &rank.who {
            Who::Rank(entry) => entry.written(self.brief, |identity| who(identity.into(), self.brief)),
            Who::Nobody(name, _) => {
                unknown = who(nobody(&self.model, name.clone()), self.brief);
                &unknown
            }
        };
        let (state, why) = match rank.standing() {
            (v1::FeedState::Live, _) if self.brief => (v1::FeedState::Live, ""),
            standing => standing,
        };
        let mut first = Numbers::new();
        first.number(2, held.blocks.into());
        first.number(3, rank.tokens(held.blocks));
        first.number(4, held.device.into());
        if !self.brief {
            first.tiers(5, TierBlocks::of(&held.tiers));
        }
        first.number(6, state as u64);
        let mut last = Numbers::new();
        last.number(8, held.stamp.epoch);
        last.present(9, held.stamp.sequence);
        let heard = rank.feed.as_ref().and_then(|feed| feed.last_heard);
        last.present(10, heard.map(|heard| millis(now.saturating_duration_since(heard))));
        if !self.brief {
            last.number(11, held.held);
        }
        last.number(12, held.partial.into());
        last.number(13, held.cut_by_unknown_group.into());
        if !self.brief {
            if let Some(of) = rank.grid {
                last.grid(14, of);
            }
            last.number(15, rank.asked);
            last.tiers(16, TierBlocks::leading(&held.lead));
            last.tiers(17, TierBlocks::within(&held.within, held.blocks));
        }
        let because = if why.is_empty() { 0 } else { 1 + encoded_len_varint(why.len() as u64) + why.len() };
        let length = who.len() + first.used + because + last.used;
        encode_key(3, WireType::LengthDelimited, out);
        encode_varint(length as u64, out);
        out.reserve(length);
        out.extend_from_slice(who);
        out.extend_from_slice(first.bytes());
        text(7, why, out);
        out.extend_from_slice(last.bytes());
    }
}

/// What a rank is called, as the field of a match: the same for as long as it is there.
fn who(mut of: v1::WorkerRank, brief: bool) -> Box<[u8]> {
    if brief {
        of.model.clear();
    }
    let mut out = Vec::new();
    message(1, &of.encode_to_vec(), &mut out);
    out.into()
}

impl Written for StreamAnswered {
    fn write(&self, out: &mut Vec<u8>) {
        let mut id = Numbers::new();
        id.number(1, self.id);
        out.extend_from_slice(id.bytes());
        match &self.result {
            Ok(answered) => {
                let mut inner = scratch(1);
                answered.write(&mut inner);
                message(2, &inner, out);
                keep(1, inner);
            }
            Err(failure) => message(3, &failure.encode_to_vec(), out),
        }
    }
}

// === impl BatchAnswered ===

impl BatchAnswered {
    /// Appends the answer to the next request.
    pub(super) fn push(&mut self, result: &Result<Answered, QueryError>) {
        let mut inner = scratch(1);
        let field = match result {
            Ok(answered) => {
                answered.write(&mut inner);
                1
            }
            Err(error) => {
                inner.extend_from_slice(&failure(error).encode_to_vec());
                2
            }
        };
        let length = 1 + encoded_len_varint(inner.len() as u64) + inner.len();
        encode_key(1, WireType::LengthDelimited, &mut self.0);
        encode_varint(length as u64, &mut self.0);
        message(field, &inner, &mut self.0);
        keep(1, inner);
    }

    /// How many bytes there are.
    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }
}

impl Written for BatchAnswered {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
}

// === fields ===

/// Fields that are numbers, and messages of such. What is written here is as long as a match may make it, so that no
/// byte has to ask whether there is room for it in a vector.
struct Numbers {
    bytes: [u8; 256],
    used: usize,
}

impl Numbers {
    const fn new() -> Self {
        Self { bytes: [0; 256], used: 0 }
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.used).unwrap_or_default()
    }

    /// The longest part of a match is three messages of five numbers, six more numbers and two flags: it fits.
    #[inline]
    fn byte(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.used) {
            *place = byte;
            self.used += 1;
        }
    }

    #[inline]
    fn varint(&mut self, mut value: u64) {
        while value > 0x7f {
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }

    #[inline]
    fn number(&mut self, field: u64, value: u64) {
        if value != 0 {
            self.present(field, Some(value));
        }
    }

    #[inline]
    fn present(&mut self, field: u64, value: Option<u64>) {
        if let Some(value) = value {
            self.varint(field << 3);
            self.varint(value);
        }
    }

    fn grid(&mut self, field: u64, grid: Grid) {
        self.inner(field, [(1, grid.size().into()), (2, grid.lookahead.into())]);
    }

    fn tiers(&mut self, field: u64, blocks: TierBlocks) {
        let TierBlocks { device, host, disk, external, other } = blocks;
        self.inner(field, [(1, device), (2, host), (3, disk), (4, external), (5, other)]);
    }

    /// A message of up to five numbers, whose length takes one byte.
    #[inline]
    fn inner<const N: usize>(&mut self, field: u64, numbers: [(u64, u64); N]) {
        self.varint(field << 3 | 2);
        let length = self.used;
        self.byte(0);
        for (field, value) in numbers {
            self.number(field, value);
        }
        let written = self.used.saturating_sub(length + 1);
        if let Some(place) = self.bytes.get_mut(length) {
            *place = written as u8;
        }
    }
}

fn text(field: u32, text: &str, out: &mut Vec<u8>) {
    if !text.is_empty() {
        message(field, text.as_bytes(), out);
    }
}

fn message(field: u32, message: &[u8], out: &mut Vec<u8>) {
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(message.len() as u64, out);
    out.extend_from_slice(message);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::feed::status::{Entry, State};
    use crate::index::RankMatch;
    use crate::serve::matching::{Absence, Feed};
    use crate::worker::{Identity, RankId, Stamp};

    /// Numbers small and large, and nothing: what writes nothing must be met too.
    fn answer(rng: &mut fastrand::Rng) -> Answer {
        let number = |rng: &mut fastrand::Rng| match rng.u8(..4) {
            0 => 0,
            1 => rng.u64(..128),
            2 => rng.u64(..1 << 40),
            _ => rng.u64(..),
        };
        let rank = |n: u32, rng: &mut fastrand::Rng| {
            let text = |rng: &mut fastrand::Rng, longest| "ä".repeat(rng.usize(..longest));
            let (long, short) = (text(rng, 100), text(rng, 3));
            let identity = Identity {
                worker: long.clone().into(),
                address: short.clone().into(),
                aliases: (0..rng.usize(..3)).map(|_| text(rng, 5)).collect(),
                model: text(rng, 80).into(),
                rank: [0, n, u32::MAX][rng.usize(..3)],
            };
            let id = RankId { slot: n, generation: 1 };
            let entry = Arc::new(Entry::new(id, identity, String::new(), None, "vllm"));
            let small = number(rng) as u32;
            let held = RankMatch {
                rank: id,
                stamp: Stamp { epoch: number(rng), sequence: rng.bool().then(|| number(rng)) },
                blocks: small,
                device: number(rng) as u32,
                tiers: std::array::from_fn(|_| number(rng) as u32),
                lead: std::array::from_fn(|_| number(rng) as u32),
                within: std::array::from_fn(|_| number(rng) as u32),
                held: number(rng),
                partial: rng.bool(),
                cut_by_unknown_group: rng.bool(),
            };
            let state = [State::Live, State::Incomplete][rng.usize(..2)];
            let feed = Feed { state, why: short.into(), last_heard: None };
            let nobody = rng.u8(..4) == 0;
            RankAnswer {
                who: if nobody {
                    Who::Nobody(long, [Absence::Name, Absence::Ranks][rng.usize(..2)])
                } else {
                    Who::Rank(entry)
                },
                grid: rng.bool().then_some(Grid { lookahead: rng.u32(..2), ..Grid::new(rng.u64(1..9999)).unwrap() }),
                asked: number(rng),
                held,
                feed: (!nobody).then_some(feed),
            }
        };
        let ranks = (0..rng.u32(..4)).map(|n| rank(n, rng)).collect();
        let grids = (0..rng.u32(..3)).map(|n| (Grid::new(u64::from(n) + 1).unwrap(), rng.u64(..1 << 30))).collect();
        Answer { grids, ranks }
    }

    #[test]
    fn what_is_written_is_the_message() {
        for seed in 0..2_000 {
            let made = || answer(&mut fastrand::Rng::with_seed(seed));
            let brief = seed % 2 == 1;
            let answered = Answered { model: "m".repeat(seed as usize % 200), brief, answer: made() };
            let message = match_response(&answered.model, brief, made());
            let mut written = Vec::new();
            answered.write(&mut written);
            assert_eq!(written, message.encode_to_vec(), "{seed}");
            let mut streamed = Vec::new();
            StreamAnswered { id: seed, result: Ok(answered) }.write(&mut streamed);
            let result = Some(v1::match_stream_response::Result::Response(message));
            assert_eq!(streamed, v1::MatchStreamResponse { id: seed, result }.encode_to_vec());
        }
        let failure = v1::MatchFailure { code: 5, message: "no".to_owned() };
        let mut streamed = Vec::new();
        StreamAnswered { id: 0, result: Err(failure.clone()) }.write(&mut streamed);
        let result = Some(v1::match_stream_response::Result::Failure(failure));
        assert_eq!(streamed, v1::MatchStreamResponse { id: 0, result }.encode_to_vec());
    }
}
