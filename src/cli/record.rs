//! `kvtap record`: what an engine publishes, into a file.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{Failure, Outcome, signals, units};
use crate::feed::recording::{Bounds, Entry, Header, Record, Redactor, Writer, Wrote};
use crate::feed::zmq::{Endpoint, LinkEvent, Mode, ReplayOptions, Replies, SubOptions, replay, subscribe};
use crate::wire::frames::{self, ReplayFrame};

/// A file smaller than this holds hardly a message.
const MIN_FILE: u64 = 64 << 10;

/// How many messages are written before the file is flushed, while more wait.
const FLUSH_EVERY: u32 = 256;

/// Records the messages of one rank's sockets as they come, with their times.
///
/// Unless --redact is given a recording holds prompts, as token ids: its file is readable by its owner only. The file
/// must not exist. Ends at a bound, at Ctrl-C or at SIGTERM; what was recorded is then safe on disk.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  kvtap record --endpoint tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:5558 --out engine.kvtap --duration 1m
      one minute, and before it everything that the engine still remembers
  kvtap record --endpoint tcp://127.0.0.1:5557 --out engine.kvtap --redact --max-bytes 100MiB --rotate 10
      for ever, the newest gigabyte, without anybody's prompts")]
pub struct Args {
    /// The PUB socket: tcp://HOST:PORT or ipc:///PATH; of a rank, its own port.
    #[arg(long, value_name = "ENDPOINT")]
    endpoint: Endpoint,
    /// Listen there instead of connecting: the engine connects.
    #[arg(long)]
    bind: bool,
    /// Take only messages whose topic begins so.
    #[arg(long, value_name = "TOPIC", default_value = "", hide_default_value = true)]
    topic: String,
    /// The replay socket: what it still has is recorded at each connection and after each gap.
    #[arg(long, value_name = "ENDPOINT")]
    replay: Option<Endpoint>,
    /// The file; it must not exist.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// The largest a file may become, in bytes or as 64KiB, 16MiB, 1GiB.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = file_bytes)]
    max_bytes: u64,
    /// Go on in a new file when one is full, and keep the newest N: FILE, FILE.1, ..
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rotate: Option<u32>,
    /// End after so long: 500ms, 10s, 5m, 1h.
    #[arg(long, value_name = "TIME", value_parser = units::time)]
    duration: Option<Duration>,
    /// End after so many live messages, and the replay that runs by then.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    messages: Option<u64>,
    /// Write pseudonyms in place of tokens, hashes, LoRA names, salts and extra keys.
    #[arg(long)]
    redact: bool,
}

fn file_bytes(text: &str) -> Result<u64, String> {
    match units::bytes(text)? {
        bytes @ MIN_FILE.. => Ok(bytes),
        _ => Err("expected at least 64KiB".to_owned()),
    }
}

/// Records until a bound or a signal ends it.
///
/// # Errors
/// [`Failure::Usage`] for an endpoint that cannot be used, [`Failure::Failed`] where the file cannot be written, or the
/// engine was never reached.
pub async fn run(args: Args) -> Outcome {
    let stop = CancellationToken::new();
    let watch = tokio::spawn(signals::cancel(stop.clone()));
    let out = args.out.clone();
    let outcome = record(args, &stop).await;
    watch.abort();
    let Tally { messages, replies, lost, why, parts, unreached } = outcome?;
    if let Some(unreached) = unreached {
        // It holds nothing, and would be in the way of the next attempt.
        std::fs::remove_file(&out)?;
        return Err(Failure::Failed(format!("{unreached}; ended: {why}; nothing was recorded")));
    }
    eprintln!("recorded {messages} messages and {replies} replies in {parts} files, {lost} lost; ended: {why}");
    Ok(())
}

/// What a recording came to.
struct Tally {
    messages: u64,
    replies: u64,
    lost: u64,
    why: &'static str,
    parts: u32,
    /// Why the engine was never reached, where it never was.
    unreached: Option<String>,
}

