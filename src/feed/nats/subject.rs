//! A subject pattern: what is subscribed to, and where in a subject a worker's name and rank stand.

use std::fmt;
use std::str::FromStr;

/// The longest subject that is used, in bytes.
const MAX_SUBJECT: usize = 512;

/// A pattern such as `kv.prod.{worker}.{rank}`, of the tokens of a NATS subject: `*` stands for any one, a last `>`
/// for all that follow, `{worker}` and `{rank}` for one that is read.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Pattern {
    tokens: Vec<Token>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Token {
    Word(String),
    Any,
    Rest,
    Worker,
    Rank,
}

/// Why a pattern is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PatternError {
    /// Nothing, or more than a server takes.
    #[error("a subject has 1 to {MAX_SUBJECT} bytes")]
    Length,
    /// An empty token, white space or a wildcard inside of a token.
    #[error("`{0}` is no token of a subject: neither empty nor with white space, `*`, `>` or braces inside")]
    Token(String),
    /// `>` before the end.
    #[error("`>` can only be the last token")]
    RestInside,
    /// One of the two stands twice.
    #[error("`{0}` stands twice")]
    Twice(&'static str),
}

/// What a subject says under a pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading<'a> {
    /// The token in place of `{worker}`.
    pub worker: Option<&'a str>,
    /// The token in place of `{rank}`.
    pub rank: Option<&'a str>,
}

// === impl Pattern ===

impl Pattern {
    /// What is subscribed to.
    pub fn filter(&self) -> String {
        let words = self.tokens.iter().map(|token| match token {
            Token::Word(word) => word,
            Token::Any | Token::Worker | Token::Rank => "*",
            Token::Rest => ">",
        });
        words.collect::<Vec<_>>().join(".")
    }

    /// Whether workers are named by the subject.
    pub fn names_workers(&self) -> bool {
        self.tokens.contains(&Token::Worker)
    }

    /// Whether ranks are.
    pub fn names_ranks(&self) -> bool {
        self.tokens.contains(&Token::Rank)
    }

    /// Reads a subject; `None` where it is not one of these.
    pub fn read<'a>(&self, subject: &'a str) -> Option<Reading<'a>> {
        let mut reading = Reading { worker: None, rank: None };
        let mut words = subject.split('.');
        for token in &self.tokens {
            let word = words.next().filter(|word| !word.is_empty())?;
            match token {
                Token::Word(expected) if expected == word => {}
                Token::Word(_) => return None,
                Token::Any => {}
                Token::Rest => return Some(reading),
                Token::Worker => reading.worker = Some(word),
                Token::Rank => reading.rank = Some(word),
            }
        }
        words.next().is_none().then_some(reading)
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() || text.len() > MAX_SUBJECT {
            return Err(PatternError::Length);
        }
        let tokens: Vec<_> = text
            .split('.')
            .map(|word| match word {
                "*" => Ok(Token::Any),
                ">" => Ok(Token::Rest),
                "{worker}" => Ok(Token::Worker),
                "{rank}" => Ok(Token::Rank),
                _ if word.is_empty() || word.contains(['*', '>', '{', '}']) => Err(word),
                _ if word.chars().any(|c| c.is_whitespace() || c.is_control()) => Err(word),
                _ => Ok(Token::Word(word.to_owned())),
            })
            .collect::<Result<_, _>>()
            .map_err(|word| PatternError::Token(word.to_owned()))?;
        if tokens.iter().rev().skip(1).any(|token| *token == Token::Rest) {
            return Err(PatternError::RestInside);
        }
        for (token, name) in [(Token::Worker, "{worker}"), (Token::Rank, "{rank}")] {
            if tokens.iter().filter(|other| **other == token).count() > 1 {
                return Err(PatternError::Twice(name));
            }
        }
        Ok(Self { tokens })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, token) in self.tokens.iter().enumerate() {
            let dot = if i == 0 { "" } else { "." };
            let word = match token {
                Token::Word(word) => word,
                Token::Any => "*",
                Token::Rest => ">",
                Token::Worker => "{worker}",
                Token::Rank => "{rank}",
            };
            write!(f, "{dot}{word}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_says_what_to_subscribe_to_and_reads_subjects() {
        let pattern: Pattern = "kv.{worker}.*.{rank}.>".parse().unwrap();
        assert_eq!((pattern.filter(), pattern.to_string()), ("kv.*.*.*.>".into(), "kv.{worker}.*.{rank}.>".into()));
        let read = |subject| pattern.read(subject).map(|Reading { worker, rank }| (worker.unwrap(), rank.unwrap()));
        assert_eq!(read("kv.pod-a.x.3.y.z"), Some(("pod-a", "3")));
        for other in ["kv.pod-a.x.3", "kw.pod-a.x.3.y", "kv..x.3.y", ""] {
            assert_eq!(read(other), None, "{other}");
        }
        let plain: Pattern = "a.b".parse().unwrap();
        assert_eq!(plain.read("a.b"), Some(Reading { worker: None, rank: None }));
        assert_eq!(plain.read("a.b.c"), None);
        assert!(!plain.names_workers() && !plain.names_ranks());
    }

    #[test]
    fn what_no_server_takes_is_refused() {
        for text in ["", ".", "a..b", "a b", "a.>.b", "a*", "{other}", "a.{rank}.{rank}", "a\n"] {
            assert!(text.parse::<Pattern>().is_err(), "{text}");
        }
        assert!("x".repeat(513).parse::<Pattern>().is_err());
    }
}
