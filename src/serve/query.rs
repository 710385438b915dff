//! The query service.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use futures_util::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::error::QueryError;
use super::matching::answer;
use super::oversize;
use super::request::{Query, bounded};
use super::response::{match_response, rank_report};
use crate::admin::report::{VERSION, millis};
use crate::admin::{Fleet, RequestMetrics, Rpc};
use crate::proto::v1;
use crate::proto::v1::query_service_server::QueryService;

/// Answers `kvtap.v1.QueryService`.
#[derive(Clone, Debug)]
pub(super) struct Queries {
    fleet: Arc<Fleet>,
    metrics: RequestMetrics,
    /// Ends streams between two requests.
    drain: CancellationToken,
    max_message_bytes: usize,
}

// === impl Queries ===

impl Queries {
    pub(super) const fn new(
        fleet: Arc<Fleet>,
        metrics: RequestMetrics,
        drain: CancellationToken,
        max_message_bytes: usize,
    ) -> Self {
        Self { fleet, metrics, drain, max_message_bytes }
    }

    fn matching(&self, rpc: Rpc, request: Option<&v1::MatchRequest>) -> Result<v1::MatchResponse, QueryError> {
        let begun = Instant::now();
        let asked = || {
            let query = Query::new(request.ok_or(QueryError::NoRequest)?)?;
            Ok(match_response(query.model, answer(&self.fleet, &query)?))
        };
        let response: Result<v1::MatchResponse, QueryError> = asked();
        let code = match &response {
            Ok(response) => {
                if let Some(best) = response.matches.first() {
                    self.metrics.record_blocks(best.asked_blocks, u64::from(best.matched_blocks));
                }
                "ok"
            }
            Err(error) => error.code_name(),
        };
        self.metrics.record(rpc, code, begun.elapsed());
        response
    }

    fn in_stream(&self, request: v1::MatchStreamRequest) -> v1::MatchStreamResponse {
        use v1::match_stream_response::Result as Outcome;
        let result = match self.matching(Rpc::MatchStream, request.request.as_ref()) {
            Ok(response) => Outcome::Response(response),
            Err(error) => Outcome::Failure(v1::MatchFailure { code: error.code().into(), message: error.to_string() }),
        };
        v1::MatchStreamResponse { id: request.id, result: Some(result) }
    }

    fn list(&self, request: &v1::ListWorkersRequest) -> Result<v1::ListWorkersResponse, QueryError> {
        bounded("workers", request.workers.len())?;
        let mut all = self.fleet.board.all();
        all.retain(|entry| {
            let identity = &entry.identity;
            (request.model.is_empty() || *identity.model == *request.model)
                && (request.workers.is_empty() || request.workers.iter().any(|name| identity.is_called(name)))
        });
        let workers = all.iter().map(|entry| self.fleet.report(entry)).map(rank_report).collect();
        Ok(v1::ListWorkersResponse { workers, version: VERSION.to_owned(), uptime_ms: millis(self.fleet.uptime()) })
    }
}

#[tonic::async_trait]
impl QueryService for Queries {
    type MatchStreamStream = Pin<Box<dyn Stream<Item = Result<v1::MatchStreamResponse, Status>> + Send>>;

    async fn r#match(&self, request: Request<v1::MatchRequest>) -> Result<Response<v1::MatchResponse>, Status> {
        Ok(Response::new(self.matching(Rpc::Match, Some(request.get_ref()))?))
    }

    async fn match_stream(
        &self,
        request: Request<Streaming<v1::MatchStreamRequest>>,
    ) -> Result<Response<Self::MatchStreamStream>, Status> {
        let queries = self.clone();
        let drained = self.drain.clone().cancelled_owned();
        let answers = request.into_inner().take_until(drained).map(move |request| match request {
            Ok(request) => Ok(queries.in_stream(request)),
            Err(status) => Err(oversize::named(status, queries.max_message_bytes)),
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn list_workers(
        &self,
        request: Request<v1::ListWorkersRequest>,
    ) -> Result<Response<v1::ListWorkersResponse>, Status> {
        let begun = Instant::now();
        let response = self.list(request.get_ref());
        let code = response.as_ref().map_or_else(QueryError::code_name, |_| "ok");
        self.metrics.record(Rpc::ListWorkers, code, begun.elapsed());
        Ok(Response::new(response?))
    }
}
