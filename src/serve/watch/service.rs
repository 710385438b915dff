//! The watch service.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use futures_util::{Stream, stream};
use tonic::{Request, Response, Status};

use super::hub::Hub;
use super::watcher::{Filter, Watcher};
use crate::admin::Rpc;
use crate::proto::MAX_NAMES;
use crate::proto::v1;
use crate::proto::v1::watch_service_server::WatchService;
use crate::serve::gate::code_name;
use crate::serve::request::bounded;

/// Answers `kvtap.v1.WatchService`.
#[derive(Clone, Debug)]
pub(in crate::serve) struct Watches(pub(in crate::serve) Arc<Hub>);

impl Watches {
    fn begin(&self, request: v1::WatchRequest) -> Result<Watcher, Status> {
        let v1::WatchRequest { model, workers, resume_after } = request;
        bounded("workers", workers.len(), MAX_NAMES)?;
        let seat = self.0.seat()?;
        Ok(Watcher::new(Arc::clone(&self.0), seat, Filter { model, workers }, &resume_after))
    }
}

#[tonic::async_trait]
impl WatchService for Watches {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<v1::WatchResponse, Status>> + Send>>;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let begun = Instant::now();
        let watcher = self.begin(request.into_inner());
        let code = watcher.as_ref().map_or_else(|status| code_name(status.code()), |_| "ok");
        self.0.metrics.record(Rpc::Watch, code, begun.elapsed());
        let watcher = watcher?;
        // The stream is asked for a message when there is room for one: a watcher that does not read waits there.
        let messages = stream::unfold(Some(watcher), |watcher| async {
            let mut watcher = watcher?;
            match watcher.next().await {
                Ok(message) => Some((Ok(message), Some(watcher))),
                Err(status) => Some((Err(status), None)),
            }
        });
        Ok(Response::new(Box::pin(messages)))
    }
}
