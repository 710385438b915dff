//! One kept-alive connection that asks one question again and again.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, CONNECTION, HOST, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::HttpEndpoint;
use crate::feed::link::Host;

/// Who asks, and within which bounds.
#[derive(Debug)]
pub(super) struct Client {
    endpoint: HttpEndpoint,
    connect: Duration,
    answer: Duration,
    max_bytes: usize,
    connection: Option<SendRequest<Empty<Bytes>>>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum PollError {
    #[error("cannot connect: {0}")]
    Connect(std::io::Error),
    #[error("no connection within the deadline")]
    ConnectDeadline,
    #[error("the connection broke: {0}")]
    Broken(hyper::Error),
    #[error("no answer within the deadline")]
    AnswerDeadline,
    #[error("the server answers {0}")]
    Status(StatusCode),
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the answer broke off")]
    BrokeOff,
    #[error("{0}")]
    NoEvents(&'static str),
}

// === impl Client ===

impl Client {
    pub(super) fn new(endpoint: HttpEndpoint, connect: Duration, answer: Duration, max_bytes: usize) -> Self {
        Self { endpoint, connect, answer, max_bytes, connection: None }
    }

    /// The next answer's body. The connection is kept only if the answer came whole.
    pub(super) async fn get(&mut self) -> Result<Bytes, PollError> {
        let kept = self.connection.take();
        timeout(self.answer, self.ask(kept)).await.unwrap_or(Err(PollError::AnswerDeadline))
    }

    async fn ask(&mut self, kept: Option<SendRequest<Empty<Bytes>>>) -> Result<Bytes, PollError> {
        let mut reused = None;
        if let Some(mut kept) = kept
            && kept.ready().await.is_ok()
        {
            reused = Some(kept);
        }
        let mut fresh = reused.is_none();
        let mut connection = match reused {
            Some(kept) => kept,
            None => self.connect().await?,
        };
        let response = loop {
            match connection.try_send_request(self.question()).await {
                Ok(response) => break response,
                Err(mut refused) => {
                    // A question that comes back never left: the server closed the idle connection, and drained
                    // nothing.
                    let unsent = refused.take_message().is_some();
                    if fresh || !unsent {
                        return Err(PollError::Broken(refused.into_error()));
                    }
                    fresh = true;
                    connection = self.connect().await?;
                }
            }
        };
        if response.status() != StatusCode::OK {
            return Err(PollError::Status(response.status()));
        }
        let keep =
            response.headers().get(CONNECTION).is_none_or(|value| !value.as_bytes().eq_ignore_ascii_case(b"close"));
        let body = Limited::new(response.into_body(), self.max_bytes).collect().await;
        let body = body.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
            Some(_) => PollError::TooLarge(self.max_bytes),
            None => PollError::BrokeOff,
        })?;
        if keep {
            self.connection = Some(connection);
        }
        Ok(body.to_bytes())
    }

    async fn connect(&self) -> Result<SendRequest<Empty<Bytes>>, PollError> {
        let host = match &self.endpoint.host {
            Host::Ip(ip) => ip.to_string(),
            // `*` was refused.
            Host::Name(name) => name.clone(),
            Host::Any => String::new(),
        };
        let stream = timeout(self.connect, TcpStream::connect((host, self.endpoint.port))).await;
        let stream = stream.map_err(|_| PollError::ConnectDeadline)?.map_err(PollError::Connect)?;
        stream.set_nodelay(true).map_err(PollError::Connect)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(PollError::Broken)?;
        // It ends with the sender. What breaks it is told by the question that it breaks.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    fn question(&self) -> Request<Empty<Bytes>> {
        let mut request = Request::new(Empty::new());
        // The path has characters of a path only.
        if let Ok(path) = self.endpoint.path.parse() {
            *request.uri_mut() = path;
        }
        if let Ok(host) = HeaderValue::from_str(&self.endpoint.authority()) {
            request.headers_mut().insert(HOST, host);
        }
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        request
    }
}
