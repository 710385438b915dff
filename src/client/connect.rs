//! The way to one server.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};

use crate::proto::v1;
use crate::proto::v1::query_service_client::QueryServiceClient;

/// A connection that shows credentials.
pub type Connection = InterceptedService<Channel, Token>;

/// The generated client, with credentials.
pub type Service = QueryServiceClient<Connection>;

/// What a client shows, and whom it believes.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// For `https://` servers.
    pub tls: Option<Tls>,
    /// The bearer token.
    token: Token,
}

/// The TLS of a client.
#[derive(Clone)]
pub struct Tls(ClientTlsConfig);

/// Puts the bearer token into each request, where there is one.
#[derive(Clone, Default)]
pub struct Token(Option<MetadataValue<Ascii>>);

/// One server.
#[derive(Clone, Debug)]
pub struct Client {
    address: String,
    endpoint: Endpoint,
    service: Service,
    token: Token,
}

/// Why there is no client, or no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is none.
    #[error("{0:?} is not HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:///PATH")]
    Address(String),
    /// `https://` without anything to tell the server by.
    #[error("{0}: https needs the authority that signed the server's certificate")]
    NoAuthority(String),
    /// A file cannot be used.
    #[error("{file}: {why}")]
    File {
        /// Which.
        file: String,
        /// Why.
        why: String,
    },
    /// Nobody answers there.
    #[error("cannot reach {address}: {why}")]
    Unreachable {
        /// Where.
        address: String,
        /// Why.
        why: String,
    },
    /// The server refuses, in its words.
    #[error("{message}")]
    Refused {
        /// With this code.
        code: Code,
        /// The field's name, and what is known.
        message: String,
    },
    /// No answer until the deadline.
    #[error("no answer within {0:?}")]
    Late(Duration),
}

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(5);
/// The largest answer that is read, in bytes: thousands of workers.
const MAX_ANSWER: usize = 64 << 20;

// === impl Credentials ===

impl Credentials {
    /// Reads a bearer token from a file.
    ///
    /// # Errors
    /// [`ClientError::File`].
    pub fn with_token(mut self, file: &Path) -> Result<Self, ClientError> {
        let text = String::from_utf8(read(file)?).unwrap_or_default();
        let value = format!("Bearer {}", text.trim()).parse::<MetadataValue<Ascii>>();
        let mut value = value.map_err(|_| bad(file, "it is no token"))?;
        value.set_sensitive(true);
        self.token = Token(Some(value));
        Ok(self)
    }
}

// === impl Tls ===

impl Tls {
    /// Believes servers whose certificates an authority of `ca` (PEM) has signed.
    ///
    /// # Errors
    /// [`ClientError::File`].
    pub fn new(ca: &Path) -> Result<Self, ClientError> {
        Ok(Self(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(ca)?))))
    }

    /// Shows a certificate (PEM, both).
    ///
    /// # Errors
    /// [`ClientError::File`].
    pub fn with_identity(self, cert: &Path, key: &Path) -> Result<Self, ClientError> {
        Ok(Self(self.0.identity(Identity::from_pem(read(cert)?, read(key)?))))
    }

    /// Expects a certificate of this name, whatever the address.
    pub fn with_name(self, name: &str) -> Self {
        Self(self.0.domain_name(name))
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls(..)")
    }
}

fn read(file: &Path) -> Result<Vec<u8>, ClientError> {
    std::fs::read(file).map_err(|error| bad(file, &error.to_string()))
}

fn bad(file: &Path, why: &str) -> ClientError {
    ClientError::File { file: file.display().to_string(), why: why.to_owned() }
}

// === impl Token ===

impl Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Token(..)" } else { "Token(none)" })
    }
}

// === impl Client ===

