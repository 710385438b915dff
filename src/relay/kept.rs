//! What outlives an owner: its last snapshot and its last announcement of each rank, in a stream that keeps one message a
//! subject. Who joins while an owner is away, and its engine lives, begins with these.
//!
//! A snapshot lies in pieces, `<subject>.0` and on; a later one is written over it. Its pieces belong together where their
//! places in the stream rise with their numbers: what is overwritten in part does not.

use std::collections::BTreeMap;
use std::time::SystemTime;

use async_nats::jetstream::{self, consumer::DeliverPolicy};
use bytes::Bytes;

use super::options::{Follow, StreamOptions};
use super::stream::{self, Found};
use super::subject::{Address, Topic};

/// Pieces between two looks at whether the connection keeps up.
const FLUSH_EVERY: usize = 16;

/// An announcement that was made before we listened.
#[derive(Clone, Debug)]
pub(super) struct Recalled {
    pub(super) address: Address,
    pub(super) bytes: Bytes,
    pub(super) said: SystemTime,
}

/// Writes a snapshot over the one before.
pub(super) async fn write(
    client: &async_nats::Client,
    options: &StreamOptions,
    address: &Address,
    pieces: Vec<Bytes>,
) -> Result<(), async_nats::Error> {
    stream::ensure_kept(&stream::context(client), options).await?;
    for (i, piece) in pieces.into_iter().enumerate() {
        client.publish(format!("{}.{i}", Topic::Kept.of(address)), piece).await?;
        if i % FLUSH_EVERY == FLUSH_EVERY - 1 {
            client.flush().await?;
        }
    }
    client.flush().await?;
    Ok(())
}

/// The pieces of a rank's last snapshot, and when its first one was written. Nothing where they do not belong together.
pub(super) async fn read(
    context: &jetstream::Context,
    options: &StreamOptions,
    address: &Address,
) -> Result<Option<(Vec<Bytes>, SystemTime)>, async_nats::Error> {
    let subject = Topic::Kept.of(address);
    let (stream, all) = (options.kept_name(), format!("{subject}.*"));
    let found = stream::read(context, &stream, all, DeliverPolicy::LastPerSubject).await?;
    let pieces = found.into_iter().filter_map(|found| {
        let number: usize = found.subject.strip_prefix(&subject)?.strip_prefix('.')?.parse().ok()?;
        Some((number, found))
    });
    Ok(together(pieces.collect()))
}

/// The longest row of pieces from 0 on that were written one after the other.
fn together(pieces: BTreeMap<usize, Found>) -> Option<(Vec<Bytes>, SystemTime)> {
    let written = pieces.get(&0)?.written;
    let mut last = 0;
    let row = pieces.into_iter().enumerate().take_while(|(i, (number, found))| {
        let follows = i == number && found.sequence > last;
        last = found.sequence;
        follows
    });
    Some((row.map(|(_, (_, found))| found.bytes).collect(), written))
}

/// What owners have last said of their ranks.
pub(super) async fn announcements(
    context: &jetstream::Context,
    options: &StreamOptions,
    follow: &Follow,
) -> Result<Vec<Recalled>, async_nats::Error> {
    let mut recalled = Vec::new();
    for subject in follow.subjects(Topic::Owners) {
        let found = stream::read(context, &options.kept_name(), subject, DeliverPolicy::LastPerSubject).await?;
        recalled.extend(found.into_iter().filter_map(|Found { subject, bytes, written, .. }| {
            Some(Recalled { address: Topic::Owners.address(&subject)?, bytes, said: written })
        }));
    }
    Ok(recalled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lay(sequences: &[(usize, u64)]) -> usize {
        let found = |sequence: u64| Found {
            subject: String::new(),
            bytes: Bytes::new(),
            sequence,
            written: SystemTime::UNIX_EPOCH,
        };
        let pieces = sequences.iter().map(|(number, sequence)| (*number, found(*sequence))).collect();
        together(pieces).map_or(0, |(pieces, _)| pieces.len())
    }

    #[test]
    fn pieces_belong_together_while_their_places_rise() {
        assert_eq!(lay(&[(0, 7), (1, 8), (2, 11)]), 3, "others write between them");
        assert_eq!(lay(&[(0, 7), (1, 8), (2, 3), (3, 4)]), 2, "the rest is of a longer one before");
        assert_eq!(lay(&[(0, 7), (2, 9)]), 1, "one is missing");
        assert_eq!(lay(&[(1, 8), (2, 9)]), 0, "the first one is missing");
        assert_eq!(lay(&[]), 0);
    }
}
