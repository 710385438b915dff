//! The watch service.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, stream};
use tonic::{Request, Response, Status};

use super::hub::Hub;
use super::watcher::{Filter, Watcher};
use crate::proto::MAX_NAMES;
use crate::proto::v1;
use crate::proto::v1::watch_service_server::WatchService;
use crate::serve::request::bounded;

/// Answers `kvtap.v1.WatchService`.
#[derive(Clone, Debug)]
pub(in crate::serve) struct Watches(pub(in crate::serve) Arc<Hub>);

#[tonic::async_trait]
impl WatchService for Watches {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<v1::WatchResponse, Status>> + Send>>;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let v1::WatchRequest { model, workers, resume_after } = request.into_inner();
        bounded("workers", workers.len(), MAX_NAMES)?;
        let most = self.0.limits.watchers;
        let seat = self.0.sit().ok_or_else(|| {
            Status::resource_exhausted(format!("there are {most} watchers already, and no more are taken"))
        })?;
        let watcher = Watcher::new(Arc::clone(&self.0), seat, Filter { model, workers }, &resume_after);
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
