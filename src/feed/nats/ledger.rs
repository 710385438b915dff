//! Whose numbers those are: from publishers' sequence numbers to one unbroken count for each rank. Pure.
//!
//! A publisher numbers its messages, not its ranks' messages: one number may stand for events of several workers, and
//! a rank sees every third. A rank's feed wants the contrary: its own messages, one number each, and a hole only where
//! something may be missing. This keeps both counts and translates.
//!
//! * A publisher's next number: nothing is missing, for any of its ranks.
//! * A later one: something is missing, and may have been anybody's. Ranks of the message skip numbers, the publisher's
//!   other ranks are told.
//! * One that does not rise: the same message again, or the publisher began anew, or it is two counters under one
//!   name (older Dynamo: each rank counts for itself, all under the process's name). Where no rank of the message
//!   contradicts, it is the last, and from then on each rank is looked at alone.
//! * Another publisher for a known rank: another life of it.
//! * After the link was gone, a message of the same publisher says that it is still the same life, and its number what
//!   was missed.
//!
//! A stream is a publisher that cannot begin anew: what is below its last number came twice. Its name is the instant
//! of its creation; a stream that was deleted and made again has another, and the ranks live on, with a hole.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// The name of a publisher, or of a stream.
pub(super) type Name = u64;

/// What a rank is to be told, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    /// What follows is another life's.
    OtherLife,
    /// What follows is the same life's as before the disconnection.
    SameLife,
    /// Messages may be missing here.
    Missed,
    /// The message, under this number.
    Message(u64),
}

/// What numbers a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Numbered {
    /// A publisher.
    ByPublisher,
    /// The stream that kept it.
    ByStream,
}

/// More publishers than there is room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Crowded;

/// Everything that is known of numbers.
#[derive(Debug)]
pub(super) struct Ledger<K> {
    publishers: HashMap<Name, Publisher<K>>,
    courses: HashMap<K, Course>,
    most: usize,
    /// A stream was followed before, so that another one is not a rank's beginning.
    streamed: bool,
}

#[derive(Debug)]
struct Publisher<K> {
    last: u64,
    digest: u64,
    /// Every number from 0 on has come.
    whole: bool,
    /// Its ranks count for themselves.
    split: bool,
    ranks: HashSet<K>,
}

/// One rank.
#[derive(Debug)]
struct Course {
    publisher: Name,
    /// The publisher's number of the last message; `None`: none in this life.
    last: Option<u64>,
    digest: u64,
    /// Our number of the next one.
    next: u64,
    /// The link was gone since.
    doubtful: bool,
}

enum Relation {
    First,
    Next,
    Gap(u64),
    Restart,
    Split,
}

type Out<K> = Vec<(K, Word)>;

// === impl Ledger ===

impl<K: Copy + Eq + Hash> Ledger<K> {
    /// A ledger of at most so many publishers.
    pub(super) fn new(most: usize) -> Self {
        Self { publishers: HashMap::new(), courses: HashMap::new(), most, streamed: false }
    }

