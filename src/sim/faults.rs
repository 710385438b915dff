//! Faults on demand: what happens to a simulated engine's publications on their way out, and to the engine itself.

use std::str::FromStr;
use std::time::Duration;

/// Something that goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The next messages never reach a subscriber (a full queue, a high-water mark). A replay can give them.
    Drop {
        /// How many.
        messages: u32,
    },
    /// The next messages never reach a subscriber, and no replay has them: they could not be encoded.
    Lose {
        /// How many.
        messages: u32,
    },
    /// The next messages are sent twice.
    Duplicate {
        /// How many.
        messages: u32,
    },
    /// Each of the next messages leaves later, and so does all that follows it.
    Delay {
        /// How many.
        messages: u32,
        /// By how much.
        by: Duration,
    },
    /// A sequence number is used for nothing.
    Burn,
    /// The replay ring forgets all it has.
    Forget,
    /// Neither socket says anything until [`Fault::Resume`], though both stay open.
    Stall,
    /// What was held back by [`Fault::Stall`] leaves, in order.
    Resume,
    /// The process dies: both sockets close, the cache is gone. [`Fault::Restart`] brings a new one.
    Stop,
    /// A new process at the same endpoints: sequence from 0, an empty cache, other names for the same tokens.
    Restart,
    /// The same, behind sockets that no subscriber sees close (a proxy, or a reset inside the process).
    RestartInPlace,
}

/// A fault that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is not a fault; see `kvtap sim --help`")]
pub struct UnknownFault(String);

/// What happens to one message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Fate {
    /// Whether it is sent.
    pub(super) send: bool,
    /// Whether a replay can give it.
    pub(super) keep: bool,
    /// Whether it is sent a second time.
    pub(super) again: bool,
    /// How long it waits first.
    pub(super) delay: Duration,
}

/// The faults that still have messages to meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Pending {
    drop: u32,
    lose: u32,
    duplicate: u32,
    delay: u32,
    by: Duration,
}

// === impl Pending ===

impl Pending {
    /// Arms a fault that waits for messages; false for one that is done at once, by somebody else.
    pub(super) fn arm(&mut self, fault: Fault) -> bool {
        match fault {
            Fault::Drop { messages } => self.drop += messages,
            Fault::Lose { messages } => self.lose += messages,
            Fault::Duplicate { messages } => self.duplicate += messages,
            Fault::Delay { messages, by } => {
                self.delay += messages;
                self.by = by;
            }
            _ => return false,
        }
        true
    }

    /// The fate of the next message. A message that is lost cannot be dropped, sent twice or delayed as well.
    pub(super) fn next(&mut self) -> Fate {
        if take(&mut self.lose) {
            return Fate::default();
        }
        if take(&mut self.drop) {
            return Fate { keep: true, ..Fate::default() };
        }
        let delay = if take(&mut self.delay) { self.by } else { Duration::ZERO };
        Fate { send: true, keep: true, again: take(&mut self.duplicate), delay }
    }
}

fn take(count: &mut u32) -> bool {
    let any = *count > 0;
    *count = count.saturating_sub(1);
    any
}

// === impl Fault ===

/// `drop=3`, `lose=1`, `duplicate=2`, `delay=5x250` (five messages, 250 milliseconds each), and by their name alone `burn`,
/// `forget`, `stall`, `resume`, `stop`, `restart`, `restart-in-place`.
impl FromStr for Fault {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownFault(text.to_owned());
        let number = |text: &str| text.parse::<u32>().map_err(|_| unknown());
        Ok(match text.split_once('=') {
            Some(("drop", n)) => Self::Drop { messages: number(n)? },
            Some(("lose", n)) => Self::Lose { messages: number(n)? },
            Some(("duplicate", n)) => Self::Duplicate { messages: number(n)? },
            Some(("delay", spec)) => {
                let (messages, millis) = spec.split_once('x').ok_or_else(unknown)?;
                Self::Delay { messages: number(messages)?, by: Duration::from_millis(u64::from(number(millis)?)) }
            }
            Some(_) => return Err(unknown()),
            None => match text {
                "burn" => Self::Burn,
                "forget" => Self::Forget,
                "stall" => Self::Stall,
                "resume" => Self::Resume,
                "stop" => Self::Stop,
                "restart" => Self::Restart,
                "restart-in-place" => Self::RestartInPlace,
                _ => return Err(unknown()),
            },
        })
    }
}
