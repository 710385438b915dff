//! The contents of a run that is told.

use std::ops::Deref;

use crate::hash::ContentHash;

/// The contents of consecutive blocks, in their order. One alone takes no memory of its own: engines that decode, or evict,
/// tell of their blocks one by one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunContents(Kept);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Kept {
    One(ContentHash),
    All(Box<[ContentHash]>),
}

// === impl RunContents ===

impl RunContents {
    /// Bytes of memory beside this.
    pub(super) fn heap(&self) -> usize {
        match &self.0 {
            Kept::One(_) => 0,
            Kept::All(all) => size_of_val(&**all),
        }
    }
}

impl Deref for RunContents {
    type Target = [ContentHash];

    fn deref(&self) -> &[ContentHash] {
        match &self.0 {
            Kept::One(one) => std::slice::from_ref(one),
            Kept::All(all) => all,
        }
    }
}

impl<'a> IntoIterator for &'a RunContents {
    type Item = &'a ContentHash;
    type IntoIter = std::slice::Iter<'a, ContentHash>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl From<&[ContentHash]> for RunContents {
    fn from(contents: &[ContentHash]) -> Self {
        Self(match contents {
            [one] => Kept::One(*one),
            all => Kept::All(all.into()),
        })
    }
}

impl From<Vec<ContentHash>> for RunContents {
    fn from(contents: Vec<ContentHash>) -> Self {
        match *contents {
            [one] => Self(Kept::One(one)),
            _ => Self(Kept::All(contents.into())),
        }
    }
}

impl FromIterator<ContentHash> for RunContents {
    fn from_iter<I: IntoIterator<Item = ContentHash>>(contents: I) -> Self {
        let mut contents = contents.into_iter();
        match (contents.next(), contents.size_hint()) {
            (Some(one), (_, Some(0))) => Self(Kept::One(one)),
            (first, _) => first.into_iter().chain(contents).collect::<Vec<_>>().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_the_same_however_they_came_and_one_alone_takes_no_memory() {
        for count in 0..5u64 {
            let all: Vec<ContentHash> = (0..count).map(ContentHash).collect();
            let collected: RunContents = all.iter().copied().collect();
            let filtered: RunContents = all.iter().copied().filter(|_| true).collect();
            assert_eq!(*collected, *all);
            assert_eq!([&filtered, &all[..].into(), &all.clone().into()], [&collected; 3]);
            assert_eq!(collected.heap(), if count == 1 { 0 } else { 8 * count as usize });
        }
        assert_eq!(size_of::<RunContents>(), size_of::<Box<[ContentHash]>>());
    }
}
