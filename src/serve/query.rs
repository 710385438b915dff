//! The query service.

use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::Stream;
use hyper::http;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::server::{Grpc, StreamingService, UnaryService};
use tonic::{Request, Response, Status, Streaming};

use super::answer::{AnswerCodec, Answered, BatchAnswered, StreamAnswered};
use super::error::QueryError;
use super::gate::Deadline;
use super::limits::Limiter;
use super::matching::answer;
use super::paced::Paced;
use super::refusal::Refusal;
use super::request::{Query, bounded, weight};
use super::response::rank_report;
use super::stream::{self, Grace};
use crate::admin::report::{VERSION, millis};
use crate::admin::{Fleet, RequestMetrics, Rpc};
use crate::proto::v1;
use crate::proto::v1::query_service_server::SERVICE_NAME;
use crate::proto::{Codec, MAX_BATCH, MAX_NAMES};

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

/// A call that is being answered.
pub(super) type Answering = Pin<Box<dyn Future<Output = http::Response<Body>> + Send>>;

/// Once the answers of a batch come to this, in bytes, its other requests are refused: an empty prompt takes 7 bytes, and
/// its answer 40 for each rank. gRPC clients take messages of 4 MiB unless they are told otherwise, and with the last answer
/// and 1,024 refusals a batch stays below that.
const MAX_ANSWERS: usize = 3 << 20;

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
    ) -> Result<Answered, QueryError> {
        let begun = Instant::now();
        let asked = || {
            let query = Query::new(request.ok_or(QueryError::NoRequest)?, deadline)?;
            Ok(Answered { model: query.model.to_owned(), brief: query.brief, answer: answer(&self.fleet, &query)? })
        };
        let answered: Result<Answered, QueryError> = self.limiter.work(request.map_or(0, weight), asked).await;
        let code = match &answered {
            Ok(answered) => {
                if let Some(best) = answered.answer.ranks.first() {
                    self.metrics.record_blocks(best.asked, u64::from(best.held.blocks));
                }
                "ok"
            }
            Err(error) => error.code_name(),
        };
        self.metrics.record(rpc, code, begun.elapsed());
        answered
    }

    /// The same, against the rate: for requests that came together with others.
    pub(super) async fn charged(
        &self,
        rpc: Rpc,
        request: Option<&v1::MatchRequest>,
        deadline: Option<Instant>,
    ) -> Result<Answered, QueryError> {
        if let Err(refusal) = self.limiter.charge(1) {
            self.metrics.record_refusal(Some(rpc), "resource_exhausted", refusal.reason());
            return Err(QueryError::Rate { most: self.limiter.limits.requests_per_second });
        }
        self.matching(rpc, request, deadline).await
    }

    async fn batch(&self, requests: &[v1::MatchRequest], deadline: Option<Instant>) -> BatchAnswered {
        let mut results = BatchAnswered::default();
        for (i, request) in requests.iter().enumerate() {
            // The call itself has paid for the first.
            let answer = match i {
                _ if results.len() >= MAX_ANSWERS => {
                    let full = QueryError::BatchFull { most: MAX_ANSWERS };
                    self.metrics.record(Rpc::MatchBatch, full.code_name(), Duration::ZERO);
                    Err(full)
                }
                0 => self.matching(Rpc::MatchBatch, Some(request), deadline).await,
                _ => self.charged(Rpc::MatchBatch, Some(request), deadline).await,
            };
            results.push(&answer);
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

/// One call of the service.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Match,
    MatchStream,
    MatchBatch,
    ListWorkers,
}

/// A call under way.
struct Calling(Queries);

type Coming<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;

/// Answers calls by their paths. The server that is generated would answer `Match` with messages, which cost more than
/// finding out what is in them.
#[derive(Clone, Debug)]
pub(super) struct QueryServer {
    queries: Queries,
    max_message_bytes: usize,
}

// === impl QueryServer ===

impl Call {
    /// The call that a path names; `None` where it is another service's.
    pub(super) fn of(path: &str) -> Option<Self> {
        let Some((SERVICE_NAME, method)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else {
            return None;
        };
        match method {
            "Match" => Some(Self::Match),
            "MatchStream" => Some(Self::MatchStream),
            "MatchBatch" => Some(Self::MatchBatch),
            "ListWorkers" => Some(Self::ListWorkers),
            _ => None,
        }
    }
}

impl QueryServer {
    /// The server of `queries`. A larger message is refused.
    pub(super) const fn new(queries: Queries, max_message_bytes: usize) -> Self {
        Self { queries, max_message_bytes }
    }

    /// The answer to a call.
    pub(super) fn answer(&self, call: Call, request: http::Request<Paced>) -> Answering {
        let (most, calling) = (Some(self.max_message_bytes), Calling(self.queries.clone()));
        Box::pin(async move {
            match call {
                Call::Match => {
                    let codec = AnswerCodec::<Answered, v1::MatchRequest>::default();
                    Grpc::new(codec).apply_max_message_size_config(most, None).unary(calling, request).await
                }
                Call::MatchStream => {
                    let codec = AnswerCodec::<StreamAnswered, v1::MatchStreamRequest>::default();
                    Grpc::new(codec).apply_max_message_size_config(most, None).streaming(calling, request).await
                }
                Call::MatchBatch => {
                    let codec = AnswerCodec::<BatchAnswered, v1::MatchBatchRequest>::default();
                    Grpc::new(codec).apply_max_message_size_config(most, None).unary(calling, request).await
                }
                Call::ListWorkers => {
                    let codec = Codec::<v1::ListWorkersResponse, v1::ListWorkersRequest>::default();
                    Grpc::new(codec).apply_max_message_size_config(most, None).unary(calling, request).await
                }
            }
        })
    }
}

// === impl Calling ===

impl UnaryService<v1::MatchRequest> for Calling {
    type Response = Answered;
    type Future = Coming<Answered>;

    fn call(&mut self, request: Request<v1::MatchRequest>) -> Self::Future {
        let queries = self.0.clone();
        Box::pin(async move {
            let deadline = deadline(&request);
            Ok(Response::new(queries.matching(Rpc::Match, Some(request.get_ref()), deadline).await?))
        })
    }
}

impl StreamingService<v1::MatchStreamRequest> for Calling {
    type Response = StreamAnswered;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<StreamAnswered, Status>> + Send>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<v1::MatchStreamRequest>>) -> Self::Future {
        let deadline = request.extensions().get::<Deadline>().map(|deadline| deadline.0);
        let answers: Self::ResponseStream = Box::pin(stream::answers(self.0.clone(), request.into_inner(), deadline));
        ready(Ok(Response::new(answers)))
    }
}

impl UnaryService<v1::MatchBatchRequest> for Calling {
    type Response = BatchAnswered;
    type Future = Coming<BatchAnswered>;

    fn call(&mut self, request: Request<v1::MatchBatchRequest>) -> Self::Future {
        let queries = self.0.clone();
        Box::pin(async move {
            let requests = &request.get_ref().requests;
            bounded("requests", requests.len(), MAX_BATCH)?;
            Ok(Response::new(queries.batch(requests, deadline(&request)).await))
        })
    }
}

impl UnaryService<v1::ListWorkersRequest> for Calling {
    type Response = v1::ListWorkersResponse;
    type Future = Ready<Result<Response<v1::ListWorkersResponse>, Status>>;

    fn call(&mut self, request: Request<v1::ListWorkersRequest>) -> Self::Future {
        let begun = Instant::now();
        let response = self.0.list(request.get_ref());
        let code = response.as_ref().map_or_else(QueryError::code_name, |_| "ok");
        self.0.metrics.record(Rpc::ListWorkers, code, begun.elapsed());
        ready(response.map(Response::new).map_err(Status::from))
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
