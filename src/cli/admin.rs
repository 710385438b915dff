//! `kvtap admin`: feeds of a running server, added, changed, removed and cleared by call.

use std::collections::BTreeMap;
use std::io::{self, Write};

use clap::Subcommand;
use serde::Serialize;

use super::client::{Proof, Server};
use super::table::{Align, Table};
use super::{Failure, Outcome};
use crate::client::Connection;
use crate::proto::v1::admin_service_client::AdminServiceClient;
use crate::proto::v1::put_feed_response::Outcome as PutOutcome;
use crate::proto::v1::{self, FeedSpec};
use crate::roster::EntryReport;
use crate::serve::admin_rpc::entry_from_proto;

/// The arguments of `kvtap admin`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The server's Admin sockets, as `admin_rpc.listen` has them: HOST:PORT, http://HOST:PORT, https://HOST:PORT or
    /// unix:///PATH.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9402", global = true)]
    server: String,
    #[command(flatten)]
    proof: Proof,
    /// Print one JSON object.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Clone, Debug, Subcommand)]
enum Verb {
    /// Add the feeds of an engine, or change those that were added so. They last until the server ends.
    Add(Box<Add>),
    /// Take back what was added for a worker.
    Remove {
        /// The worker's name.
        #[arg(long)]
        worker: String,
    },
    /// Drop what is held of a worker, and follow its feeds anew.
    Clear {
        /// The worker's name.
        #[arg(long)]
        worker: String,
        /// Only this data-parallel rank; may be repeated.
        #[arg(long = "rank", value_name = "N")]
        ranks: Vec<u32>,
    },
    /// List which feeds are wanted, by which source, and what has become of each.
    Dump,
}

/// The feeds of one engine: docs/config.md explains each setting, under `feeds`.
#[derive(Clone, Debug, clap::Args)]
struct Add {
    /// What routers call the worker.
    #[arg(long)]
    worker: String,
    /// The model it serves.
    #[arg(long)]
    model: String,
    /// vllm, sglang, trtllm or auto.
    #[arg(long, default_value = "auto")]
    engine: String,
    /// Rank 0's event socket, or TensorRT-LLM's event URL.
    #[arg(long)]
    endpoint: String,
    /// Rank 0's replay socket.
    #[arg(long, default_value = "", hide_default_value = true)]
    replay: String,
    /// The address a router reaches the worker at.
    #[arg(long, default_value = "", hide_default_value = true)]
    address: String,
    /// A further name it may be asked for by; may be repeated.
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,
    /// Take messages whose topic begins so.
    #[arg(long, default_value = "", hide_default_value = true)]
    topic: String,
    /// How many data-parallel ranks there are.
    #[arg(long, default_value_t = 1)]
    ranks: u32,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    first_rank: u32,
    /// The engine connects: bind the event socket.
    #[arg(long)]
    bind: bool,
    /// Tokens a block; without it, learned from events.
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    block_size: u32,
    /// Whether a block that is announced twice counts twice: count or set.
    #[arg(long, default_value = "count")]
    copies: String,
    /// A setting of `defaults` for this engine alone, such as disconnect_grace=5s; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = pair)]
    tuning: Vec<(String, String)>,
}

/// The connection, and how answers are wanted.
struct Asking {
    server: Server,
    client: AdminServiceClient<Connection>,
    json: bool,
}

#[derive(Serialize)]
struct Added {
    outcome: &'static str,
    entry: Option<EntryReport>,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct Removed {
    removed: bool,
    remaining: Vec<EntryReport>,
}

#[derive(Serialize)]
struct Cleared {
    worker: String,
    ranks: Vec<u32>,
}

#[derive(Serialize)]
struct Dumped {
    entries: Vec<EntryReport>,
}

/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 64 << 20;

/// Asks, and prints what came of it.
///
/// # Errors
/// [`Failure::Usage`] where an address or a pair is none; [`Failure::Failed`] where the server cannot be reached,
/// refuses, or has the feed set aside or failed.
pub async fn run(args: Args) -> Outcome {
    let server = Server::at(args.server, args.proof);
    let client = AdminServiceClient::new(server.channel().await?).max_decoding_message_size(MAX_ANSWER);
    let asking = Asking { server, client, json: args.json };
    match args.verb {
        Verb::Add(add) => asking.put(*add).await,
        Verb::Remove { worker } => asking.remove(worker).await,
        Verb::Clear { worker, ranks } => asking.clear(worker, ranks).await,
        Verb::Dump => asking.dump().await,
    }
}

// === impl Asking ===

impl Asking {
    async fn put(mut self, add: Add) -> Outcome {
        let request = v1::PutFeedRequest { feed: Some(add.spec()?) };
        let response = self.client.put_feed(request).await.map_err(|status| self.server.refused(&status))?.into_inner();
        let outcome = match response.outcome() {
            PutOutcome::Added => "added",
            PutOutcome::Changed => "changed",
            PutOutcome::Unchanged => "unchanged",
            PutOutcome::Unspecified => return Err(unknown("the server says what this program does not know")),
        };
        let entry = response.entry.map(entry_from_proto).transpose().map_err(unknown)?;
        let added = Added { outcome, entry, warnings: response.warnings };
        if self.json {
            print_json(&added)?;
        } else {
            for warning in &added.warnings {
                eprintln!("{warning}");
            }
            let place = added.entry.as_ref().map_or("gone", |entry| entry.place.name());
            say(&format!("{outcome}, {place}"))?;
        }
        match added.entry {
            Some(entry) if !entry.why.is_empty() => {
                Err(Failure::Failed(format!("{} is {}: {}", entry.worker, entry.place.name(), entry.why)))
            }
            _ => Ok(()),
        }
    }

