//! The query service.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use futures_util::Stream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::error::QueryError;
use super::gate::Deadline;
use super::limits::Limiter;
use super::matching::answer;
use super::refusal::Refusal;
use super::request::{Query, bounded, weight};
use super::response::{match_response, rank_report};
use super::stream::{self, Grace};
use crate::admin::report::{VERSION, millis};
use crate::admin::{Fleet, RequestMetrics, Rpc};
use crate::proto::v1;
use crate::proto::v1::query_service_server::QueryService;
use crate::proto::{MAX_BATCH, MAX_NAMES};

/// Answers `kvtap.v1.QueryService`.
#[derive(Clone, Debug)]
pub(super) struct Queries {
    pub(super) fleet: Arc<Fleet>,
    pub(super) metrics: RequestMetrics,
    pub(super) limiter: Limiter,
    /// Cancelled when the server drains.
    pub(super) drain: CancellationToken,
    /// What streams are granted then.
    pub(super) grace: Grace,
}

/// Requests of a batch that are answered before others get their turn.
const TURN: usize = 16;

// === impl Queries ===

impl Queries {
    /// Answers one request; where that takes milliseconds, aside and in turn.
    pub(super) async fn matching(
        &self,
        rpc: Rpc,
        request: Option<&v1::MatchRequest>,
        deadline: Option<Instant>,
    ) -> Result<v1::MatchResponse, QueryError> {
        let begun = Instant::now();
        let asked = || {
            let query = Query::new(request.ok_or(QueryError::NoRequest)?, deadline)?;
            Ok(match_response(query.model, answer(&self.fleet, &query)?))
        };
        let response: Result<v1::MatchResponse, QueryError> = self.limiter.work(request.map_or(0, weight), asked).await;
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

    /// The same, against the rate: for requests that came together with others.
    pub(super) async fn charged(
        &self,
        rpc: Rpc,
        request: Option<&v1::MatchRequest>,
        deadline: Option<Instant>,
    ) -> Result<v1::MatchResponse, QueryError> {
        if let Err(refusal) = self.limiter.charge(1) {
            self.metrics.record_refusal(Some(rpc), "resource_exhausted", refusal.reason());
            return Err(QueryError::Rate { most: self.limiter.limits.requests_per_second });
        }
        self.matching(rpc, request, deadline).await
    }

    async fn batch(&self, requests: &[v1::MatchRequest], deadline: Option<Instant>) -> Vec<v1::MatchBatchResult> {
        use v1::match_batch_result::Result as Outcome;
        let mut results = Vec::with_capacity(requests.len());
        for (i, request) in requests.iter().enumerate() {
            // The call itself has paid for the first.
            let answer = match i {
                0 => self.matching(Rpc::MatchBatch, Some(request), deadline).await,
                _ => self.charged(Rpc::MatchBatch, Some(request), deadline).await,
            };
            let result = answer.map_or_else(|error| Outcome::Failure(failure(&error)), Outcome::Response);
            results.push(v1::MatchBatchResult { result: Some(result) });
            if (i + 1).is_multiple_of(TURN) {
                tokio::task::yield_now().await;
            }
        }
        results
    }

    fn list(&self, request: &v1::ListWorkersRequest) -> Result<v1::ListWorkersResponse, QueryError> {
        bounded("workers", request.workers.len(), MAX_NAMES)?;
        if request.workers.iter().any(String::is_empty) {
            return Err(QueryError::EmptyName);
        }
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

/// Why a request has no answer, as a message.
pub(super) fn failure(error: &QueryError) -> v1::MatchFailure {
    v1::MatchFailure { code: error.code().into(), message: error.to_string() }
}

/// When the caller gives up.
pub(super) fn deadline<T>(request: &Request<T>) -> Option<Instant> {
    request.extensions().get::<Deadline>().map(|deadline| deadline.0.into_std())
}

#[tonic::async_trait]
impl QueryService for Queries {
    type MatchStreamStream = Pin<Box<dyn Stream<Item = Result<v1::MatchStreamResponse, Status>> + Send>>;

    async fn r#match(&self, request: Request<v1::MatchRequest>) -> Result<Response<v1::MatchResponse>, Status> {
        let deadline = deadline(&request);
        Ok(Response::new(self.matching(Rpc::Match, Some(request.get_ref()), deadline).await?))
    }

    async fn match_stream(
        &self,
        request: Request<Streaming<v1::MatchStreamRequest>>,
    ) -> Result<Response<Self::MatchStreamStream>, Status> {
        let deadline = request.extensions().get::<Deadline>().map(|deadline| deadline.0);
        let answers = stream::answers(self.clone(), request.into_inner(), deadline);
        Ok(Response::new(Box::pin(answers)))
    }

    async fn match_batch(
        &self,
        request: Request<v1::MatchBatchRequest>,
    ) -> Result<Response<v1::MatchBatchResponse>, Status> {
        let requests = &request.get_ref().requests;
        bounded("requests", requests.len(), MAX_BATCH)?;
        Ok(Response::new(v1::MatchBatchResponse { results: self.batch(requests, deadline(&request)).await }))
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

impl Queries {
    /// Counts a stream's end that the caller did not ask for; the status it ends with.
    pub(super) fn ended(&self, refusal: Refusal) -> Status {
        let status = Status::from(refusal);
        self.broken(status)
    }

    /// Counts a stream that breaks off; the status it ends with, in words that a caller can act on.
    pub(super) fn broken(&self, status: Status) -> Status {
        let reason = super::refusal::reason(&status);
        let status = super::refusal::worded(status);
        if let Some(reason) = reason {
            self.metrics.record_refusal(Some(Rpc::MatchStream), super::gate::code_name(status.code()), reason);
        }
        status
    }
}
