//! The file: what is written is read, whatever happened to it on the way.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use kvtap::feed::recording::{Bounds, Entry, ReadError, Reader, Record, WriteError, Writer, Wrote, open};
use tempfile::tempdir;

use crate::support::{header, message};

const LARGE: Bounds = Bounds { file_bytes: 1 << 30, files: 1 };

fn records() -> Vec<Record> {
    let at = Duration::from_nanos(12_345);
    let odd = vec![Bytes::from_static(b"one frame only")];
    let many = vec![Bytes::new(); 5];
    vec![
        Record { at: Duration::ZERO, entry: Entry::Connected },
        message(0, Bytes::from_static(b"first")),
        Record { at, entry: Entry::Message(odd) },
        Record { at, entry: Entry::Message(many) },
        Record { at, entry: Entry::Reply(vec![Bytes::new(), Bytes::from_static(&[0; 8]), Bytes::from_static(b"r")]) },
        Record { at, entry: Entry::ReplayEnded { complete: true } },
        Record { at, entry: Entry::Lost(3) },
        Record { at, entry: Entry::Disconnected },
    ]
}

/// A file of [`records`], and how long it is after its header and after each record.
fn written() -> (Vec<u8>, Vec<usize>) {
    let folder = tempdir().unwrap();
    let path = folder.path().join("r");
    let mut writer = Writer::create(&path, LARGE, header()).unwrap();
    let length = || fs::metadata(&path).unwrap().len() as usize;
    let mut lengths = vec![length()];
    for record in records() {
        assert_eq!(writer.write(&record).unwrap(), Wrote::Kept);
        writer.flush().unwrap();
        lengths.push(length());
    }
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "prompts are their owner's");
    (fs::read(&path).unwrap(), lengths)
}

#[test]
fn every_record_is_read_as_it_was_written() {
    let (bytes, _) = written();
    let mut reader = Reader::new(bytes.as_slice()).unwrap();
    assert_eq!(reader.header(), &header());
    assert_eq!(reader.by_ref().collect::<Vec<_>>(), records());
    assert_eq!(reader.torn(), None);
}

#[test]
fn a_torn_tail_costs_the_record_that_was_torn_and_is_told() {
    let (bytes, lengths) = written();
    for cut in lengths[0]..bytes.len() {
        let mut reader = Reader::new(&bytes[..cut]).unwrap();
        let whole = lengths.iter().filter(|length| **length <= cut).count() - 1;
        assert_eq!(reader.by_ref().collect::<Vec<_>>(), records()[..whole], "cut at {cut}");
        let at = lengths[whole];
        assert_eq!(reader.torn().map(|torn| torn.offset), (at < cut).then_some(at as u64), "cut at {cut}");
    }
    for cut in 0..lengths[0] {
        Reader::new(&bytes[..cut]).expect_err("a header is needed");
    }
}

#[test]
fn a_byte_that_changed_ends_the_reading_before_it() {
    let (bytes, lengths) = written();
    for at in lengths[0]..bytes.len() {
        for flip in [1, 0x80] {
            let mut changed = bytes.clone();
            changed[at] ^= flip;
            let mut reader = Reader::new(changed.as_slice()).unwrap();
            let before = lengths.iter().filter(|length| **length <= at).count() - 1;
            assert_eq!(reader.by_ref().collect::<Vec<_>>(), records()[..before], "at {at}");
            assert!(reader.torn().is_some());
        }
    }
}