    /// A message of `publisher` came, for these ranks: what each is told is appended to `out`, nothing where the
    /// message came twice.
    ///
    /// # Errors
    /// [`Crowded`]: the message is to be dropped.
    pub(super) fn take(
        &mut self,
        numbered: Numbered,
        (publisher, sequence, digest): (Name, u64, u64),
        ranks: &[K],
        out: &mut Out<K>,
    ) -> Result<(), Crowded> {
        let relation = match self.publishers.get(&publisher) {
            None => {
                self.make_room()?;
                let known_elsewhere = numbered == Numbered::ByStream && self.streamed;
                let whole = sequence == 0 && !known_elsewhere;
                let new = Publisher { last: sequence, digest, whole, split: false, ranks: HashSet::new() };
                self.publishers.insert(publisher, new);
                Relation::First
            }
            Some(known) if known.split => Relation::Split,
            Some(known) => match sequence.checked_sub(known.last) {
                Some(1) => Relation::Next,
                Some(0) if known.digest == digest => return Ok(()),
                None | Some(0) if numbered == Numbered::ByStream => return Ok(()),
                Some(n @ 2..) => Relation::Gap(n - 1),
                None | Some(_) if ranks.iter().all(|rank| self.has_room_for(*rank, publisher, sequence)) => {
                    Relation::Split
                }
                None | Some(_) => Relation::Restart,
            },
        };
        self.streamed |= numbered == Numbered::ByStream;
        let Some(known) = self.publishers.get_mut(&publisher) else { return Ok(()) };
        if !matches!(relation, Relation::Split) {
            known.last = sequence;
            known.digest = digest;
        }
        match relation {
            Relation::First | Relation::Next => {}
            Relation::Gap(_) => known.whole = false,
            Relation::Restart => known.whole = sequence == 0,
            Relation::Split => known.split = true,
        }
        let whole = known.whole;
        if !matches!(relation, Relation::Split) {
            // What holds for the publisher holds for all of its ranks.
            for rank in &known.ranks {
                let Some(course) = self.courses.get_mut(rank) else { continue };
                match relation {
                    Relation::Restart => course.begin(*rank, whole, out),
                    _ => course.prove(*rank, out),
                }
                if matches!(relation, Relation::Gap(_)) && !ranks.contains(rank) {
                    // It may have been one of its own.
                    course.next = course.next.saturating_add(1);
                    out.push((*rank, Word::Missed));
                }
            }
        }
        for rank in ranks {
            let missing = match relation {
                Relation::Gap(n) => n,
                _ => 0,
            };
            let alone = matches!(relation, Relation::Split);
            self.hand_out(numbered, *rank, (publisher, sequence, digest), (alone, missing, whole), out);
        }
        Ok(())
    }

    /// Whether `sequence` may be this rank's next number, if it counts for itself.
    fn has_room_for(&self, rank: K, publisher: Name, sequence: u64) -> bool {
        let course = self.courses.get(&rank).filter(|course| course.publisher == publisher);
        course.is_none_or(|course| course.last.is_none_or(|last| last < sequence))
    }

    fn hand_out(
        &mut self,
        numbered: Numbered,
        rank: K,
        (publisher, sequence, digest): (Name, u64, u64),
        (alone, missing, whole): (bool, u64, bool),
        out: &mut Out<K>,
    ) {
        let from_start = if alone { sequence == 0 } else { whole };
        match self.courses.get_mut(&rank) {
            Some(course) if course.publisher == publisher => {
                if alone {
                    match (course.last, course.last.and_then(|last| sequence.checked_sub(last))) {
                        (None, _) => {}
                        (_, Some(0)) if course.digest == digest => return,
                        (_, Some(n @ 1..)) => {
                            course.prove(rank, out);
                            course.next = course.next.saturating_add(n - 1);
                        }
                        (_, Some(_) | None) => course.begin(rank, sequence == 0, out),
                    }
                } else if course.last.is_some_and(|last| last >= sequence) {
                    course.begin(rank, false, out);
                } else {
                    course.next = course.next.saturating_add(missing);
                }
            }
            Some(course) => {
                let before = std::mem::replace(&mut course.publisher, publisher);
                match numbered {
                    Numbered::ByPublisher => course.begin(rank, from_start, out),
                    Numbered::ByStream => {
                        course.prove(rank, out);
                        course.next = course.next.saturating_add(1);
                    }
                }
                if let Some(before) = self.publishers.get_mut(&before) {
                    before.ranks.remove(&rank);
                }
            }
            None => {
                let next = u64::from(!from_start);
                self.courses.insert(rank, Course { publisher, last: None, digest, next, doubtful: false });
            }
        }
        if let Some(known) = self.publishers.get_mut(&publisher) {
            known.ranks.insert(rank);
        }
        if let Some(course) = self.courses.get_mut(&rank) {
            course.last = Some(sequence);
            course.digest = digest;
            out.push((rank, Word::Message(course.next)));
            course.next = course.next.saturating_add(1);
        }
    }

    /// The link is gone: every rank will have to be proven.
    pub(super) fn doubt(&mut self) {
        self.courses.values_mut().for_each(|course| course.doubtful = true);
    }

    /// Nothing was missed of this stream since: all of its ranks are proven.
    pub(super) fn prove(&mut self, stream: Name, out: &mut Out<K>) {
        if let Some(known) = self.publishers.get(&stream) {
            for rank in &known.ranks {
                if let Some(course) = self.courses.get_mut(rank) {
                    course.prove(*rank, out);
                }
            }
        }
    }

