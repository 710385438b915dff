//! How messages are read: with a bound on what one may cost.
//!
//! Decoding is where a small message can become a large one: an empty entry of a list takes two bytes on the wire and
//! 32 in memory. So the lists of a request are counted before anything is allocated for them, and a message that takes
//! milliseconds to read is read aside, so that the connections of other callers go on.

use std::any::TypeId;
use std::marker::PhantomData;

use bytes::Buf;
use prost::Message;
use tokio::runtime::{Handle, RuntimeFlavor};
use tonic::codec::{BufferSettings, DecodeBuf, Decoder};
use tonic::{Status, codec};
use tonic_prost::{ProstCodec, ProstEncoder};

use super::{indexer, scan, v1};

/// The metadata key under which a refusal says its reason in one stable word.
pub const REASON: &str = "kvtap-reason";

/// The reason of a message that does not decode.
pub const MALFORMED: &str = "malformed";
/// The reason of a message with more entries in a list than are read.
pub const TOO_MANY_ENTRIES: &str = "too_many_entries";

/// Up to here, in bytes, a message costs well below a millisecond.
pub const LIGHT: usize = 256 << 10;

/// Reads and writes the messages of this protocol.
#[derive(Debug)]
pub struct Codec<T, U>(PhantomData<(T, U)>);

/// Reads messages, within bounds.
#[derive(Debug)]
pub struct Bounded<U>(PhantomData<U>);

/// Does work that takes milliseconds where it holds nobody up: the other tasks of this thread go on elsewhere.
pub fn aside<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        // There is nowhere else.
        _ => work(),
    }
}

/// A refusal that says its reason.
pub fn refused(mut status: Status, reason: &'static str) -> Status {
    status.metadata_mut().insert(REASON, tonic::metadata::MetadataValue::from_static(reason));
    status
}

// === impl Codec ===

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = Bounded<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        Bounded(PhantomData)
    }
}

// === impl Bounded ===

impl<U> Default for Bounded<U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<U: Message + Default + 'static> Decoder for Bounded<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        if message.remaining() > LIGHT { aside(|| read(message)) } else { read(message) }.map(Some)
    }
}

fn read<U: Message + Default + 'static>(message: &mut DecodeBuf<'_>) -> Result<U, Status> {
    let fault = lists::<U>().and_then(|lists| scan::count(lists, message.chunk()).err());
    match fault {
        None => {}
        Some(scan::Fault::TooMany { field, most }) => {
            let status = Status::invalid_argument(format!("{field}: more than {most} entries"));
            return Err(refused(status, TOO_MANY_ENTRIES));
        }
        Some(scan::Fault::Again { field }) => {
            let status =
                Status::invalid_argument(format!("{field}: given more than once; one form of it is asked for"));
            return Err(refused(status, MALFORMED));
        }
    }
    let decoded = U::decode(message);
    decoded.map_err(|error| refused(Status::invalid_argument(format!("message: {error}")), MALFORMED))
}

/// What is counted in this kind of message.
fn lists<U: 'static>() -> Option<&'static scan::Lists> {
    let kind = TypeId::of::<U>();
    let of = [
        (TypeId::of::<v1::MatchRequest>(), &scan::MATCH),
        (TypeId::of::<v1::MatchStreamRequest>(), &scan::STREAM),
        (TypeId::of::<v1::MatchBatchRequest>(), &scan::BATCH),
        (TypeId::of::<v1::ListWorkersRequest>(), &scan::LIST_WORKERS),
        (TypeId::of::<v1::ExplainRequest>(), &scan::EXPLAIN),
        (TypeId::of::<v1::WatchRequest>(), &scan::WATCH),
        (TypeId::of::<indexer::GetPodScoresRequest>(), &scan::POD_SCORES),
    ];
    of.into_iter().find(|(of, _)| *of == kind).map(|(_, lists)| lists)
}
