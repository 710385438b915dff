//! Which feeds run, decided at run time: who wants which, who gets it, and what is done about it.
//!
//! ```text
//! configuration file --set------> |                |            | spawn, stop
//! Admin calls --------put, remove>| what each      | --resolve->|------------> feeds
//! discovery ----------set-------> | source wants   |            |
//!                                 '----------------'            '-> Standing: status, metrics, dump
//! ```
//!
//! A source says what it wants in [`Wanted`]s: the feeds of one engine. [`Roster`] brings what runs in line with what
//! is wanted:
//!
//! - A feed that is wanted as it runs is not touched: its connection, its epoch and its blocks stay, also where
//!   another source wants the very same instead.
//! - One whose settings changed ends and begins anew, under a new registration with the index. Where it takes
//!   snapshots it takes one more and begins with that.
//! - One that nobody wants any more leaves board and index at once, before anything else is waited for; then its
//!   snapshot goes too.
//!
//! Sources may disagree. *A worker is one source's*: the configuration file's before the Admin calls', those before
//! discovery's. What the others want under that name is set aside for as long as this is so, and comes back when it is
//! not; the same goes for a socket to bind or a URL to poll, which only one feed can have. What is set aside, and what
//! could not be begun, stands in the [`Standing`], which the status page, the metrics and the Admin dump read, and in
//! the log.
//!
//! Changes are made one after another, each to its end, also where whoever asked for it has gone away meanwhile. What
//! could not be begun is tried again with each change, and by itself ever more seldom, up to once a minute.

mod reconcile;
mod resolve;
mod retry;
mod standing;
mod wanted;

pub use reconcile::{Changes, Put, Roster};
pub use standing::{EntryReport, Picture, Place, Standing};
pub use wanted::{Plan, Source, Wanted};