    /// A message of `publisher` may have been any of its ranks', but these.
    pub(super) fn miss(&mut self, publisher: Name, but: &[K], out: &mut Out<K>) {
        let Some(known) = self.publishers.get_mut(&publisher) else { return };
        known.whole = false;
        for rank in known.ranks.iter().filter(|rank| !but.contains(rank)) {
            if let Some(course) = self.courses.get_mut(rank) {
                course.next = course.next.saturating_add(1);
                out.push((*rank, Word::Missed));
            }
        }
    }

    /// A rank of `publisher` that appears from now on may have spoken before.
    pub(super) fn no_beginning(&mut self, publisher: Name) {
        if let Some(known) = self.publishers.get_mut(&publisher) {
            known.whole = false;
        }
    }

    /// A rank is not followed any more. Should it come back, it has missed its beginning.
    pub(super) fn forget(&mut self, rank: K) {
        if let Some(course) = self.courses.remove(&rank) {
            if let Some(known) = self.publishers.get_mut(&course.publisher) {
                known.ranks.remove(&rank);
            }
            self.no_beginning(course.publisher);
        }
    }

    fn make_room(&mut self) -> Result<(), Crowded> {
        if self.publishers.len() >= self.most {
            self.publishers.retain(|_, known| !known.ranks.is_empty());
        }
        if self.publishers.len() < self.most { Ok(()) } else { Err(Crowded) }
    }
}

// === impl Course ===

impl Course {
    fn begin<K>(&mut self, rank: K, whole: bool, out: &mut Out<K>) {
        out.push((rank, Word::OtherLife));
        *self = Self { last: None, next: u64::from(!whole), doubtful: false, ..*self };
    }