struct Recorder {
    writer: Writer,
    redactor: Option<Redactor>,
    began: Instant,
    messages: u64,
    replies: u64,
    lost: u64,
    /// Records since the last flush.
    unflushed: u32,
    full: bool,
}

/// The question to the replay socket.
struct Asking {
    options: Option<ReplayOptions>,
    running: Option<Replies>,
    /// The last sequence number that came live.
    live: Option<u64>,
    /// The last one up to which nothing is missing, as far as anyone can tell.
    last: Option<u64>,
    stop: CancellationToken,
}

async fn record(args: Args, stop: &CancellationToken) -> Result<Tally, Failure> {
    let mode = if args.bind { Mode::Bind } else { Mode::Connect };
    let usage = |error: &dyn std::fmt::Display| Failure::Usage(error.to_string());
    let link = SubOptions { topic: args.topic.clone(), ..SubOptions::new(args.endpoint.clone(), mode) };
    link.check().map_err(|error| usage(&error))?;
    if let Some(endpoint) = &args.replay {
        endpoint.check(Mode::Connect).map_err(|error| usage(&error))?;
    }
    let bounds = Bounds { file_bytes: args.max_bytes, files: args.rotate.unwrap_or(1) };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let header = Header {
        recording: fastrand::u64(..),
        part: 0,
        started_unix_ns: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
        program: env!("CARGO_PKG_VERSION").to_owned(),
        redacted: args.redact,
        replayable: args.replay.is_some(),
    };
    let mut recorder = Recorder {
        writer: Writer::create(&args.out, bounds, header).map_err(|error| Failure::Failed(error.to_string()))?,
        redactor: args.redact.then(Redactor::new),
        began: Instant::now(),
        messages: 0,
        replies: 0,
        lost: 0,
        unflushed: 0,
        full: false,
    };
    let mut asking = Asking {
        options: args.replay.map(ReplayOptions::new),
        running: None,
        live: None,
        last: None,
        stop: stop.clone(),
    };
    let (mut events, _link) = subscribe(link, stop).map_err(|error| usage(&error))?;
    eprintln!("recording {} into {}", args.endpoint, args.out.display());
    let end = args.duration.map(|duration| recorder.began + duration);
    let (mut fault, mut unreached) = (None, Some(format!("{}: nobody has come", args.endpoint)));

    let why = loop {
        if recorder.full {
            break "the file is full";
        }
        // A replay that still runs belongs to what was asked for: without its end a reader sees a gap.
        let enough = args.messages.is_some_and(|messages| recorder.messages >= messages);
        if enough && asking.running.is_none() {
            break "all messages that were asked for are there";
        }
        if events.is_empty() || recorder.unflushed >= FLUSH_EVERY {
            recorder.flush()?;
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => break "told to stop",
            () = until(end) => break "the time is over",
            event = events.recv(), if !enough => match event {
                None => break "told to stop",
                Some(LinkEvent::Listening(endpoint)) => eprintln!("listening on {endpoint}"),
                Some(LinkEvent::Unreachable(error)) => {
                    if unreached.is_some() {
                        unreached = Some(format!("{}: {error}", args.endpoint));
                    }
                    // Each attempt fails alike; once is enough.
                    if fault.replace(error.reason()) != Some(error.reason()) {
                        eprintln!("{}: {error}", args.endpoint);
                    }
                }
                // Nothing that a socket says.
                Some(LinkEvent::Missed | LinkEvent::Unread | LinkEvent::OtherLife | LinkEvent::SameLife | LinkEvent::Unnumbered) => {}
                Some(LinkEvent::Rejected { reason, count }) => eprintln!("turned away {count}: {}", reason.word()),
                Some(LinkEvent::Connected) => {
                    (fault, unreached) = (None, None);
                    eprintln!("connected");
                    recorder.write(Entry::Connected)?;
                    asking.ask();
                }
                Some(LinkEvent::Disconnected(error)) => {
                    eprintln!("disconnected: {error}");
                    recorder.write(Entry::Disconnected)?;
                }
                Some(LinkEvent::Overflowed { messages }) => recorder.write(Entry::Lost(messages))?,
                Some(LinkEvent::Message(frames)) => {
                    let gap = asking.heard(&frames);
                    recorder.write(Entry::Message(frames))?;
                    if gap {
                        asking.ask();
                    }
                }
            },
            reply = asking.next() => {
                let ended = match reply {
                    Some(frames) => {
                        let end = matches!(frames::replay(&frames), Ok(ReplayFrame::End));
                        asking.replied(&frames);
                        recorder.write(Entry::Reply(frames))?;
                        end.then_some(true)
                    }
                    None => Some(false),
                };
                if let Some(complete) = ended {
                    asking.running = None;
                    eprintln!("replay {}", if complete { "complete" } else { "broken off" });
                    recorder.write(Entry::ReplayEnded { complete })?;
                }
            }
        }
    };
    recorder.flush()?;
    let Recorder { writer, messages, replies, lost, .. } = recorder;
    Ok(Tally { messages, replies, lost, why, parts: writer.parts(), unreached })
}

