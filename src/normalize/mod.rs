//! Engine events become index transactions.
//!
//! ```text
//! wire::Batch --Normalizer::apply--> index::Tx: store / store_known / hold / remove / clear, one commit a batch
//! ```
//!
//! One [`Normalizer`] stands between one rank's decoded batches and its [`RankWriter`](crate::index::RankWriter). It knows what the index
//! must not know: how engines phrase things.
//!
//! * Seeds: LoRA name (number only without a name) and cache salt become the seed that content hashes are made
//!   under. A salt travels only with the first block of a prompt; later blocks inherit their parent's seed.
//! * Extra keys are brought into canonical form and hashed after a block's tokens (`keys`).
//! * The grid is learned from the first dense store on the device and refused where a later one (or the configuration)
//!   disagrees; both numbers are kept for whoever asks ([`Normalizer::conflict`]). What lies elsewhere may be cut in
//!   another way: its grid holds until the device shows one.
//! * Groups: only those whose blocks mean a present prefix name content; the others are held by name and cut
//!   matches (`groups`).
//! * Orphans wait, bounded, and never become roots (`orphans`); whether a prompt is among them can be asked
//!   ([`WaitingRoom`]).
//! * Engines whose names are not chained are found out and read with suspicion (`naming`).
//! * What was learned can be taken out and put back (`memory`), so that a restart need not learn it again.
//!
//! Invariant: what the index holds for the rank is never more than what the engine announced and has not taken
//! back. Whatever cannot be placed is dropped and counted by reason ([`Normalizer::dropped`]).

mod groups;
mod keys;
mod memory;
mod naming;
mod orphans;
mod reason;
mod store;
mod waiting;
mod worker;

pub use memory::{GroupMemory, Memory, NamingMemory};
pub use orphans::OrphanLimits;
pub use reason::Reason;
pub use waiting::{Asked, Waiting, WaitingRoom};
pub use worker::{Applied, Normalizer, Options};
