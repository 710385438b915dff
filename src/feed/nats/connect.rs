//! How a NATS server is reached: who we are, whom we believe, and how soon a dead one is noticed.
//!
//! Files with secrets and certificates are read again for each connection, so that what was rotated is used from the
//! next one on, and a server that ends a connection because a credential ran out gets the new one.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::{Auth, AuthError, Client, ClientError, ConnectOptions, Event};
use tokio::sync::mpsc;

use super::NatsEndpoint;
use crate::backoff::Backoff;

/// What a client remembers of its connection until somebody looks.
const EVENTS: usize = 256;

/// The largest file of secrets, in bytes.
const MAX_SECRET: u64 = 64 << 10;

/// How a NATS system is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectionOptions {
    /// Its servers.
    pub endpoint: NatsEndpoint,
    /// Who we are, and whom we believe.
    pub security: Security,
    /// How often a silent connection is tested; it ends where three such tests stay without an answer.
    pub ping_interval: Duration,
    /// The first pause before an attempt to reconnect; each next one is twice as long.
    pub first_retry: Duration,
    /// The longest such pause.
    pub longest_retry: Duration,
    /// Messages that may wait in the client for each subscription.
    pub subscription: usize,
}

/// Files that say who we are, and whom we believe.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Security {
    /// A `.creds` file: a user's JWT and the seed of its key.
    pub credentials: Option<PathBuf>,
    /// A file with the seed of a user's nkey.
    pub nkey: Option<PathBuf>,
    /// Certificates (PEM) of whoever may sign a server's; those of the system where there is none.
    pub ca: Option<PathBuf>,
    /// Our certificate and its key (PEM), for servers that ask for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A client, and what happens to its connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) events: mpsc::Receiver<async_nats::Event>,
}

/// Why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
enum SecretError {
    #[error("{0} cannot be read: {1}")]
    Read(String, std::io::Error),
    #[error("{0} does not hold what it should")]
    Content(String),
}

// === impl ConnectionOptions ===

impl ConnectionOptions {
    /// Without any security: pings every 2 s, retries after 100 ms to 1 s, 65,536 messages for each subscription.
    pub fn new(endpoint: NatsEndpoint) -> Self {
        Self {
            endpoint,
            security: Security::default(),
            ping_interval: Duration::from_secs(2),
            first_retry: Duration::from_millis(100),
            longest_retry: Duration::from_secs(1),
            subscription: 1 << 16,
        }
    }

    /// A client that connects, and reconnects, by itself for as long as it lives. It is there before its connection.
    pub(crate) async fn connect(&self, name: &str) -> Result<Connection, async_nats::ConnectError> {
        let (told, events) = mpsc::channel(EVENTS);
        let security = self.security.clone();
        let anonymous = security.credentials.is_none() && security.nkey.is_none();
        // The client says no more than that it failed.
        let fault: Arc<Mutex<Option<String>>> = Arc::default();
        let options = if anonymous {
            ConnectOptions::new()
        } else {
            let fault = Arc::clone(&fault);
            ConnectOptions::with_auth_callback(move |nonce| {
                let (security, fault) = (security.clone(), Arc::clone(&fault));
                async move {
                    let auth = security.authenticate(&nonce).await;
                    *fault.lock().unwrap_or_else(PoisonError::into_inner) =
                        auth.as_ref().err().map(ToString::to_string);
                    auth.map_err(AuthError::new)
                }
            })
        };
        let is_tls = self.endpoint.is_tls();
        let backoff = Backoff::new(self.first_retry, self.longest_retry);
        // The client asks how long to wait before its very first attempt, too: there is nothing to wait for.
        let is_first = AtomicBool::new(true);
        let mut options = options
            .name(name)
            .retry_on_initial_connect()
            .max_reconnects(None)
            .ping_interval(self.ping_interval)
            .connection_timeout(Duration::from_secs(5))
            .subscription_capacity(self.subscription)
            .require_tls(self.endpoint.is_tls())
            .reconnect_delay_callback(move |attempt| {
                if is_first.swap(false, Ordering::Relaxed) {
                    return Duration::ZERO;
                }
                backoff.after(u32::try_from(attempt).unwrap_or(u32::MAX))
            })
            .event_callback(move |event| {
                let told = told.clone();
                let event = explained(event, is_tls, &fault);
                async move {
                    // Nobody listens any more: then nobody needs to know.
                    let _ = told.send(event).await;
                }
            });
        if let Some(ca) = &self.security.ca {
            options = options.add_root_certificates(ca.clone());
        }
        if let Some((certificate, key)) = &self.security.identity {
            options = options.add_client_certificate(certificate.clone(), key.clone());
        }
        let urls: Vec<String> = self.endpoint.urls().collect();
        let client = options.connect(urls).await?;
        Ok(Connection { client, events })
    }
}

