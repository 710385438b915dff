//! The way to a server, or to many.

use std::path::PathBuf;
use std::time::Duration;

use tonic::{Code, Status};

use super::{Failure, units};
use crate::client::{Client, ClientError, Connection, Credentials, Servers, ServersOptions, Service, Tls};

/// Which server is asked, and what it is shown.
#[derive(Clone, Debug, clap::Args)]
pub struct Server {
    /// The server: HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:///PATH.
    #[arg(long = "server", value_name = "ADDR", default_value = "127.0.0.1:9400")]
    address: String,
    #[command(flatten)]
    proof: Proof,
    /// How long an answer may take to begin: a number with ms, s, m or h.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::time)]
    within: Duration,
}

/// How server and caller prove who they are.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Proof {
    /// The authority that signed the certificate of an https server (PEM).
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// The certificate to show to a server that wants one (PEM).
    #[arg(long, value_name = "FILE", requires_all = ["tls_ca", "tls_key"])]
    tls_cert: Option<PathBuf>,
    /// Its private key (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The name in the server's certificate, where it is not the server's address.
    #[arg(long, value_name = "NAME", requires = "tls_ca")]
    tls_name: Option<String>,
    /// A file with the bearer token that the server wants.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

// === impl Server ===

impl Server {
    /// Connects to the one server.
    ///
    /// # Errors
    /// [`Failure::Usage`] where the address is none or a file cannot be used, [`Failure::Failed`] where nobody answers
    /// there.
    pub(super) async fn connect(&self) -> Result<Service, Failure> {
        Ok(self.client(&self.address)?.connect().await?)
    }

    /// The servers, where several are named with commas between them.
    ///
    /// # Errors
    /// [`Failure::Usage`] where an address is none or a file cannot be used.
    pub(super) fn servers(&self) -> Result<Option<Servers>, Failure> {
        if !self.address.contains(',') {
            return Ok(None);
        }
        let addresses = self.address.split(',').map(str::trim).filter(|address| !address.is_empty());
        let clients = addresses.map(|address| self.client(address)).collect::<Result<Vec<_>, _>>()?;
        let options = ServersOptions { within: self.within, hedge: self.within / 4, ..ServersOptions::default() };
        Ok(Some(Servers::new(clients, options)))
    }

    /// The server at an address that another flag names.
    pub(super) const fn at(address: String, proof: Proof) -> Self {
        Self { address, proof, within: Duration::from_secs(10) }
    }

    /// Connects, for whichever service is there.
    ///
    /// # Errors
    /// Like [`Server::connect`].
    pub(super) async fn channel(&self) -> Result<Connection, Failure> {
        Ok(self.client(&self.address)?.channel().await?)
    }

    /// The server, as it was named.
    pub(super) fn name(&self) -> &str {
        &self.address
    }

    /// Why a call failed. What the server answers of a request is in its own words; where no kvtap seems to answer at
    /// all, its address is named.
    pub(super) fn refused(&self, status: &Status) -> Failure {
        let error = ClientError::of(status);
        match status.code() {
            Code::InvalidArgument | Code::NotFound | Code::ResourceExhausted | Code::Unauthenticated => error.into(),
            _ => Failure::Failed(format!("{}: {error} (is this the gRPC port of a kvtap?)", self.address)),
        }
    }

    fn client(&self, address: &str) -> Result<Client, Failure> {
        Ok(Client::new(address, &self.proof.credentials()?)?.begins_within(self.within))
    }
}

// === impl Proof ===

impl Proof {
    fn credentials(&self) -> Result<Credentials, Failure> {
        let mut credentials = Credentials::default();
        if let Some(ca) = &self.tls_ca {
            let mut tls = Tls::new(ca)?;
            if let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) {
                tls = tls.with_identity(cert, key)?;
            }
            if let Some(name) = &self.tls_name {
                tls = tls.with_name(name);
            }
            credentials.tls = Some(tls);
        }
        match &self.token_file {
            Some(file) => Ok(credentials.with_token(file)?),
            None => Ok(credentials),
        }
    }
}

/// A refusal by the server, in its words.
pub(super) fn refused(status: &Status) -> Failure {
    ClientError::of(status).into()
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Address(_) => Self::Usage(format!("--server: {error}")),
            ClientError::NoAuthority(_) => Self::Usage(format!("--tls-ca: {error}")),
            ClientError::File { .. } => Self::Usage(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}
