//! `Watch`: the normalized feed to whoever keeps an index of their own.
//!
//! ```text
//! index tap --Listener--> Hub --History--> Watcher --WatchResponse--> stream
//!                          ^ board: names, states        ^ Index::snapshot
//! ```
//!
//! The same hub remembers what was removed (`removals`), so that a missing block can be explained.
//!
//! One [`Hub`] listens to the index, whatever the number of watchers, and keeps what has happened, in order and bounded
//! ([`history`]). A [`watcher`] tells snapshots and then reads on in the history from where it stood before them; what a
//! snapshot includes already is left out by its number.
//!
//! What holds:
//!
//! * A watcher that does not read costs a position in the history. Once too much lies between that and the end it is
//!   cut, early enough that its cursor is still known; nothing else waits for it.
//! * A cursor is a position in one hub's history, for one filter. Another process, another filter, or a history that has
//!   gone on too far: new snapshots, and the watch says so.
//! * Until somebody has watched, nothing is kept for watchers.

mod history;
mod hub;
mod removals;
mod service;
mod watcher;

pub(super) use hub::{Hub, Seat};
pub(super) use removals::Found;
pub(super) use service::Watches;
pub(super) use watcher::{Filter, Watcher};