    fn prove<K>(&mut self, rank: K, out: &mut Out<K>) {
        if std::mem::take(&mut self.doubtful) {
            out.push((rank, Word::SameLife));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Numbered::{ByPublisher, ByStream};

    const P: Name = 100;
    const Q: Name = 200;

    /// What `ranks` are told of a message, in words.
    fn take(ledger: &mut Ledger<char>, numbered: Numbered, from: Name, sequence: u64, ranks: &str) -> String {
        take_as(ledger, numbered, (from, sequence, from ^ sequence), ranks)
    }

    fn take_as(ledger: &mut Ledger<char>, numbered: Numbered, message: (Name, u64, u64), ranks: &str) -> String {
        let mut out = Vec::new();
        ledger.take(numbered, message, &ranks.chars().collect::<Vec<_>>(), &mut out).unwrap();
        words(out)
    }

    fn words(mut out: Out<char>) -> String {
        out.sort_by_key(|(rank, _)| *rank);
        let words = out.into_iter().map(|(rank, word)| match word {
            Word::OtherLife => format!("{rank}:other"),
            Word::SameLife => format!("{rank}:same"),
            Word::Missed => format!("{rank}:missed"),
            Word::Message(n) => format!("{rank}:{n}"),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn one_counter_for_several_ranks_becomes_one_for_each() {
        let mut ledger = Ledger::new(8);
        for (sequence, ranks, told) in
            [(0, "a", "a:0"), (1, "b", "b:0"), (2, "ab", "a:1 b:1"), (3, "c", "c:0"), (4, "a", "a:2")]
        {
            assert_eq!(take(&mut ledger, ByPublisher, P, sequence, ranks), told, "{sequence}");
        }
    }

    #[test]
    fn a_gap_may_have_been_anybodys() {
        let mut ledger = Ledger::new(8);
        take(&mut ledger, ByPublisher, P, 0, "ab");
        assert_eq!(take(&mut ledger, ByPublisher, P, 3, "a"), "a:3 b:missed");
        assert_eq!(take(&mut ledger, ByPublisher, P, 4, "b"), "b:2");
        // A rank that appears only now may have lost its beginning.
        assert_eq!(take(&mut ledger, ByPublisher, P, 5, "c"), "c:1");
    }

    #[test]
    fn who_comes_late_has_missed_the_beginning() {
        let mut ledger = Ledger::new(8);
        assert_eq!(take(&mut ledger, ByPublisher, P, 7, "a"), "a:1");
        assert_eq!(take(&mut ledger, ByPublisher, P, 8, "ab"), "a:2 b:1");
    }

    #[test]
    fn counters_that_share_a_name_are_told_apart() {
        let mut ledger = Ledger::new(8);
        for (sequence, ranks, told) in [
            (0, "a", "a:0"),
            (0, "b", "b:0"),
            (1, "a", "a:1"),
            (2, "a", "a:2"),
            (1, "b", "b:1"),
            (4, "b", "b:4"),
            (3, "a", "a:3"),
            (0, "a", "a:other a:0"),
        ] {
            let digest = sequence ^ ranks.bytes().fold(0, |sum, byte| sum ^ u64::from(byte) << 8);
            assert_eq!(take_as(&mut ledger, ByPublisher, (P, sequence, digest), ranks), told, "{sequence} {ranks}");
        }
    }

    #[test]
    fn the_same_message_twice_is_nothing() {
        let mut ledger = Ledger::new(8);
        take(&mut ledger, ByPublisher, P, 0, "a");
        assert_eq!(take(&mut ledger, ByPublisher, P, 0, "a"), "");
        assert_eq!(take(&mut ledger, ByPublisher, P, 1, "a"), "a:1");
    }

    #[test]
    fn a_publisher_that_begins_anew_takes_all_of_its_ranks_along() {
        let mut ledger = Ledger::new(8);
        take(&mut ledger, ByPublisher, P, 0, "ab");
        take(&mut ledger, ByPublisher, P, 1, "a");
        assert_eq!(take_as(&mut ledger, ByPublisher, (P, 0, 9), "a"), "a:other a:0 b:other");
        assert_eq!(take(&mut ledger, ByPublisher, P, 1, "b"), "b:0");
        assert_eq!(take_as(&mut ledger, ByPublisher, (P, 1, 8), "b"), "a:other b:other b:1");
    }

    #[test]
    fn another_publisher_of_a_rank_is_another_life_of_it_alone() {
        let mut ledger = Ledger::new(8);
        take(&mut ledger, ByPublisher, P, 0, "ab");
        assert_eq!(take(&mut ledger, ByPublisher, Q, 0, "a"), "a:other a:0");
        assert_eq!(take(&mut ledger, ByPublisher, Q, 2, "a"), "a:2");
        assert_eq!(take(&mut ledger, ByPublisher, P, 1, "b"), "b:1");
    }

    #[test]
    fn after_a_disconnection_numbers_prove_what_was_missed() {
        let mut ledger = Ledger::new(8);
        take(&mut ledger, ByPublisher, P, 0, "ab");
        ledger.doubt();
        assert_eq!(take(&mut ledger, ByPublisher, P, 1, "a"), "a:same a:1 b:same");
        ledger.doubt();
        assert_eq!(take(&mut ledger, ByPublisher, P, 4, "a"), "a:same a:4 b:same b:missed");
    }

    #[test]
    fn a_stream_only_rises_and_its_successor_leaves_a_hole() {
        let mut ledger = Ledger::new(8);
        assert_eq!(take(&mut ledger, ByStream, P, 0, "a"), "a:0");
        assert_eq!(take(&mut ledger, ByStream, P, 1, "b"), "b:0");
        assert_eq!(take_as(&mut ledger, ByStream, (P, 0, 77), "a"), "");
        ledger.doubt();
        let mut out = Vec::new();
        ledger.prove(P, &mut out);
        assert_eq!(words(out), "a:same b:same");
        assert_eq!(take(&mut ledger, ByStream, Q, 0, "a"), "a:2");
        // It may have published into the stream before.
        assert_eq!(take(&mut ledger, ByStream, Q, 1, "c"), "c:1");
    }

    #[test]
    fn publishers_without_ranks_make_room_and_others_do_not() {
        let mut ledger = Ledger::new(2);
        take(&mut ledger, ByPublisher, 1, 0, "a");
        take(&mut ledger, ByPublisher, 2, 0, "b");
        assert_eq!(ledger.take(ByPublisher, (3, 0, 0), &['c'], &mut Vec::new()), Err(Crowded));
        ledger.forget('a');
        assert_eq!(take(&mut ledger, ByPublisher, 3, 0, "c"), "c:0");
    }
}
