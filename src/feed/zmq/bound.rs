//! A bound link: engines connect to it, and so may anyone.
//!
//! Each peer is a task of its own. There are at most so many; when one more comes, the peer that had least to say
//! makes room: one that has not completed its handshake, else one that is silent, the oldest first. A publisher
//! that has sent a message keeps its place, so strangers cannot crowd it out.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::presence::{Presence, Progress, Stage};
use super::stream::{Listener, Stream};
use super::sub::serve;
use super::{Fault, SubOptions};
use crate::backoff::Backoff;
use crate::feed::drops::Dropped;

/// The pause after a failed accept: the process is out of descriptors, and trying at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The peers of one bound link.
struct Peers {
    options: Arc<SubOptions>,
    presence: Presence,
    tasks: JoinSet<u64>,
    /// In the order in which they came.
    places: Vec<Place>,
    next: u64,
}

struct Place {
    peer: u64,
    progress: Progress,
    evict: CancellationToken,
}

/// Binds, again and again until it succeeds, and serves whoever connects.
pub(super) async fn run(options: &SubOptions, presence: &Presence) -> Infallible {
    let mut backoff = Backoff::new(options.timing.first_retry, options.timing.longest_retry);
    let listener = loop {
        match listen(options, presence).await {
            Ok(listener) => break listener,
            Err(fault) => presence.queue().unreachable(fault),
        }
        sleep(backoff.wait()).await;
    };
    let mut peers = Peers {
        options: Arc::new(options.clone()),
        presence: presence.clone(),
        tasks: JoinSet::new(),
        places: Vec::new(),
        next: 0,
    };
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(stream) => peers.admit(stream),
                Err(_) => {
                    presence.queue().rejected(Dropped::AcceptFailed);
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(ended) = peers.tasks.join_next() => match ended {
                Ok(peer) => peers.places.retain(|place| place.peer != peer),
                Err(error) => tracing::error!(%error, "Peer task failed."),
            },
        }
    }
}

async fn listen(options: &SubOptions, presence: &Presence) -> Result<Listener, Fault> {
    let listener = Listener::bind(&options.endpoint).await?;
    presence.queue().listening(listener.endpoint().map_err(Fault::Bind)?);
    Ok(listener)
}

// === impl Peers ===

impl Peers {
    fn admit(&mut self, stream: Stream) {
        if self.places.len() >= self.options.max_peers.max(1) && !self.make_room() {
            self.presence.queue().rejected(Dropped::Crowded);
            return;
        }
        let (peer, progress, evict) = (self.next, Progress::default(), CancellationToken::new());
        self.next += 1;
        self.places.push(Place { peer, progress: progress.clone(), evict: evict.clone() });
        let (options, presence) = (Arc::clone(&self.options), self.presence.clone());
        self.tasks.spawn(async move {
            if let Err(fault) = serve(stream, &options, &presence, &progress, &evict).await
                && let Some(reason) = fault.rejection()
            {
                presence.queue().rejected(reason);
            }
            peer
        });
    }

    /// Takes the place of the peer that had least to say; whether there was one.
    fn make_room(&mut self) -> bool {
        let least = (0..self.places.len())
            .filter_map(|at| self.places.get(at).map(|place| (place.progress.stage(), at)))
            .filter(|(stage, _)| *stage < Stage::Spoke)
            .min();
        let Some((_, at)) = least else { return false };
        self.places.remove(at).evict.cancel();
        true
    }
}
