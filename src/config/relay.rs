//! The section `relay`: a fleet over NATS.

use super::fault::Placed;
use super::nats::{Nats, StreamName};
use super::read::{Default, Reader, Section};
use super::rule::{Bytes, Flag, Number, Rule, Text, Words};
use super::sections::{as_usize, millis, seconds};
use crate::feed::nats::{ConnectionOptions, NatsEndpoint, NatsEndpointError};
use crate::relay::{Follow, RelayOptions, StreamOptions};

struct Servers;

const STORAGE: Words<bool> = Words(&[("memory", false), ("file", true)]);

impl Rule for Servers {
    type Value = NatsEndpoint;

    fn read(&self, text: &str) -> Result<NatsEndpoint, String> {
        text.parse().map_err(|error: NatsEndpointError| error.to_string())
    }

    fn allowed(&self) -> String {
        "nats://host:port or tls://host:port, several with commas".to_owned()
    }

    fn is_text(&self) -> bool {
        true
    }
}

/// Reads the section. `Some(None)`: this process takes part in no fleet.
pub(super) fn relay(
    reader: &mut Reader<'_>,
    root: &mut Section<'_>,
    nats: Option<&Nats>,
) -> Option<Option<RelayOptions>> {
    let mut section = root.section(reader, "relay");
    let servers = section.optional(reader, "servers", &Servers);
    let publish = section.or(reader, "publish", &Flag, Default::Text("true"));
    let follow = section.list(reader, "follow", &Text { min: 1, max: 512 }, "");
    let stream = section.or(reader, "stream", &StreamName, Default::Text("KVTAP"));
    let max_age = section.or(reader, "stream_max_age", &seconds(10, 7 * 86_400), Default::Text("10m"));
    let bytes = Bytes { min: 1 << 20, max: 1 << 40 };
    let max_bytes = section.or(reader, "stream_max_bytes", &bytes, Default::Text("1GiB"));
    let servers_rule = Number { min: 1, max: 5, unit: "servers" };
    let replicas = section.or(reader, "stream_replicas", &servers_rule, Default::Text("1"));
    let storage = section.or(reader, "stream_storage", &STORAGE, Default::Text("memory"));
    let announce = section.or(reader, "announce_interval", &millis(100, 60_000), Default::Text("2s"));
    let patience = section.or(reader, "owner_timeout", &millis(300, 600_000), Default::Text("6s"));
    let grace = section.or(reader, "owner_grace", &seconds(0, 86_400), Default::Text("1m"));
    let jitter = section.or(reader, "join_jitter", &millis(0, 60_000), Default::Text("500ms"));
    let joins = section.or(reader, "joins", &Number { min: 1, max: 256, unit: "snapshots" }, Default::Text("4"));
    let keep = section.or(reader, "keep_snapshots", &Flag, Default::Text("true"));
    let ranks = Number { min: 1, max: 1 << 20, unit: "ranks" };
    let max_ranks = section.or(reader, "max_ranks", &ranks, Default::Text("4096"));
    let queue = Number { min: 16, max: 1 << 20, unit: "messages" };
    let queue = section.or(reader, "queue_messages", &queue, Default::Text("8192"));
    if let (Some(announce), Some(patience)) = (&announce, &patience)
        && patience.value < announce.value.saturating_mul(2)
    {
        let what = "is shorter than two announcements (relay.announce_interval): owners would seem dead";
        reader.fault(&patience.place, &section.path_of("owner_timeout"), what);
    }
    let path = section.path_of("servers");
    section.finish(reader);
    let stream = StreamOptions {
        name: stream?.value,
        max_age: max_age?.value,
        max_bytes: i64::try_from(max_bytes?.value).unwrap_or(i64::MAX),
        replicas: as_usize(replicas?.value),
        on_disk: storage?.value,
    };
    let Some(Placed { value: servers, place }) = servers else { return Some(None) };
    if !servers.is_local() && !servers.is_tls() {
        let what = format!("{servers} is neither local nor tls://: whoever is on the way can read and forge it");
        reader.warn(&place, &path, what);
    }
    let nats = nats?;
    let defaults = ConnectionOptions::new(servers);
    let models: Vec<String> = follow.into_iter().map(|model| model.value).collect();
    let follow = match models.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] | ["*"] => Follow::Everybody,
        ["none"] => Follow::Nobody,
        _ => Follow::Models(models),
    };
    Some(Some(RelayOptions {
        connection: ConnectionOptions {
            security: nats.security.clone(),
            ping_interval: nats.ping_interval,
            ..defaults
        },
        publish: publish?.value,
        follow,
        announce: announce?.value,
        patience: patience?.value,
        grace: grace?.value,
        jitter: jitter?.value,
        joins: as_usize(joins?.value),
        // What came after a snapshot must still be there when the next one is put away.
        keep: keep?.value.then(|| stream.max_age / 2),
        max_ranks: as_usize(max_ranks?.value),
        queue: as_usize(queue?.value),
        stream,
    }))
}