#[test]
fn a_file_that_lies_is_read_without_harm() {
    let (bytes, lengths) = written();
    let (head, rest) = bytes.split_at(lengths[0]);
    // A length that nothing stands behind, and one that no record has.
    for length in [64u32 << 20, u32::MAX] {
        let lie = [head, &length.to_le_bytes(), &[0; 8], &rest[12..40]].concat();
        let mut reader = Reader::new(lie.as_slice()).unwrap();
        assert_eq!(reader.by_ref().count(), 0);
        assert!(reader.torn().is_some());
    }
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..2_000 {
        let length = random.usize(..200);
        let noise: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(length).collect();
        let after_header = [head, &noise].concat();
        Reader::new(after_header.as_slice()).unwrap().for_each(drop);
        let after_magic = [&head[..12], &noise].concat();
        Reader::new(after_magic.as_slice()).expect_err("a header is needed");
    }
    // Counts and lengths inside a body whose checksum is right.
    for content in [[0xffu8; 8], [1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], [0; 8]] {
        let body = [&[4u8][..], &[0; 8], &content].concat();
        let sum = xxhash_rust::xxh3::xxh3_64_with_seed(&body, body.len() as u64);
        let lie = [head, &(body.len() as u32).to_le_bytes(), &sum.to_le_bytes(), &body].concat();
        let mut reader = Reader::new(lie.as_slice()).unwrap();
        assert_eq!((reader.by_ref().count(), reader.torn().is_some()), (0, true));
    }
}

#[test]
fn other_files_and_other_versions_are_refused_by_name() {
    let (bytes, _) = written();
    assert!(matches!(Reader::new(&b"PNG"[..]), Err(ReadError::NotARecording)));
    assert!(matches!(Reader::new(&[0u8; 100][..]), Err(ReadError::NotARecording)));
    let mut newer = bytes;
    newer[8] = 2;
    assert!(matches!(Reader::new(newer.as_slice()), Err(ReadError::Version(2))));
}

#[test]
fn a_recording_without_rotation_ends_when_its_file_is_full() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("r");
    let mut writer = Writer::create(&path, Bounds { file_bytes: 1000, files: 1 }, header()).unwrap();
    let payload = Bytes::from(vec![7; 100]);
    let kept = (0..).take_while(|n| writer.write(&message(*n, payload.clone())).unwrap() == Wrote::Kept).count();
    writer.flush().unwrap();
    assert!(kept > 2 && fs::metadata(&path).unwrap().len() <= 1000);
    let mut parts = open(std::slice::from_ref(&path)).unwrap();
    assert_eq!((parts[0].by_ref().count(), parts[0].torn()), (kept, None));
}

#[test]
fn a_recording_that_rotates_keeps_its_newest_parts_within_their_bounds() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("r");
    let mut writer = Writer::create(&path, Bounds { file_bytes: 1000, files: 3 }, header()).unwrap();
    for n in 0..100 {
        assert_eq!(writer.write(&message(n, Bytes::from(vec![7; 100]))).unwrap(), Wrote::Kept);
    }
    writer.flush().unwrap();
    let mut files: Vec<PathBuf> = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 3);
    assert!(files.iter().all(|file| fs::metadata(file).unwrap().len() <= 1000));

    let parts = open(&files).unwrap();
    assert_eq!(parts.last().unwrap().header().part + 1, writer.parts());
    let numbers: Vec<Duration> = parts.into_iter().flatten().map(|record| record.at).collect();
    let newest: Vec<Duration> = (100 - numbers.len() as u64..100).map(Duration::from_millis).collect();
    assert_eq!(numbers, newest);

    // Without the part in the middle there would be a hole that nobody recorded.
    let (_, error) = open(&[files[0].clone(), files[2].clone()]).err().unwrap();
    assert!(matches!(error, ReadError::Parts { .. }), "{error}");
}

#[test]
fn a_message_larger_than_a_file_is_a_loss_that_stands_in_its_place() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("r");
    let mut writer = Writer::create(&path, Bounds { file_bytes: 1000, files: 2 }, header()).unwrap();
    assert_eq!(writer.write(&message(0, Bytes::from(vec![7; 2000]))).unwrap(), Wrote::TooLarge);
    writer.flush().unwrap();
    let read: Vec<Entry> = open(&[path]).unwrap().into_iter().flatten().map(|record| record.entry).collect();
    assert_eq!(read, [Entry::Lost(1)]);
}

#[test]
fn no_file_that_is_there_is_ever_overwritten() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("r");
    let older = folder.path().join("r.1");
    fs::write(&older, "something else").unwrap();
    let created = Writer::create(&path, Bounds { file_bytes: 1000, files: 2 }, header());
    assert!(matches!(created, Err(WriteError::Exists(file)) if file == older));
    assert_eq!(fs::read_to_string(&older).unwrap(), "something else");
    assert!(!path.exists());
}
