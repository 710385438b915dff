//! The subjects of a fleet, and how names become tokens of them.

use std::fmt::Write as _;

/// What stands before everything.
pub const PREFIX: &str = "kvtap.v1";

/// What is said under a subject.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Topic {
    /// What changes in a rank.
    Events,
    /// Who taps it.
    Owners,
    /// What it holds, for whoever asks.
    Snapshot,
    /// What it held, for the time after its owner. One token more than the others: the piece.
    Kept,
}

/// One rank's place in subjects: `<model>.<worker>.<rank>`, encoded.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Address(String);

// === impl Topic ===

impl Topic {
    /// The topic's token.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Owners => "owners",
            Self::Snapshot => "snapshot",
            Self::Kept => "kept",
        }
    }

    /// The subject of one rank.
    pub fn of(self, address: &Address) -> String {
        format!("{PREFIX}.{}.{}", self.word(), address.0)
    }

    /// The subjects of every rank of a model; of all models where it is `None`.
    pub fn of_model(self, model: Option<&str>) -> String {
        let model = model.map_or("*".to_owned(), token);
        format!("{PREFIX}.{}.{model}.*.*", self.word())
    }

    /// Whose subject this is, if it is one of this topic's.
    pub fn address(self, subject: &str) -> Option<Address> {
        let rest = subject.strip_prefix(PREFIX)?.strip_prefix('.')?.strip_prefix(self.word())?.strip_prefix('.')?;
        let three = rest.split('.').filter(|token| !token.is_empty()).count() == 3;
        (three && rest.matches('.').count() == 2).then(|| Address(rest.to_owned()))
    }
}

// === impl Address ===

impl Address {
    /// The place of a rank.
    pub fn new(model: &str, worker: &str, rank: u32) -> Self {
        Self(format!("{}.{}.{rank}", token(model), token(worker)))
    }

    /// As it stands in subjects, and as the name of an object.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A name as one token: every byte but letters, digits, `_` and `-` of ASCII as `%XX`; the empty name as `%`.
pub fn token(name: &str) -> String {
    if name.is_empty() {
        return "%".to_owned();
    }
    name.bytes().fold(String::with_capacity(name.len()), |mut token, byte| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-') {
            token.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(token, "%{byte:02X}");
        }
        token
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_tokens_and_different_names_different_ones() {
        let names = ["a.b", "a%2Eb", "a b", "a", "A", "", "%", "*", ">", "meta/llama-3.1", "pod_a", "ü", "a\n"];
        let tokens: std::collections::BTreeSet<_> = names.iter().map(|name| token(name)).collect();
        assert_eq!(tokens.len(), names.len());
        assert!(tokens.iter().all(|token| !token.contains(['.', '*', '>', ' ', '\n'])), "{tokens:?}");
        assert_eq!(token("meta/llama-3.1"), "meta%2Fllama-3%2E1");
    }

    #[test]
    fn a_subject_is_read_back() {
        let address = Address::new("m/1", "pod.a", 3);
        let subject = Topic::Events.of(&address);
        assert_eq!(subject, "kvtap.v1.events.m%2F1.pod%2Ea.3");
        assert_eq!(Topic::Events.address(&subject), Some(address));
        assert_eq!(Topic::Owners.address(&subject), None);
        for other in ["kvtap.v1.events.a.b", "kvtap.v1.events.a.b.c.d", "kvtap.v1.events.a..c", "kvtap.v1.events.", ""]
        {
            assert_eq!(Topic::Events.address(other), None, "{other}");
        }
        assert_eq!(Topic::Owners.of_model(Some("a.b")), "kvtap.v1.owners.a%2Eb.*.*");
    }
}
