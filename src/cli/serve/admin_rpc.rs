//! What the Admin service is told, in the words of the configuration.

use std::sync::Arc;

use tokio::sync::watch;

use crate::config::{Config, Feed, Setting};
use crate::feed::Snapshots;
use crate::proto::v1::FeedSpec;
use crate::roster::Wanted;
use crate::serve::ReadFeed;

/// Where a feed stands that a call has put.
const ORIGIN: &str = "a call";

/// Reads feeds under the rules of the file, with the defaults of the one that is in force.
pub(super) fn reader(config: watch::Receiver<Arc<Config>>, snapshots: Option<Snapshots>) -> Arc<ReadFeed> {
    Arc::new(move |spec| {
        let config = Arc::clone(&config.borrow());
        read(spec, &config, snapshots.as_ref())
    })
}

fn read(spec: FeedSpec, config: &Config, snapshots: Option<&Snapshots>) -> Result<(Wanted, Vec<String>), String> {
    let (feed, warnings) =
        Feed::from_settings(settings(spec), "feed", &config.defaults).map_err(|faults| faults.to_string())?;
    let wanted =
        feed.wanted(ORIGIN.to_owned(), "", &config.nats, snapshots).map_err(|error| format!("feed: {error}"))?;
    Ok((wanted, warnings.iter().map(ToString::to_string).collect()))
}

/// What is set in the message; the rest is left to the defaults. A message never holds a setting twice: the names of
/// `tuning` that are fields of their own are refused by what the fields are.
fn settings(spec: FeedSpec) -> Vec<(String, Setting)> {
    // Taken apart whole, so that no field is forgotten.
    let FeedSpec {
        worker,
        model,
        engine,
        endpoint,
        replay,
        address,
        names,
        topic,
        ranks,
        first_rank,
        bind,
        block_size,
        copies,
        tuning,
    } = spec;
    let texts = [
        ("worker", worker),
        ("model", model),
        ("engine", engine),
        ("endpoint", endpoint),
        ("replay", replay),
        ("address", address),
        ("topic", topic),
        ("copies", copies),
    ];
    let numbers = [("ranks", ranks), ("first_rank", first_rank), ("block_size", block_size)];
    let mut settings: Vec<(String, Setting)> = Vec::new();
    let texts = texts.into_iter().filter(|(_, text)| !text.is_empty());
    settings.extend(texts.map(|(key, text)| (key.to_owned(), Setting::One(text))));
    let numbers = numbers.into_iter().filter(|(_, number)| *number != 0);
    settings.extend(numbers.map(|(key, number)| (key.to_owned(), Setting::One(number.to_string()))));
    if bind {
        settings.push(("bind".to_owned(), Setting::one("true")));
    }
    if !names.is_empty() {
        settings.push(("names".to_owned(), Setting::List(names)));
    }
    // A field comes first, so it is the one that counts; `tuning` may only name what is none.
    for (key, value) in tuning {
        let key = if FIELDS.contains(&key.as_str()) { format!("tuning.{key}") } else { key };
        settings.push((key, Setting::One(value)));
    }
    settings
}

/// What has a field of its own.
const FIELDS: [&str; 13] = [
    "worker",
    "model",
    "engine",
    "endpoint",
    "replay",
    "address",
    "names",
    "topic",
    "ranks",
    "first_rank",
    "bind",
    "block_size",
    "copies",
];
