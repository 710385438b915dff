//! What every call passes before a service sees it, and after.
//!
//! In: who may call, whether there is room, the caller's deadline, a body that has to arrive. Out: transport errors in
//! words that a caller can act on, counted by reason; and the call's share of everything held until its last byte is
//! taken.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::{HeaderMap, Request, Response};
use tokio::time::{Instant, timeout_at};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::service::Routes;
use tonic::{Code, Status};
use tracing::Instrument;

use super::limits::{Limiter, Place, Spent};
use super::paced::Paced;
use super::query::{Answering, Call, QueryServer};
use super::refusal::{Refusal, reason, worded};
use super::token::Token;
use crate::admin::{RequestMetrics, Rpc};
use crate::net::{Busy, Slot};
use crate::telemetry;

/// The gate of all connections.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) routes: Routes,
    /// The query service, where there is one: asked without the way through the routes.
    pub(super) queries: Option<QueryServer>,
    pub(super) limiter: Limiter,
    pub(super) metrics: RequestMetrics,
    pub(super) token: Option<Arc<Token>>,
    pub(super) max_message_bytes: usize,
}

/// The gate of one connection.
#[derive(Clone, Debug)]
pub(super) struct Passage {
    gate: Arc<Gate>,
    slot: Arc<Slot>,
}

/// When the caller gives up, by its own word: in the extensions of its request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(pub(super) Instant);

/// Which host a subscriber of events has dialled, as it says: in the extensions of its request.
#[derive(Clone, Debug)]
pub(super) struct Authority(pub(super) String);

/// What a call holds until its answer has been taken. It is only ever dropped.
struct Held {
    _busy: Busy,
    _place: Option<Place>,
    _spent: Option<Arc<Spent>>,
}

/// A body that holds something.
struct Holding {
    body: Body,
    _held: Held,
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// Health is asked by probes that carry no token and must not fail because of load.
const HEALTH: &str = "/grpc.health.v1.Health/";
/// A call whose answer goes on and on.
const WATCH: &str = "/kvtap.v1.WatchService/Watch";
/// Where a caller may mean the worker by the host that it has dialled.
const BY_HOST: &str = "/SubscribeKvEvents";
/// Calls whose body may hold any number of messages.
const STREAMS: [&str; 2] =
    ["/kvtap.v1.QueryService/MatchStream", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"];

// === impl Passage ===

impl Passage {
    pub(super) const fn new(gate: Arc<Gate>, slot: Arc<Slot>) -> Self {
        Self { gate, slot }
    }

    /// Whether the call may come in, and its place.
    fn enter(&self, headers: &HeaderMap, is_stream: bool) -> Result<Place, Refusal> {
        let gate = &self.gate;
        if gate.token.as_ref().is_some_and(|token| !token.admits(headers)) {
            return Err(Refusal::Token);
        }
        gate.limiter.charge(1)?;
        gate.limiter.enter(is_stream)
    }
}

impl hyper::service::Service<Request<Incoming>> for Passage {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: Request<Incoming>) -> Answer {
        let busy = self.slot.busy();
        let path = request.uri().path();
        let (rpc, stream) = (Rpc::of_path(path), STREAMS.contains(&path));
        let stays = stream || path == WATCH || path.ends_with(BY_HOST);
        let place = if path.starts_with(HEALTH) { Ok(None) } else { self.enter(request.headers(), stays).map(Some) };
        let gate = Arc::clone(&self.gate);
        let place = match place {
            Ok(place) => place,
            Err(refusal) => {
                let status = Status::from(refusal);
                gate.count(rpc, &status);
                return Box::pin(std::future::ready(Ok(holding(status.into_http(), busy, None, None))));
            }
        };
        let deadline = deadline(request.headers());
        let host = request.uri().authority().filter(|_| path.ends_with(BY_HOST));
        let host = host.map(|authority| Authority(authority.as_str().to_owned()));
        let spent = gate.limiter.memory.account();
        let share = Arc::clone(&spent);
        let mut request = request.map(|body| Paced::new(body, stream, gate.max_message_bytes, &gate.limiter, share));
        if let Some(deadline) = deadline {
            request.extensions_mut().insert(Deadline(deadline));
        }
        if let Some(host) = host {
            request.extensions_mut().insert(host);
        }
        let span = telemetry::request_span(&request);
        let answer = gate.answer(request);
        let answering = async move {
            let response = match deadline {
                None => answer.await,
                Some(deadline) => match timeout_at(deadline, answer).await {
                    Ok(response) => response,
                    Err(_) => Status::from(Refusal::Deadline).into_http(),
                },
            };
            Ok(holding(gate.seen(rpc, response), busy, place, Some(spent)))
        };
        Box::pin(answering.instrument(span))
    }
}

// === impl Gate ===

impl Gate {
    fn answer(&self, request: Request<Paced>) -> Answering {
        if let Some(queries) = &self.queries
            && let Some(call) = Call::of(request.uri().path())
        {
            return queries.answer(call, request);
        }
        let answer = self.routes.clone().call(request);
        Box::pin(async move {
            let Ok(response) = answer.await;
            response
        })
    }

    /// Counts and words what the transport refused; passes everything else.
    fn seen(&self, rpc: Option<Rpc>, response: Response<Body>) -> Response<Body> {
        // An answer has no status among its headers: that is the way of refusals.
        if !response.headers().contains_key(Status::GRPC_STATUS) {
            return response;
        }
        let Some(status) = Status::from_header_map(response.headers()) else { return response };
        self.count(rpc, &status);
        if status.code() == Code::Internal { worded(status).into_http() } else { response }
    }

    fn count(&self, rpc: Option<Rpc>, status: &Status) {
        if let Some(reason) = reason(status) {
            self.metrics.record_refusal(rpc, code_name(worded(status.clone()).code()), reason);
        }
    }
}

/// The code's word in metrics.
pub(super) const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "ok",
        Code::InvalidArgument => "invalid_argument",
        Code::NotFound => "not_found",
        Code::ResourceExhausted => "resource_exhausted",
        Code::DeadlineExceeded => "deadline_exceeded",
        Code::Unauthenticated => "unauthenticated",
        Code::Unavailable => "unavailable",
        Code::OutOfRange => "out_of_range",
        _ => "other",
    }
}

fn holding(response: Response<Body>, busy: Busy, place: Option<Place>, spent: Option<Arc<Spent>>) -> Response<Body> {
    let held = Held { _busy: busy, _place: place, _spent: spent };
    response.map(|body| Body::new(Holding { body, _held: held }))
}

/// The deadline of `grpc-timeout`: at most eight digits and a unit. One that does not parse is none.
fn deadline(headers: &HeaderMap) -> Option<Instant> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if number.is_empty() || number.len() > 8 || !number.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number = number.parse::<u64>().ok()?;
    let time = match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    };
    Instant::now().checked_add(time)
}

// === impl Holding ===

impl HttpBody for Holding {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_deadline_is_read_as_the_protocol_writes_it() {
        let now = Instant::now();
        let read = |text: &'static str| {
            let headers = HeaderMap::from_iter([("grpc-timeout".parse().unwrap(), text.parse().unwrap())]);
            deadline(&headers).map(|at| at - now)
        };
        assert_eq!(read("150m"), Some(Duration::from_millis(150)));
        assert_eq!(read("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(read("1u"), Some(Duration::from_micros(1)));
        for bad in ["", "m", "150", "150x", "+1S", "123456789S", "1 S"] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
        assert_eq!(deadline(&HeaderMap::new()), None);
    }
}
