//! A message over the size limit is refused like any other field that cannot be used.
//!
//! The transport refuses it before it is read, with `OUT_OF_RANGE` and without a word of what a caller can do. No
//! handler sees that, so the service is wrapped: the refusal becomes `INVALID_ARGUMENT`, names the limit in bytes and
//! in tokens, and everything else passes untouched.

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures_util::TryFutureExt;
use futures_util::future::MapOk;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::{Code, Status};

/// A gRPC service whose size refusals are worded here.
#[derive(Clone, Debug)]
pub(super) struct Named<S> {
    service: S,
    max_message_bytes: usize,
}

/// The status of a refused message; any other status as it was.
pub(super) fn named(status: Status, max_message_bytes: usize) -> Status {
    // Only the transport answers with this code.
    if status.code() == Code::OutOfRange { refusal(max_message_bytes) } else { status }
}

fn refusal(max: usize) -> Status {
    Status::invalid_argument(format!(
        "prompt: the message is larger than the limit of {max} bytes ({} tokens as tokens_le)",
        max / 4
    ))
}

// === impl Named ===

impl<S> Named<S> {
    pub(super) const fn new(service: S, max_message_bytes: usize) -> Self {
        Self { service, max_message_bytes }
    }
}

impl<S: NamedService> NamedService for Named<S> {
    const NAME: &'static str = S::NAME;
}

type Reworder = Box<dyn FnOnce(http::Response<Body>) -> http::Response<Body> + Send>;

impl<S> Service<http::Request<Body>> for Named<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = MapOk<S::Future, Reworder>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let max = self.max_message_bytes;
        let reword: Reworder = Box::new(move |response| {
            let refused =
                Status::from_header_map(response.headers()).is_some_and(|status| status.code() == Code::OutOfRange);
            if refused { refusal(max).into_http() } else { response }
        });
        self.service.call(request).map_ok(reword)
    }
}
