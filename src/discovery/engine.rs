//! From a sighting to the feeds of an engine: annotations first, then what the configuration says for all.

use std::net::IpAddr;

use super::object::{PREFIX, Sighting};
use crate::config::{self, Faults, Feed, Nats, Setting, Tuning};
use crate::feed::Snapshots;
use crate::roster::Wanted;

/// Annotations that say the same as a setting of `feeds`.
const SAME: [(&str, &str); 7] = [
    ("model", "model"),
    ("engine", "engine"),
    ("ranks", "ranks"),
    ("first-rank", "first_rank"),
    ("block-size", "block_size"),
    ("topic", "topic"),
    ("copies", "copies"),
];

/// Annotations that make up addresses.
const PORT: &str = "port";
const REPLAY_PORT: &str = "replay-port";
const HTTP_PORT: &str = "http-port";
const EVENTS_PATH: &str = "events-path";

/// What becomes of a sighting.
#[derive(Debug)]
pub(super) enum Found {
    /// Its feeds.
    Engine(Wanted),
    /// There is nothing to follow yet, or not now.
    Waiting,
    /// It cannot be used: why, in one line.
    Refused(String),
}

/// What a sighting comes to under these settings.
pub(super) fn find(
    sighting: &Sighting,
    discovery: &config::Discovery,
    defaults: &Tuning,
    nats: &Nats,
    snapshots: Option<&Snapshots>,
) -> Found {
    if !sighting.ready && discovery.not_ready == config::NotReady::Withdraw {
        return Found::Waiting;
    }
    let Some(address) = &sighting.address else { return Found::Waiting };
    let origin = format!("pod {}/{}", sighting.namespace, sighting.name);
    let read = settings(sighting, address, discovery).and_then(|settings| {
        let (feed, _) = Feed::from_settings(settings, &origin, defaults).map_err(|faults| one_line(&faults))?;
        feed.wanted(origin.clone(), &sighting.uid, nats, snapshots).map_err(|error| error.to_string())
    });
    match read {
        Ok(wanted) => Found::Engine(wanted),
        Err(what) if what.starts_with(&origin) => Found::Refused(what),
        Err(what) => Found::Refused(format!("{origin}: {what}")),
    }
}

fn settings(
    sighting: &Sighting,
    address: &str,
    discovery: &config::Discovery,
) -> Result<Vec<(String, Setting)>, String> {
    // An address is put into endpoints, so it has to be one.
    let address: IpAddr = address.parse().map_err(|_| "its address is no IP address".to_owned())?;
    let host = match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    };
    let mut settings = Vec::new();
    let mut set = |key: &str, value: String| settings.push((key.to_owned(), Setting::One(value)));
    set("worker", sighting.name.clone());
    for (annotation, key) in SAME {
        if let Some(value) = sighting.annotations.get(annotation) {
            set(key, value.clone());
        } else if let Some(value) = for_all(key, discovery) {
            set(key, value);
        }
    }
    let port = |annotation: &str, for_all: Option<u16>| match sighting.annotations.get(annotation) {
        Some(text) => match text.parse::<u16>() {
            Ok(port) if port > 0 => Ok(Some(port)),
            _ => Err(format!("{PREFIX}{annotation}: expected a port, 1 to 65535, not `{}`", shown(text))),
        },
        None => Ok(for_all),
    };
    let events = port(PORT, Some(discovery.port))?.unwrap_or(discovery.port);
    match sighting.annotations.get(EVENTS_PATH) {
        Some(path) if path.starts_with('/') => set("endpoint", format!("http://{host}:{events}{path}")),
        Some(path) => return Err(format!("{PREFIX}{EVENTS_PATH}: expected a path from / on, not `{}`", shown(path))),
        None => {
            set("endpoint", format!("tcp://{host}:{events}"));
            if let Some(replay) = port(REPLAY_PORT, discovery.replay_port)? {
                set("replay", format!("tcp://{host}:{replay}"));
            }
        }
    }
    if let Some(http) = port(HTTP_PORT, discovery.http_port)? {
        set("address", format!("{host}:{http}"));
    }
    settings.push(("names".to_owned(), Setting::List(vec![format!("{}/{}", sighting.namespace, sighting.name)])));
    let known = |key: &str| {
        SAME.iter().any(|(annotation, _)| *annotation == key)
            || [PORT, REPLAY_PORT, HTTP_PORT, EVENTS_PATH].contains(&key)
    };
    if let Some(unknown) = sighting.annotations.keys().find(|key| !known(key)) {
        return Err(format!("{PREFIX}{}: no such annotation", shown(unknown)));
    }
    Ok(settings)
}

/// What the configuration says of engines whose annotations do not.
fn for_all(key: &str, discovery: &config::Discovery) -> Option<String> {
    match key {
        "model" => discovery.model.clone(),
        "engine" => Some(discovery.engine.name().to_owned()),
        "ranks" => Some(discovery.ranks.to_string()),
        _ => None,
    }
}

/// Faults as one line, as logs and lists want them.
fn one_line(faults: &Faults) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Of text from outside, as much as fits a line.
fn shown(text: &str) -> String {
    text.chars().take(64).map(|c| if c.is_control() { '?' } else { c }).collect()
}