async fn until(end: Option<Instant>) {
    match end {
        Some(end) => sleep_until(end).await,
        None => std::future::pending().await,
    }
}

// === impl Recorder ===

impl Recorder {
    fn write(&mut self, entry: Entry) -> Result<(), Failure> {
        let at = self.began.elapsed();
        let redactor = self.redactor.as_mut();
        let entry = match (entry, redactor) {
            (Entry::Message(frames), Some(redactor)) => Entry::Message(redactor.message(&frames)),
            (Entry::Reply(frames), Some(redactor)) => Entry::Reply(redactor.reply(&frames)),
            (entry, _) => entry,
        };
        let (message, reply, lost) = match &entry {
            Entry::Message(_) => (1, 0, 0),
            Entry::Reply(_) => (0, 1, 0),
            Entry::Lost(messages) => (0, 0, *messages),
            _ => (0, 0, 0),
        };
        let wrote = self.writer.write(&Record { at, entry }).map_err(|error| Failure::Failed(error.to_string()))?;
        self.unflushed += 1;
        match wrote {
            Wrote::Kept => {
                self.messages += message;
                self.replies += reply;
                self.lost += lost;
            }
            Wrote::TooLarge => self.lost += 1,
            Wrote::Full => self.full = true,
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        if self.unflushed == 0 {
            return Ok(());
        }
        self.unflushed = 0;
        self.writer.flush().map_err(|error| Failure::Failed(error.to_string()))
    }
}

// === impl Asking ===

impl Asking {
    /// Asks for everything from the last message on, in place of the replay that runs: that message tells a reader
    /// whether the engine is still the same.
    fn ask(&mut self) {
        let Some(options) = self.options.clone() else { return };
        // The endpoint was checked; what fails later is told by the replies.
        self.running = replay(options, self.last.unwrap_or(0), &self.stop).ok().map(|(replies, _task)| replies);
    }

    /// Whether a live message shows that others were missed, and they are to be asked for.
    fn heard(&mut self, frames: &[Bytes]) -> bool {
        let Ok(live) = frames::live(frames) else { return false };
        let restarted = self.live.is_some_and(|before| live.sequence < before);
        if restarted {
            self.last = None;
        }
        self.live = Some(live.sequence);
        let next = self.last.map_or(0, |last| last.saturating_add(1));
        let missed = live.sequence > next;
        if !missed {
            self.last = self.last.max(Some(live.sequence));
        }
        missed && self.running.is_none() && self.options.is_some()
    }

    fn replied(&mut self, frames: &[Bytes]) {
        if let Ok(ReplayFrame::Batch { sequence, .. }) = frames::replay(frames) {
            self.last = self.last.max(Some(sequence));
        }
    }

    /// The next reply; `None` where the replay broke off.
    async fn next(&mut self) -> Option<Vec<Bytes>> {
        match &mut self.running {
            None => std::future::pending().await,
            Some(replies) => replies.recv().await.and_then(Result::ok),
        }
    }
}
