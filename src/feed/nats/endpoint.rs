//! `nats://host:port`, or several, comma-separated.

use std::fmt;
use std::str::FromStr;

use crate::feed::link::{Endpoint, Host};

/// The servers of one NATS system.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NatsEndpoint {
    /// At least one.
    servers: Vec<(Host, u16)>,
    /// Whether nothing but TLS will do.
    tls: bool,
}

/// Why an endpoint is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NatsEndpointError {
    /// Another scheme, or none, or two of them.
    #[error("endpoint `{0}`: expected nats://host:port or tls://host:port, all servers alike")]
    Scheme(String),
    /// No host that can be connected to, or no port from 1 to 65535.
    #[error("endpoint `{0}`: expected host:port after the scheme")]
    Authority(String),
    /// A user, a password or a token: endpoints are shown and logged.
    #[error("an endpoint names no user or password: use nats.credentials or nats.nkey")]
    Secret,
}

/// The port of a server whose endpoint names none.
const PORT: u16 = 4222;

// === impl NatsEndpoint ===

impl NatsEndpoint {
    /// Whether nothing but TLS will do.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// Whether only this host can be at the other end.
    pub fn is_local(&self) -> bool {
        self.servers.iter().all(|(host, port)| Endpoint::Tcp { host: host.clone(), port: *port }.is_local())
    }

    /// Each server's URL.
    pub fn urls(&self) -> impl Iterator<Item = String> + '_ {
        let scheme = if self.tls { "tls" } else { "nats" };
        self.servers.iter().map(move |(host, port)| format!("{scheme}://{host}:{port}"))
    }
}

impl FromStr for NatsEndpoint {
    type Err = NatsEndpointError;

    fn from_str(text: &str) -> Result<Self, NatsEndpointError> {
        if text.contains('@') {
            return Err(NatsEndpointError::Secret);
        }
        let scheme = || NatsEndpointError::Scheme(text.to_owned());
        let authority = || NatsEndpointError::Authority(text.to_owned());
        let tls = text.starts_with("tls://");
        let prefix = if tls { "tls://" } else { "nats://" };
        let mut servers = Vec::new();
        for (i, server) in text.split(',').map(str::trim).enumerate() {
            // The scheme of the first does for all.
            let server = match server.strip_prefix(prefix) {
                Some(server) => server,
                None if i == 0 || server.contains("://") => return Err(scheme()),
                None => server,
            };
            let server = server.strip_suffix('/').unwrap_or(server);
            let with_port = server.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
            let tcp = if with_port { format!("tcp://{server}") } else { format!("tcp://{server}:{PORT}") };
            match tcp.parse() {
                Ok(Endpoint::Tcp { host, port }) if port > 0 && !host.is_any() => servers.push((host, port)),
                _ => return Err(authority()),
            }
        }
        Ok(Self { servers, tls })
    }
}

impl fmt::Display for NatsEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, url) in self.urls().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{url}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_understood_and_written_back() {
        for (text, back) in [
            ("nats://nats:4222", "nats://nats:4222"),
            ("nats://127.0.0.1", "nats://127.0.0.1:4222"),
            ("tls://a:1,b:2", "tls://a:1,tls://b:2"),
            ("nats://[::1]:4223/", "nats://[::1]:4223"),
        ] {
            assert_eq!(text.parse::<NatsEndpoint>().unwrap().to_string(), back);
        }
        for text in ["", "nats://", "tcp://a:1", "nats://a:0", "nats://*:1", "nats://a:1,tls://b:2", "nats://u:p@a:1"] {
            assert!(text.parse::<NatsEndpoint>().is_err(), "{text}");
        }
    }
}