/// What the client says of a failure, with what it does not know: what we have read, and where it is configured.
fn explained(event: Event, is_tls: bool, fault: &Mutex<Option<String>>) -> Event {
    let Event::ClientError(ClientError::Other(what)) = event else { return event };
    let secret = fault.lock().unwrap_or_else(PoisonError::into_inner).take();
    let lower = what.to_ascii_lowercase();
    let what = match secret {
        Some(secret) => secret,
        None if lower.contains("authorization") || lower.contains("authentication") => {
            format!("the server does not let us in ({what}): see nats.credentials or nats.nkey")
        }
        // The handshake is input and output as well, and a server that does not take a certificate just hangs up.
        None if is_tls && ["tls", "io error"].iter().any(|word| lower.contains(word)) => format!(
            "{what}: no server is reached, nobody in nats.ca has signed its certificate, or it does not take nats.certificate"
        ),
        None => what,
    };
    Event::ClientError(ClientError::Other(what))
}

// === impl Security ===

impl Security {
    async fn authenticate(&self, nonce: &[u8]) -> Result<Auth, SecretError> {
        let mut auth = Auth::new();
        let (path, seed) = match (&self.credentials, &self.nkey) {
            (Some(path), _) => {
                let text = secret(path).await?;
                let jwt = between(&text, "NATS USER JWT").ok_or_else(|| content(path))?;
                auth.jwt = Some(jwt.to_owned());
                (path, between(&text, "USER NKEY SEED").ok_or_else(|| content(path))?.to_owned())
            }
            (None, Some(path)) => {
                let text = secret(path).await?;
                let seed = between(&text, "USER NKEY SEED").unwrap_or(text.trim()).to_owned();
                (path, seed)
            }
            (None, None) => return Ok(auth),
        };
        let key = nkeys::KeyPair::from_seed(&seed).map_err(|_| content(path))?;
        if auth.jwt.is_none() {
            auth.nkey = Some(key.public_key());
        }
        auth.signature = Some(key.sign(nonce).map_err(|_| content(path))?);
        Ok(auth)
    }
}

fn content(path: &Path) -> SecretError {
    SecretError::Content(path.display().to_string())
}

async fn secret(path: &Path) -> Result<String, SecretError> {
    let name = || path.display().to_string();
    let failed = |error| SecretError::Read(name(), error);
    let length = tokio::fs::metadata(path).await.map_err(failed)?.len();
    if length > MAX_SECRET {
        return Err(content(path));
    }
    tokio::fs::read_to_string(path).await.map_err(failed)
}

/// What stands between the lines that begin and end a `title`, in a file as the tools of NATS write them.
fn between<'a>(text: &'a str, title: &str) -> Option<&'a str> {
    let (_, after) = text.split_once(&format!("BEGIN {title}"))?;
    let (_, body) = after.split_once('\n')?;
    let (body, _) = body.split_once(&format!("END {title}"))?;
    Some(body.trim_end_matches('-').trim()).filter(|body| !body.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tools_write_is_taken_apart() {
        let creds = "-----BEGIN NATS USER JWT-----\neyJ0\n------END NATS USER JWT------\n\nnotes\n\n\
                     -----BEGIN USER NKEY SEED-----\nSUAA\n------END USER NKEY SEED------\n";
        assert_eq!(between(creds, "NATS USER JWT"), Some("eyJ0"));
        assert_eq!(between(creds, "USER NKEY SEED"), Some("SUAA"));
        for broken in ["", "BEGIN NATS USER JWT", "-----BEGIN NATS USER JWT-----\n------END NATS USER JWT------"] {
            assert_eq!(between(broken, "NATS USER JWT"), None);
        }
    }
}
