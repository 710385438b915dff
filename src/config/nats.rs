//! The section `nats`, and what a feed says that comes over NATS.

use std::path::PathBuf;
use std::time::Duration;

use super::fault::Placed;
use super::read::{Default, Reader, Section};
use super::rule::{Number, Rule, Text, Time};
use crate::feed::nats::{NatsEndpoint, Pattern, PatternError, Security};

/// How NATS servers are reached, whoever's they are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nats {
    /// Who we are, and whom we believe.
    pub security: Security,
    /// How often a silent connection is tested.
    pub ping_interval: Duration,
}

/// What a feed says beside its endpoint, where that is NATS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subscription {
    /// The servers.
    pub endpoint: NatsEndpoint,
    /// What is subscribed to.
    pub subject: Pattern,
    /// The JetStream stream that is read instead.
    pub stream: Option<String>,
    /// How many ranks may appear.
    pub max_ranks: usize,
    /// How long one that appeared may be silent.
    pub silence_grace: Option<Duration>,
}

/// Ranks that one subscription may bring, where nothing is said.
const MAX_RANKS: usize = 1024;

pub(super) const PATH: Text = Text { min: 1, max: 4096 };

struct Subject;

pub(super) struct StreamName;

/// The keys of a feed that are about NATS, as they were read.
pub(super) struct Keys {
    subject: Option<Placed<Pattern>>,
    stream: Option<Placed<String>>,
    max_ranks: Option<Placed<u64>>,
    silence_grace: Option<Placed<Duration>>,
}

// === the rules ===

impl Rule for Subject {
    type Value = Pattern;

    fn read(&self, text: &str) -> Result<Pattern, String> {
        text.parse().map_err(|error: PatternError| error.to_string())
    }

    fn allowed(&self) -> String {
        "a NATS subject; `*`, `>`, `{worker}` and `{rank}` may stand for tokens".to_owned()
    }

    fn is_text(&self) -> bool {
        true
    }
}

impl Rule for StreamName {
    type Value = String;

    fn read(&self, text: &str) -> Result<String, String> {
        let fits = |c: char| c.is_ascii_graphic() && !matches!(c, '.' | '*' | '>' | '/' | '\\');
        if !text.is_empty() && text.len() <= 255 && text.chars().all(fits) {
            return Ok(text.to_owned());
        }
        Err(format!("expected {}, not `{text}`", self.allowed()))
    }

    fn allowed(&self) -> String {
        "a JetStream stream's name".to_owned()
    }

    fn is_text(&self) -> bool {
        true
    }
}

// === impl Nats ===

/// Reads the section.
pub(super) fn nats(reader: &mut Reader<'_>, root: &mut Section<'_>) -> Option<Nats> {
    let mut section = root.section(reader, "nats");
    let credentials = section.optional(reader, "credentials", &PATH);
    let nkey = section.optional(reader, "nkey", &PATH);
    let ca = section.optional(reader, "ca", &PATH);
    let certificate = section.optional(reader, "certificate", &PATH);
    let key = section.optional(reader, "key", &PATH);
    let rule = Time { min: Duration::from_millis(100), max: Duration::from_secs(120) };
    let ping_interval = section.or(reader, "ping_interval", &rule, Default::Text("2s"));
    if let (Some(_), Some(nkey)) = (&credentials, &nkey) {
        let what = "nats.credentials holds a key already: one of the two";
        reader.fault(&nkey.place, &section.path_of("nkey"), what);
    }
    match (&certificate, &key) {
        (Some(Placed { place, .. }), None) => {
            reader.fault(place, &section.path_of("certificate"), "needs nats.key beside it");
        }
        (None, Some(Placed { place, .. })) => {
            reader.fault(place, &section.path_of("key"), "needs nats.certificate beside it");
        }
        _ => {}
    }
    section.finish(reader);
    let path = |text: Option<Placed<String>>| text.map(|text| PathBuf::from(text.value));
    let security = Security {
        credentials: path(credentials),
        nkey: path(nkey),
        ca: path(ca),
        identity: path(certificate).zip(path(key)),
    };
    Some(Nats { security, ping_interval: ping_interval?.value })
}

// === impl Keys ===

impl Keys {
    pub(super) fn read(reader: &mut Reader<'_>, section: &mut Section<'_>) -> Self {
        let ranks = Number { min: 1, max: 65_536, unit: "ranks" };
        let silence = Time { min: Duration::from_secs(1), max: Duration::from_secs(7 * 86_400) };
        Self {
            subject: section.optional(reader, "subject", &Subject),
            stream: section.optional(reader, "stream", &StreamName),
            max_ranks: section.optional(reader, "max_ranks", &ranks),
            silence_grace: section.optional(reader, "silence_grace", &silence),
        }
    }

    /// Another endpoint has nothing of this.
    pub(super) fn refuse(&self, reader: &mut Reader<'_>, section: &Section<'_>) {
        let places = [
            ("subject", self.subject.as_ref().map(|placed| &placed.place)),
            ("stream", self.stream.as_ref().map(|placed| &placed.place)),
            ("max_ranks", self.max_ranks.as_ref().map(|placed| &placed.place)),
            ("silence_grace", self.silence_grace.as_ref().map(|placed| &placed.place)),
        ];
        for (name, place) in places {
            if let Some(place) = place {
                reader.fault(place, &section.path_of(name), "is for feeds over NATS: `endpoint: nats://host:port`");
            }
        }
    }

    /// What the feed says of its subscription; a fault where it does not say to what.
    pub(super) fn subscription(
        self,
        reader: &mut Reader<'_>,
        section: &Section<'_>,
        endpoint: &Placed<NatsEndpoint>,
    ) -> Option<Subscription> {
        let Some(subject) = self.subject else {
            reader.fault(&endpoint.place, &section.path_of("subject"), "is required where the endpoint is NATS");
            return None;
        };
        Some(Subscription {
            endpoint: endpoint.value.clone(),
            subject: subject.value,
            stream: self.stream.map(|stream| stream.value),
            max_ranks: self.max_ranks.map_or(MAX_RANKS, |ranks| super::sections::as_usize(ranks.value)),
            silence_grace: self.silence_grace.map(|grace| grace.value),
        })
    }
}