impl Client {
    /// The way to `address`: `HOST:PORT`, `http://`, `https://` or `unix:///PATH`. Nothing is connected yet.
    ///
    /// # Errors
    /// [`ClientError::Address`], [`ClientError::NoAuthority`], [`ClientError::File`]. Needs a tokio runtime around it.
    pub fn new(address: &str, credentials: &Credentials) -> Result<Self, ClientError> {
        let bad_address = || ClientError::Address(address.to_owned());
        let url = match address.split_once(':') {
            Some(("unix" | "http" | "https", _)) => address.to_owned(),
            Some((_, rest)) if !rest.contains("//") => format!("http://{address}"),
            _ => return Err(bad_address()),
        };
        let secure = url.starts_with("https:");
        let mut endpoint = Endpoint::from_shared(url).map_err(|_| bad_address())?;
        endpoint = endpoint.connect_timeout(CONNECT).tcp_nodelay(true).http2_keep_alive_interval(CONNECT * 2);
        if secure {
            let Some(Tls(tls)) = &credentials.tls else { return Err(ClientError::NoAuthority(address.to_owned())) };
            let config = endpoint.tls_config(tls.clone());
            endpoint = config.map_err(|error| ClientError::File { file: "tls".to_owned(), why: cause(&error) })?;
        }
        let token = credentials.token.clone();
        let service = service(endpoint.connect_lazy(), token.clone());
        Ok(Self { address: address.to_owned(), endpoint, service, token })
    }

    /// The same, where a server that took the connection has so long to begin each answer.
    pub fn begins_within(mut self, time: Duration) -> Self {
        self.endpoint = self.endpoint.timeout(time);
        self.service = service(self.endpoint.connect_lazy(), self.token.clone());
        self
    }

    /// The address, as it was given.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The generated client, for every call there is. Clones share the connection.
    pub fn service(&self) -> Service {
        self.service.clone()
    }

    /// The same server over a connection of its own.
    pub(super) fn another(&self) -> Self {
        let service = service(self.endpoint.connect_lazy(), self.token.clone());
        Self { service, ..self.clone() }
    }

    /// Connects now, so that it is known whether anybody answers there.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`].
    pub async fn connect(&self) -> Result<Service, ClientError> {
        let channel = self.endpoint.connect().await.map_err(|error| self.unreachable(&error))?;
        Ok(service(channel, self.token.clone()))
    }

    /// The same, for whichever service is there.
    ///
    /// # Errors
    /// Like [`Client::connect`].
    pub async fn channel(&self) -> Result<Connection, ClientError> {
        let channel = self.endpoint.connect().await.map_err(|error| self.unreachable(&error))?;
        Ok(InterceptedService::new(channel, self.token.clone()))
    }

    /// Asks one question. The answer, or why there is none, is there `within` that time.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`], [`ClientError::Refused`], [`ClientError::Late`].
    pub async fn ask(&self, request: v1::MatchRequest, within: Duration) -> Result<v1::MatchResponse, ClientError> {
        let mut request = Request::new(request);
        // The server hears of it too, and does not work for nobody.
        request.set_timeout(within);
        let mut service = self.service();
        match tokio::time::timeout(within, service.r#match(request)).await {
            Err(_) => Err(ClientError::Late(within)),
            // The transport's own word for the same is that the call was cancelled.
            Ok(Err(status)) if matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled) => {
                Err(ClientError::Late(within))
            }
            Ok(Err(status)) => Err(self.refused(&status)),
            Ok(Ok(response)) => Ok(response.into_inner()),
        }
    }

    /// A status as an error.
    pub fn refused(&self, status: &Status) -> ClientError {
        if status.code() == Code::Unavailable
            && let Some(source) = status.source()
        {
            return self.unreachable(source);
        }
        ClientError::of(status)
    }

    fn unreachable(&self, error: &(dyn Error + 'static)) -> ClientError {
        ClientError::Unreachable { address: self.address.clone(), why: cause(error) }
    }
}

fn service(channel: Channel, token: Token) -> Service {
    QueryServiceClient::with_interceptor(channel, token).max_decoding_message_size(MAX_ANSWER)
}

// === impl ClientError ===

impl ClientError {
    /// A refusal in the server's words.
    pub fn of(status: &Status) -> Self {
        let why = if status.message().is_empty() { status.code().description() } else { status.message() };
        let message = match status.source() {
            Some(source) => format!("{why}: {}", cause(source)),
            None => why.to_owned(),
        };
        Self::Refused { code: status.code(), message }
    }

    /// A stable word.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Address(_) => "address",
            Self::NoAuthority(_) => "no_authority",
            Self::File { .. } => "file",
            Self::Unreachable { .. } => "unreachable",
            Self::Refused { .. } => "refused",
            Self::Late(_) => "late",
        }
    }
}

/// The innermost cause: the layers above it say only that something failed.
fn cause(error: &(dyn Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
