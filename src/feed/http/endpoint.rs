//! `http://host:port/path`.

use std::fmt;
use std::str::FromStr;

use crate::feed::link::{Endpoint, Host};

/// Where events are polled.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct HttpEndpoint {
    /// The host; never `*`.
    pub host: Host,
    /// The port; 80 where none is written.
    pub port: u16,
    /// The path, with its `/`, and a query where there is one.
    pub path: String,
}

/// Why an endpoint is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HttpEndpointError {
    /// There is no TLS yet.
    #[error("endpoint `{0}`: https is not supported yet, only http")]
    Https(String),
    /// Another scheme, or none.
    #[error("endpoint `{0}` does not begin with http://")]
    Scheme(String),
    /// No host that can be connected to, or no port from 1 to 65535.
    #[error("endpoint `{0}`: expected http://host:port/path")]
    Authority(String),
    /// No path, or characters that no path has.
    #[error("endpoint `{0}` names no path; TensorRT-LLM's is /kv_cache_events")]
    Path(String),
}

// === impl HttpEndpoint ===

impl HttpEndpoint {
    /// Whether only this host can be at the other end. Anything else is plaintext over a network.
    pub fn is_local(&self) -> bool {
        Endpoint::Tcp { host: self.host.clone(), port: self.port }.is_local()
    }

    /// Host and port, as a request names them.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

impl FromStr for HttpEndpoint {
    type Err = HttpEndpointError;

    fn from_str(text: &str) -> Result<Self, HttpEndpointError> {
        let owned = || text.to_owned();
        if text.starts_with("https://") {
            return Err(HttpEndpointError::Https(owned()));
        }
        let Some(rest) = text.strip_prefix("http://") else { return Err(HttpEndpointError::Scheme(owned())) };
        let Some(slash) = rest.find('/') else { return Err(HttpEndpointError::Path(owned())) };
        let (authority, path) = rest.split_at(slash);
        if path.len() < 2 || !path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
            return Err(HttpEndpointError::Path(owned()));
        }
        // A port is what follows the last colon outside of brackets.
        let with_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
        let tcp = if with_port { format!("tcp://{authority}") } else { format!("tcp://{authority}:80") };
        match tcp.parse() {
            Ok(Endpoint::Tcp { host, port }) if port > 0 && !host.is_any() => {
                Ok(Self { host, port, path: path.to_owned() })
            }
            _ => Err(HttpEndpointError::Authority(owned())),
        }
    }
}

impl fmt::Display for HttpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority(), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_understood_and_written_back() {
        for (text, back) in [
            ("http://127.0.0.1:8000/kv_cache_events", "http://127.0.0.1:8000/kv_cache_events"),
            ("http://[::1]:8000/kv_cache_events", "http://[::1]:8000/kv_cache_events"),
            ("http://engine.svc/v1/kv?all=1", "http://engine.svc:80/v1/kv?all=1"),
            ("http://[::1]/kv", "http://[::1]:80/kv"),
        ] {
            let endpoint: HttpEndpoint = text.parse().unwrap();
            assert_eq!(endpoint.to_string(), back);
            assert_eq!(back.parse(), Ok(endpoint));
        }
    }

    #[test]
    fn a_faulty_endpoint_is_refused_by_the_name_of_its_fault() {
        type Fault = fn(String) -> HttpEndpointError;
        let cases: [(&str, Fault); 10] = [
            ("https://h:1/kv", HttpEndpointError::Https),
            ("tcp://h:1", HttpEndpointError::Scheme),
            ("", HttpEndpointError::Scheme),
            ("http://h:1", HttpEndpointError::Path),
            ("http://h:1/", HttpEndpointError::Path),
            ("http://h:1/a b", HttpEndpointError::Path),
            ("http://*:1/kv", HttpEndpointError::Authority),
            ("http://h:0/kv", HttpEndpointError::Authority),
            ("http://user@h:1/kv", HttpEndpointError::Authority),
            ("http://:1/kv", HttpEndpointError::Authority),
        ];
        for (text, fault) in cases {
            assert_eq!(text.parse::<HttpEndpoint>(), Err(fault(text.to_owned())));
        }
    }

    #[test]
    fn only_loopback_is_local() {
        let local = |text: &str| text.parse::<HttpEndpoint>().unwrap().is_local();
        assert!(local("http://localhost:1/kv") && local("http://[::1]:1/kv"));
        assert!(!local("http://10.0.0.1:1/kv") && !local("http://engine:1/kv"));
    }
}
