//! Answers of `Match` and `MatchStream`, written to the wire from what was found.
//!
//! As messages they would cost an allocation for every name of every rank: of 64 workers, more than hashing and matching
//! 500 blocks. What is written is byte for byte what [`match_response`](super::response::match_response) encodes to.

use std::cell::RefCell;
use std::marker::PhantomData;

use bytes::BufMut;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic::{Status, codec};

use super::matching::{Answer, NOBODY, RankAnswer, Who};
use super::response::{feed_state, match_response};
use crate::admin::report::{TierBlocks, millis};
use crate::block::Grid;
use crate::proto::codec::Bounded;
use crate::proto::v1;

/// `MatchResponse`.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) model: String,
    pub(super) answer: Answer,
}

/// `MatchStreamResponse`.
#[derive(Debug)]
pub(super) struct StreamAnswered {
    pub(super) id: u64,
    pub(super) result: Result<Answered, v1::MatchFailure>,
}

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
        let mut written = SCRATCH.with_borrow_mut(|[written, _]| std::mem::take(written));
        answer.write(&mut written);
        out.put_slice(&written);
        keep(0, written);
        Ok(())
    }

    fn buffer_settings(&self) -> codec::BufferSettings {
        codec::BufferSettings::default()
    }
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
            let mut used = Short::new();
            grid(1, *of, &mut used);
            number(2, *blocks, &mut used);
            message(2, used.bytes(), out);
        }
        let mut written = SCRATCH.with_borrow_mut(|[_, written]| std::mem::take(written));
        for rank in &self.answer.ranks {
            written.clear();
            self.rank(rank, &mut written);
            message(3, &written, out);
        }
        keep(1, written);
    }
}

impl Answered {
    /// The same as a message, for answers that hold others.
    pub(super) fn into_message(self) -> v1::MatchResponse {
        match_response(&self.model, self.answer)
    }

    fn rank(&self, rank: &RankAnswer, out: &mut Vec<u8>) {
        let held = &rank.held;
        self.who(&rank.who, out);
        number(2, held.blocks.into(), out);
        number(3, rank.tokens(held.blocks), out);
        number(4, held.device.into(), out);
        tiers(5, TierBlocks::of(&held.tiers), out);
        let (state, why) = match &rank.feed {
            None => (v1::FeedState::Unspecified, NOBODY),
            Some(feed) => (feed_state(feed.state), &*feed.why),
        };
        number(6, state as u64, out);
        text(7, why, out);
        number(8, held.stamp.epoch, out);
        present(9, held.stamp.sequence, out);
        let heard = rank.feed.as_ref().and_then(|feed| feed.last_heard);
        present(10, heard.map(|heard| millis(heard.elapsed())), out);
        number(11, held.held, out);
        number(12, held.partial.into(), out);
        number(13, held.cut_by_unknown_group.into(), out);
        if let Some(of) = rank.grid {
            grid(14, of, out);
        }
        number(15, rank.asked, out);
        tiers(16, TierBlocks::leading(&held.lead), out);
        tiers(17, TierBlocks::within(&held.within, held.blocks), out);
    }

    fn who(&self, who: &Who, out: &mut Vec<u8>) {
        let nothing: &[String] = &[];
        let (worker, address, aliases, model, rank) = match who {
            Who::Nobody(name) => (name.as_str(), "", nothing, self.model.as_str(), 0),
            Who::Rank(entry) => {
                let of = &entry.identity;
                (&*of.worker, &*of.address, &*of.aliases, &*of.model, of.rank)
            }
        };
        let texts = [worker, address, model].into_iter().filter(|text| !text.is_empty());
        let texts: usize = texts.chain(aliases.iter().map(String::as_str)).map(|text| 1 + sized(text.len())).sum();
        let rank_size = if rank == 0 { 0 } else { 1 + prost::encoding::encoded_len_varint(rank.into()) };
        encode_key(1, WireType::LengthDelimited, out);
        encode_varint((texts + rank_size) as u64, out);
        text(1, worker, out);
        text(2, address, out);
        for alias in aliases {
            bytes(3, alias.as_bytes(), out);
        }
        text(4, model, out);
        number(5, rank.into(), out);
    }
}

impl Written for StreamAnswered {
    fn write(&self, out: &mut Vec<u8>) {
        number(1, self.id, out);
        match &self.result {
            Ok(answered) => {
                let mut inner = Vec::with_capacity(128 * (1 + answered.answer.ranks.len()));
                answered.write(&mut inner);
                message(2, &inner, out);
            }
            Err(failure) => message(3, &failure.encode_to_vec(), out),
        }
    }
}

// === fields ===

/// A message of a few numbers.
struct Short {
    bytes: [u8; 64],
    used: usize,
}

impl Short {
    const fn new() -> Self {
        Self { bytes: [0; 64], used: 0 }
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.used).unwrap_or_default()
    }
}

/// What numbers are written to.
trait Out {
    fn byte(&mut self, byte: u8);

    fn varint(&mut self, mut value: u64) {
        while value > 0x7f {
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }
}

impl Out for Vec<u8> {
    fn byte(&mut self, byte: u8) {
        self.push(byte);
    }
}

impl Out for Short {
    fn byte(&mut self, byte: u8) {
        // Five numbers of up to ten bytes and their keys fit.
        if let Some(place) = self.bytes.get_mut(self.used) {
            *place = byte;
            self.used += 1;
        }
    }
}

fn number(field: u64, value: u64, out: &mut impl Out) {
    if value != 0 {
        present(field, Some(value), out);
    }
}

fn present(field: u64, value: Option<u64>, out: &mut impl Out) {
    if let Some(value) = value {
        out.varint(field << 3);
        out.varint(value);
    }
}

fn text(field: u32, text: &str, out: &mut Vec<u8>) {
    if !text.is_empty() {
        bytes(field, text.as_bytes(), out);
    }
}

fn bytes(field: u32, bytes: &[u8], out: &mut Vec<u8>) {
    message(field, bytes, out);
}

fn message(field: u32, message: &[u8], out: &mut Vec<u8>) {
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(message.len() as u64, out);
    out.extend_from_slice(message);
}

/// So many bytes and their length.
fn sized(bytes: usize) -> usize {
    prost::encoding::encoded_len_varint(bytes as u64) + bytes
}

fn grid(field: u64, grid: Grid, out: &mut impl Out) {
    let mut inner = Short::new();
    number(1, grid.size().into(), &mut inner);
    number(2, grid.lookahead.into(), &mut inner);
    short(field, &inner, out);
}

fn tiers(field: u64, blocks: TierBlocks, out: &mut impl Out) {
    let TierBlocks { device, host, disk, external, other } = blocks;
    let mut inner = Short::new();
    for (field, value) in [(1, device), (2, host), (3, disk), (4, external), (5, other)] {
        number(field, value, &mut inner);
    }
    short(field, &inner, out);
}

fn short(field: u64, inner: &Short, out: &mut impl Out) {
    out.varint(field << 3 | 2);
    out.varint(inner.used as u64);
    inner.bytes().iter().for_each(|byte| out.byte(*byte));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::feed::status::{Entry, State};
    use crate::index::RankMatch;
    use crate::serve::matching::Feed;
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
            let feed = Feed { state: State::Incomplete, why: short, last_heard: None };
            let nobody = rng.u8(..4) == 0;
            RankAnswer {
                who: if nobody { Who::Nobody(long) } else { Who::Rank(entry) },
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
            let answered = Answered { model: "m".repeat(seed as usize % 200), answer: made() };
            let message = match_response(&answered.model, made());
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
