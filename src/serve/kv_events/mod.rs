//! `SubscribeKvEvents`: the normalized feed of one worker in the words of SMG's gateway, which follows each engine so.
//!
//! ```text
//! Watcher --Event--> Told --Piece--> Subscription --KvEventBatch--> Lease --> stream
//!                     ^ what the subscriber was told, rank by rank and tier by tier
//! ```
//!
//! The gateway knows a worker as one holder and counts where a block lies by level (device, host, disk, elsewhere). So
//! the ranks of a worker are told as one: a block is stored on a level when the first rank has it there and removed when
//! the last one has it no more ([`told`]). It takes a block's content from the block's tokens, which kvtap does not keep;
//! two numbers that have the same hash stand for them ([`stand_in`]).
//!
//! What holds:
//!
//! * A stream begins with everything that is held, under a clear, and says whether that is all that the engines hold;
//!   then comes what changes, in batches that are numbered without a gap.
//! * A stream that breaks can be gone on with after the last number that came, for a minute ([`sessions`]). A number that
//!   nobody knows any more is out of range, and whoever asks for it begins anew; a subscriber that does not read is cut as
//!   a watcher is, and begins anew, too.
//! * A subscriber costs what a watcher costs, about 20 bytes for each block that it was told, and a MiB of what it was sent.
//! * What another group of a hybrid model requires has no words here: the blocks that mean a prefix are told, as the
//!   engines themselves tell them to the gateway.

mod sessions;
mod stand_in;
mod subscription;
mod told;

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use futures_util::{Stream, stream};
use tonic::service::RoutesBuilder;
use tonic::{Request, Response, Status};

use super::gate::{Authority, code_name};
use super::watch::{Filter, Hub, Watcher};
use crate::admin::Rpc;
use crate::proto::smg::{KvEventBatch, SubscribeKvEventsRequest};
use crate::proto::{sglang, tokenspeed, trtllm, vllm};
use sessions::{Lease, Sessions};
use subscription::Subscription;

/// Answers `SubscribeKvEvents`, whichever engine's service it is asked of.
#[derive(Clone, Debug)]
struct KvEvents {
    hub: Arc<Hub>,
    sessions: Sessions,
}

type Batches = Pin<Box<dyn Stream<Item = Result<KvEventBatch, Status>> + Send>>;

/// The metadata key that names the worker which is meant.
const WORKER: &str = "kvtap-worker";

/// Adds the services under whose names the gateway asks.
pub(super) fn add(routes: &mut RoutesBuilder, hub: Arc<Hub>) {
    let events = KvEvents { hub, sessions: Sessions::default() };
    routes
        .add_service(vllm::vllm_engine_server::VllmEngineServer::new(events.clone()))
        .add_service(sglang::sglang_scheduler_server::SglangSchedulerServer::new(events.clone()))
        .add_service(trtllm::trtllm_service_server::TrtllmServiceServer::new(events.clone()))
        .add_service(tokenspeed::token_speed_scheduler_server::TokenSpeedSchedulerServer::new(events));
}

macro_rules! answers {
    ($service:path) => {
        #[tonic::async_trait]
        impl $service for KvEvents {
            type SubscribeKvEventsStream = Batches;

            async fn subscribe_kv_events(
                &self,
                request: Request<SubscribeKvEventsRequest>,
            ) -> Result<Response<Batches>, Status> {
                self.subscribe(request).await.map(Response::new)
            }
        }
    };
}

answers!(vllm::vllm_engine_server::VllmEngine);
answers!(sglang::sglang_scheduler_server::SglangScheduler);
answers!(trtllm::trtllm_service_server::TrtllmService);
answers!(tokenspeed::token_speed_scheduler_server::TokenSpeedScheduler);

// === impl KvEvents ===

impl KvEvents {
    async fn subscribe(&self, request: Request<SubscribeKvEventsRequest>) -> Result<Batches, Status> {
        let begun = Instant::now();
        // What is known of the caller is read before anything is waited for.
        let subscription = match self.worker(&request) {
            Ok(worker) => self.subscription(worker, request.get_ref().start_sequence_number).await,
            Err(status) => Err(status),
        };
        let code = subscription.as_ref().map_or_else(|status| code_name(status.code()), |_| "ok");
        self.hub.metrics.record(Rpc::SubscribeKvEvents, code, begun.elapsed());
        // The stream is asked for a batch when there is room for one: a subscriber that does not read waits there.
        let batches = stream::unfold(Some(subscription?), |subscription| async {
            let mut subscription = subscription?;
            match subscription.next().await {
                Ok(batch) => Some((Ok(batch), Some(subscription))),
                Err(status) => Some((Err(status), None)),
            }
        });
        Ok(Box::pin(batches))
    }

    async fn subscription(&self, worker: String, after: u64) -> Result<Lease, Status> {
        let seat = self.hub.seat()?;
        if after != 0 {
            return self.sessions.go_on(&worker, after, seat).await.ok_or_else(|| {
                Status::out_of_range(
                    "start_sequence_number: what follows it is not known any more; begin with 0, and everything that is \
                     held is told",
                )
            });
        }
        let most = self.hub.limits.watchers;
        Ok(self.sessions.begin(&worker, most, |base| {
            let filter = Filter { model: String::new(), workers: vec![worker.clone()] };
            Subscription::new(Watcher::new(Arc::clone(&self.hub), seat, filter, &[]), base)
        }))
    }

    /// Who is meant: whom the call names, else the only worker that there is, else whose name the caller has dialled.
    fn worker(&self, request: &Request<SubscribeKvEventsRequest>) -> Result<String, Status> {
        let all = self.hub.fleet.board.all();
        let find = |name: &str| all.iter().find(|entry| entry.identity.is_called(name));
        if let Some(named) = request.metadata().get(WORKER) {
            let name = named.to_str().map_err(|_| Status::invalid_argument(format!("{WORKER}: is no text")))?;
            let found = find(name).ok_or_else(|| Status::not_found(format!("{WORKER}: no worker has this name")))?;
            return Ok(found.identity.worker.to_string());
        }
        let workers: BTreeSet<&str> = all.iter().map(|entry| &*entry.identity.worker).collect();
        match workers.first() {
            None => Err(Status::unavailable("there is no worker yet")),
            Some(only) if workers.len() == 1 => Ok((*only).to_owned()),
            Some(_) => {
                let dialled = request.extensions().get::<Authority>().map(|authority| authority.0.as_str());
                let host = dialled.and_then(|name| name.rsplit_once(':')).map(|(host, _)| host);
                let found = dialled.into_iter().chain(host).find_map(find);
                found.map(|entry| entry.identity.worker.to_string()).ok_or_else(|| {
                    let many = workers.len();
                    Status::invalid_argument(format!("{WORKER}: required, because there are {many} workers"))
                })
            }
        }
    }
}
