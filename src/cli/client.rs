//! The way to a server.

use std::error::Error;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::Failure;
use crate::proto::v1::query_service_client::QueryServiceClient;

/// Which server is asked.
#[derive(Clone, Debug, clap::Args)]
pub struct Server {
    /// The server: HOST:PORT, http://HOST:PORT or unix:///PATH.
    #[arg(long = "server", value_name = "ADDR", default_value = "127.0.0.1:9400")]
    address: String,
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a server that took the connection may take to begin an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest answer that is read, in bytes: thousands of workers.
const MAX_ANSWER: usize = 64 << 20;

// === impl Server ===

impl Server {
    /// Connects.
    ///
    /// # Errors
    /// [`Failure::Usage`] where the address is none, [`Failure::Failed`] where nobody answers there.
    pub(super) async fn connect(&self) -> Result<QueryServiceClient<Channel>, Failure> {
        let endpoint = self.endpoint()?.connect_timeout(CONNECT_TIMEOUT).timeout(ANSWER_TIMEOUT).tcp_nodelay(true);
        let channel = endpoint.connect().await;
        let channel =
            channel.map_err(|error| Failure::Failed(format!("cannot reach {}: {}", self.address, cause(&error))))?;
        Ok(QueryServiceClient::new(channel).max_decoding_message_size(MAX_ANSWER))
    }

    /// Why a call failed. What the server answers of a request is in its own words; where no kvtap seems to answer at
    /// all, its address is named.
    pub(super) fn refused(&self, status: &Status) -> Failure {
        match status.code() {
            Code::InvalidArgument | Code::NotFound | Code::OutOfRange | Code::ResourceExhausted => refused(status),
            _ => {
                let (Failure::Failed(why) | Failure::Usage(why)) = refused(status) else { return refused(status) };
                Failure::Failed(format!("{}: {why} (is this the gRPC port of a kvtap?)", self.address))
            }
        }
    }

    fn endpoint(&self) -> Result<Endpoint, Failure> {
        let bad = || {
            Failure::Usage(format!("--server: {:?} is not HOST:PORT, http://HOST:PORT or unix:///PATH", self.address))
        };
        let address = match self.address.split_once(':') {
            Some(("unix" | "http", _)) => self.address.clone(),
            Some((_, rest)) if !rest.contains("//") => format!("http://{}", self.address),
            _ => return Err(bad()),
        };
        Endpoint::from_shared(address).map_err(|_| bad())
    }
}

/// A refusal by the server, in its words.
pub(super) fn refused(status: &Status) -> Failure {
    let why = if status.message().is_empty() { status.code().description() } else { status.message() };
    match status.source() {
        Some(source) => Failure::Failed(format!("{why}: {}", cause(source))),
        None => Failure::Failed(why.to_owned()),
    }
}

/// The innermost cause: the layers above it say only that something failed.
fn cause(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