    async fn remove(mut self, worker: String) -> Outcome {
        let request = v1::RemoveFeedRequest { worker };
        let response =
            self.client.remove_feed(request).await.map_err(|status| self.server.refused(&status))?.into_inner();
        let removed = Removed { removed: response.removed, remaining: entries(response.remaining)? };
        if self.json {
            return print_json(&removed);
        }
        say(if removed.removed { "removed" } else { "was not there" })?;
        for entry in &removed.remaining {
            say(&format!("still wanted by {} ({})", entry.source, entry.origin))?;
        }
        Ok(())
    }

    async fn clear(mut self, worker: String, ranks: Vec<u32>) -> Outcome {
        let request = v1::ClearWorkerRequest { worker: worker.clone(), ranks };
        let response =
            self.client.clear_worker(request).await.map_err(|status| self.server.refused(&status))?.into_inner();
        let cleared = Cleared { worker, ranks: response.ranks };
        if self.json {
            return print_json(&cleared);
        }
        say(&format!("cleared {}", listed(&cleared.ranks)))
    }

    async fn dump(mut self) -> Outcome {
        let response =
            self.client.dump(v1::DumpRequest {}).await.map_err(|status| self.server.refused(&status))?.into_inner();
        let dumped = Dumped { entries: entries(response.entries)? };
        if self.json {
            return print_json(&dumped);
        }
        let mut table = Table::new([
            ("WORKER", Align::Left),
            ("SOURCE", Align::Left),
            ("PLACE", Align::Left),
            ("MODEL", Align::Left),
            ("ENGINE", Align::Left),
            ("RANKS", Align::Left),
            ("ENDPOINT", Align::Left),
            ("REPLAY", Align::Left),
            ("ORIGIN", Align::Left),
            ("WHY", Align::Left),
        ]);
        for entry in dumped.entries {
            table.row([
                entry.worker,
                entry.source.name().to_owned(),
                entry.place.name().to_owned(),
                entry.model,
                entry.engine,
                listed(&entry.ranks),
                entry.endpoint,
                entry.replay_endpoint.unwrap_or_else(|| "-".to_owned()),
                entry.origin,
                entry.why,
            ]);
        }
        let mut out = io::stdout().lock();
        table.print(&mut out)?;
        Ok(out.flush()?)
    }
}

fn entries(entries: Vec<v1::FeedEntry>) -> Result<Vec<EntryReport>, Failure> {
    entries.into_iter().map(entry_from_proto).collect::<Result<_, _>>().map_err(unknown)
}

fn unknown(what: impl Into<String>) -> Failure {
    Failure::Failed(what.into())
}

fn listed(ranks: &[u32]) -> String {
    ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn say(line: &str) -> Outcome {
    Ok(writeln!(io::stdout(), "{line}")?)
}

fn print_json(answer: &impl Serialize) -> Outcome {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, answer).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()));
    pair.ok_or_else(|| format!("`{text}` is not KEY=VALUE"))
}

// === impl Add ===

impl Add {
    fn spec(self) -> Result<FeedSpec, Failure> {
        let mut tuning = BTreeMap::new();
        for (key, value) in self.tuning {
            if tuning.insert(key.clone(), value).is_some() {
                return Err(Failure::Usage(format!("--set: {key} is given twice")));
            }
        }
        Ok(FeedSpec {
            worker: self.worker,
            model: self.model,
            engine: self.engine,
            endpoint: self.endpoint,
            replay: self.replay,
            address: self.address,
            names: self.names,
            topic: self.topic,
            ranks: self.ranks,
            first_rank: self.first_rank,
            bind: self.bind,
            block_size: self.block_size,
            copies: self.copies,
            tuning,
        })
    }
}
