//! Engines found in Kubernetes: pods, or the endpoints of Services, by label selector in one namespace.
//!
//! ```text
//! API server --list, watch--> Follow --objects--> Known --by uid--> engine --settings--> config::Feed --> Roster
//! ```
//!
//! [`Discovery`] runs this for as long as the process does. What holds:
//!
//! - *Identity is a name and a uid.* A worker is called as its pod is; the uid tells it from an earlier pod of that
//!   name. An address is only where it is reached, and an endpoint that belongs to no pod is refused.
//! - *A pod that goes is withdrawn at once*: when it is deleted, when it is told to end (`deletionTimestamp`, or a
//!   terminating endpoint), and when it has ended (`Succeeded`, `Failed`).
//! - *A pod that is not Ready is followed*: Ready is about requests, and what a loading or overloaded engine holds is
//!   known all the same. `discovery.not_ready: withdraw` is for those who want otherwise. A pod without an address has
//!   nothing to follow yet.
//! - *What cannot be asked is not gone.* While the API server does not answer, refuses or has lost its history, the
//!   engines that are known stay. Only a whole list, or an event, takes one away.
//! - Nothing is trusted: annotations are read under the rules of the configuration file, one engine's faults cost that
//!   engine, and every wait has a deadline. A failure is followed by another attempt after a growing pause with jitter.
//!
//! The list is made anew at every `discovery.resync`, and whenever the server says that the version is too old (410
//! Gone); between lists bookmarks keep the version young.

mod engine;
mod follow;
mod known;
mod object;

pub use follow::{Discovery, DiscoveryError};
