//! What comes out of a NATS system, from a subscription or from a stream: messages, and whether any may be missed.

use std::convert::Infallible;

use async_nats::{Client, Event, Message, ServerError, Subscriber};
use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::connect::Connection;
use super::ledger::Name;
use super::plane::PlaneOptions;
use super::stream::Reader;
use crate::backoff::Backoff;

/// Messages that may wait between the task that reads a stream and the one that hands them out: the server waits then.
const READ_AHEAD: usize = 256;

/// What comes.
#[derive(Debug)]
pub(super) enum Item {
    /// From here on nothing is missed.
    Up,
    /// The same, of the stream of this name.
    Reading(Name, Since),
    /// From here on everything is missed, for this reason.
    Down(String),
    /// An attempt to connect failed.
    Trouble(String),
    /// The client had no room for a message.
    Overrun,
    /// A message; by its stream and its number from 0 there, where it comes from one.
    Message(Box<Message>, Option<(Name, u64)>),
}

/// What has become of a stream since it was last read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Since {
    /// It goes on where it was left, or is read for the first time.
    GoesOn,
    /// It has dropped messages that were not read yet.
    Trimmed,
    /// Another stream has its place.
    Replaced,
}

/// Where items come from.
#[derive(Debug)]
pub(super) struct Link {
    items: mpsc::Receiver<Item>,
    task: tokio::task::JoinHandle<Infallible>,
}

// === impl Link ===

impl Link {
    /// Starts to listen, for as long as the link lives.
    pub(super) fn open(options: &PlaneOptions) -> Self {
        let (told, items) = mpsc::channel(READ_AHEAD);
        let listener = Listener {
            options: options.clone(),
            backoff: Backoff::new(options.connection.first_retry, options.connection.longest_retry),
            reader: options.stream.clone().map(Reader::new),
            told,
        };
        Self { items, task: tokio::spawn(listener.run()) }
    }

    /// The next item. Can be abandoned at any point. It never ends by itself.
    pub(super) async fn next(&mut self) -> Item {
        match self.items.recv().await {
            Some(item) => item,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Listener {
    options: PlaneOptions,
    backoff: Backoff,
    reader: Option<Reader>,
    told: mpsc::Sender<Item>,
}

impl Listener {
    async fn run(mut self) -> Infallible {
        loop {
            let ended = match self.options.connection.connect(&self.options.client_name()).await {
                Ok(connection) if self.reader.is_some() => self.read(connection).await,
                Ok(connection) => self.subscribe(connection).await,
                Err(error) => error.to_string(),
            };
            self.tell(Item::Down(ended)).await;
            sleep(self.backoff.wait()).await;
        }
    }

    async fn tell(&self, item: Item) {
        // The link's owner has gone: its task is about to be aborted.
        let _ = self.told.send(item).await;
    }

    /// Says why it ended.
    async fn subscribe(&mut self, mut connection: Connection) -> String {
        let client = connection.client.clone();
        let mut subscriber = match client.subscribe(self.options.pattern.filter()).await {
            Ok(subscriber) => subscriber,
            Err(error) => return error.to_string(),
        };
        let mut proof = None;
        loop {
            tokio::select! {
                biased;
                event = connection.events.recv() => match event {
                    Some(event) => match happened(event) {
                        Happened::Item(Item::Up) => {
                            self.backoff.reset();
                            proof = match prove(&client, self.options.pattern.filter()).await {
                                Ok(proof) => Some(proof),
                                Err(why) => return why,
                            };
                        }
                        Happened::Item(item) => {
                            if matches!(item, Item::Down(_)) {
                                proof = None;
                            }
                            self.tell(item).await;
                        }
                        Happened::Nothing => {}
                        Happened::End(why) => return why,
                    },
                    None => return "the client ended".to_owned(),
                },
                () = proven(&mut proof) => {
                    proof = None;
                    self.tell(Item::Up).await;
                }
                message = next(&mut subscriber) => match message {
                    Some(message) => {
                        if proof.take().is_some() {
                            self.tell(Item::Up).await;
                        }
                        self.tell(Item::Message(Box::new(message), None)).await;
                    }
                    None => return "the subscription ended".to_owned(),
                },
            }
        }
    }

    async fn read(&mut self, mut connection: Connection) -> String {
        let Some(reader) = &mut self.reader else { return String::new() };
        loop {
            let (ended, is_usable) = tokio::select! {
                biased;
                ended = reader.read(connection.client.clone(), &self.told) => (ended, true),
                ended = closed(&mut connection.events) => (ended, false),
            };
            if reader.has_read() {
                self.backoff.reset();
            }
            if !is_usable {
                return ended;
            }
            let _ = self.told.send(Item::Down(ended)).await;
            sleep(self.backoff.wait()).await;
        }
    }
}

/// Asks the server for a sign that it has read the subscription: until then a message passes us by, and who is told
/// that we listen would believe that none was there. The client says `Connected` before it has written a word of it,
/// and its `flush` waits for our side alone; the end of a second subscription waits for the server's `PONG`, and on
/// the same subject it needs no permission besides.
async fn prove(client: &Client, filter: String) -> Result<Subscriber, String> {
    let mut second = client.subscribe(filter).await.map_err(|error| error.to_string())?;
    second.drain().await.map_err(|error| error.to_string())?;
    Ok(second)
}

/// Returns once the sign that was asked for is there.
async fn proven(proof: &mut Option<Subscriber>) {
    match proof {
        Some(second) => while second.next().await.is_some() {},
        None => std::future::pending().await,
    }
}

async fn next(subscriber: &mut Subscriber) -> Option<Message> {
    subscriber.next().await
}

enum Happened {
    Item(Item),
    Nothing,
    /// The client is of no use any more.
    End(String),
}

fn happened(event: Event) -> Happened {
    match event {
        Event::Connected => Happened::Item(Item::Up),
        Event::Disconnected => Happened::Item(Item::Down("the connection ended".to_owned())),
        Event::SlowConsumer(_) | Event::ServerError(ServerError::SlowConsumer(_)) => Happened::Item(Item::Overrun),
        Event::Closed => Happened::End("the connection was closed".to_owned()),
        Event::ServerError(ServerError::AuthorizationViolation) => {
            Happened::Item(Item::Down("the server does not let us in".to_owned()))
        }
        // Of a subscription that is not allowed nothing ever comes; the permission may.
        Event::ServerError(ServerError::Other(what)) if what.to_ascii_lowercase().contains("permissions violation") => {
            Happened::End("the server does not allow the subscription".to_owned())
        }
        Event::ServerError(error) => Happened::Item(Item::Down(error.to_string())),
        Event::ClientError(error) => Happened::Item(Item::Trouble(error.to_string())),
        Event::LameDuckMode | Event::Draining => Happened::Nothing,
    }
}

/// Returns once the connection is gone: a stream's reader would notice only when it misses the server's heartbeats.
async fn closed(events: &mut mpsc::Receiver<Event>) -> String {
    loop {
        match events.recv().await {
            None => return "the client ended".to_owned(),
            Some(Event::Disconnected) => return "the connection ended".to_owned(),
            Some(event) => {
                if let Happened::End(why) = happened(event) {
                    return why;
                }
            }
        }
    }
}
