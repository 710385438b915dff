//! A recording on sockets: an engine that does it all again.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::super::{Failure, Outcome, signals};
use super::{Args, Speed, open, torn_failure};
use crate::feed::recording::{Entry, Record};
use crate::sim::publisher::{Attach, Options, PublishError, Publisher, ReplayLayout};
use crate::wire::frames::{self, ReplayFrame};

/// Messages that a replay reaches back: engines' own default.
const BUFFER_STEPS: usize = 10_000;

pub(super) async fn run(args: &Args, endpoint: String) -> Outcome {
    // A recording that cannot be read is told before a socket is opened.
    open(&args.files)?;
    let options = Options {
        endpoint,
        replay: args.replay_endpoint.clone(),
        attach: Attach::Bind,
        topic: String::new(),
        buffer_steps: BUFFER_STEPS,
        layout: ReplayLayout::WithTopic,
        rank: 0,
    };
    let mut publisher = Publisher::open(options).await?;
    match publisher.replay_endpoint() {
        Some(replay) => eprintln!("publishing on {} replay on {replay}", publisher.endpoint()),
        None => eprintln!("publishing on {} without replay", publisher.endpoint()),
    }
    let stop = CancellationToken::new();
    let watch = tokio::spawn(signals::cancel(stop.clone()));
    let played = stop.run_until_cancelled(play(args, &mut publisher)).await.unwrap_or(Ok(()));
    watch.abort();
    publisher.detach().await;
    played
}

async fn play(args: &Args, publisher: &mut Publisher) -> Outcome {
    sleep(Duration::from_secs_f64(args.delay)).await;
    let mut tears = Vec::new();
    loop {
        tears.clear();
        let (mut messages, began, mut last) = (0u64, Instant::now(), None);
        for part in open(&args.files)? {
            let mut part = part;
            for record in part.by_ref() {
                if let Speed::Times(times) = args.speed {
                    // What was recorded may be longer than a clock can count.
                    if let Some(at) = began.checked_add(
                        Duration::try_from_secs_f64(record.at.as_secs_f64() / times).unwrap_or(Duration::MAX),
                    ) {
                        sleep_until(at).await;
                    }
                }
                messages += u64::from(publish(publisher, record, &mut last).await?);
            }
            if let Some(torn) = part.torn() {
                tears.push((part.header().part, format!("after {} bytes: {}", torn.offset, torn.what)));
            }
        }
        eprintln!("published {messages} messages");
        if !args.again || messages == 0 {
            break;
        }
        publisher.rewind();
    }
    sleep(Duration::from_secs_f64(args.linger)).await;
    torn_failure(tears.iter().map(|(part, torn)| (*part, torn.as_str())))
}

/// Publishes what was published, and keeps what the engine's replay gave. Whether it was a message.
async fn publish(publisher: &mut Publisher, record: Record, last: &mut Option<u64>) -> Result<bool, PublishError> {
    match record.entry {
        Entry::Message(frames) => {
            if let Ok(live) = frames::live(&frames) {
                if last.is_some_and(|last| live.sequence < last) {
                    publisher.rewind();
                }
                *last = Some(live.sequence);
                publisher.keep_as(live.sequence, live.payload.clone());
            }
            publisher.send_frames(frames).await?;
            Ok(true)
        }
        Entry::Reply(frames) => {
            if let Ok(ReplayFrame::Batch { sequence, payload }) = frames::replay(&frames) {
                publisher.keep_as(sequence, payload.clone());
            }
            Ok(false)
        }
        Entry::Connected | Entry::Disconnected | Entry::Lost(_) | Entry::ReplayEnded { .. } => Ok(false),
    }
}

impl From<PublishError> for Failure {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Endpoint { .. } => Self::Usage(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}
