//! Endpoints: where a feed or a replay is reached, as configured.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;

/// In an `ipc` path, stands for the rank.
const RANK: &str = "{rank}";

/// The longest path that a unix socket address holds on Linux, in bytes.
const MAX_PATH: usize = 107;

/// Where a peer is reached, or where this side listens.
///
/// `tcp://HOST:PORT`, where the host is an IPv4 address, an IPv6 address in brackets, a name, or `*`; or
/// `ipc:///PATH`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Endpoint {
    /// A TCP port.
    Tcp {
        /// The host.
        host: Host,
        /// The port; 0 lets the system choose one, when bound.
        port: u16,
    },
    /// A unix socket, by its absolute path.
    Ipc {
        /// The path.
        path: PathBuf,
    },
}

/// The host of a TCP endpoint.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Host {
    /// `*`: every interface, IPv6 and IPv4.
    Any,
    /// An address.
    Ip(IpAddr),
    /// A name, resolved at every attempt.
    Name(String),
}

/// Which side opens the connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// The engine binds, this side connects.
    #[default]
    Connect,
    /// The engine connects, this side binds.
    Bind,
}

/// Why an endpoint is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EndpointError {
    /// Neither `tcp://` nor `ipc://`.
    #[error("endpoint `{0}` begins with neither tcp:// nor ipc://")]
    Scheme(String),
    /// A TCP endpoint without a port.
    #[error("endpoint `{0}` names no port")]
    NoPort(String),
    /// A port that is not a number up to 65535.
    #[error("endpoint `{0}`: the port is not a number between 0 and 65535")]
    BadPort(String),
    /// A TCP endpoint without a host, or with characters that no host has.
    #[error("endpoint `{0}`: the host is neither a name, an IPv4 address, an IPv6 address in brackets, nor *")]
    BadHost(String),
    /// An IPC path that is not absolute. Abstract sockets (`ipc://@name`) count among these.
    #[error("endpoint `{0}`: the path after ipc:// is not absolute")]
    RelativePath(String),
    /// An IPC path that no socket address holds.
    #[error("endpoint `{0}`: the path is longer than {MAX_PATH} bytes")]
    PathTooLong(String),
    /// Base port and rank exceed the range of ports.
    #[error("endpoint `{endpoint}`: port plus rank {rank} is above 65535")]
    PortRange {
        /// The endpoint.
        endpoint: Endpoint,
        /// The rank.
        rank: u32,
    },
    /// An IPC path is the same for every rank.
    #[error("endpoint `{endpoint}`: an ipc path serves one rank; name rank {rank}'s with {RANK} in the path")]
    IpcRank {
        /// The endpoint.
        endpoint: Endpoint,
        /// The rank.
        rank: u32,
    },
    /// All interfaces can be bound, not connected to.
    #[error("endpoint `{0}` means every interface: that can be bound; to connect, name the host")]
    Wildcard(Endpoint),
    /// Port 0 can be bound, not connected to.
    #[error("endpoint `{0}`: port 0 can be bound; to connect, name the port")]
    PortZero(Endpoint),
    /// A transport that serves local peers only.
    #[error("endpoint `{0}` is not local: the zeromq transport serves loopback and ipc only")]
    NotLocal(Endpoint),
}

// === impl Endpoint ===

impl Endpoint {
    /// The endpoint of rank `rank`, where this is the one that was configured: port plus rank, as vLLM and SGLang
    /// count, for the feed and for the replay alike. Port 0 stays 0.
    ///
    /// An IPC path holds one socket, and engines disagree on the others (vLLM and SGLang refuse ranks above 0,
    /// TensorRT-LLM appends a suffix), so it is never guessed: write `{rank}` where the rank's number goes, as in
    /// `ipc:///run/kv_dp{rank}`.
    ///
    /// # Errors
    /// [`EndpointError::PortRange`], [`EndpointError::IpcRank`], [`EndpointError::PathTooLong`].
    pub fn at_rank(&self, rank: u32) -> Result<Self, EndpointError> {
        match self {
            Self::Tcp { port: 0, .. } => Ok(self.clone()),
            Self::Tcp { host, port } => u32::from(*port)
                .checked_add(rank)
                .and_then(|port| u16::try_from(port).ok())
                .map(|port| Self::Tcp { host: host.clone(), port })
                .ok_or_else(|| EndpointError::PortRange { endpoint: self.clone(), rank }),
            Self::Ipc { path } => {
                // A parsed path is text, so nothing is lost here.
                let text = path.to_string_lossy();
                if text.contains(RANK) {
                    format!("ipc://{}", text.replace(RANK, &rank.to_string())).parse()
                } else if rank == 0 {
                    Ok(self.clone())
                } else {
                    Err(EndpointError::IpcRank { endpoint: self.clone(), rank })
                }
            }
        }
    }

    /// Whether this endpoint can be used in `mode`.
    ///
    /// # Errors
    /// [`EndpointError::Wildcard`] and [`EndpointError::PortZero`] where it can only be bound.
    pub fn check(&self, mode: Mode) -> Result<(), EndpointError> {
        match (mode, self) {
            (Mode::Connect, Self::Tcp { host, .. }) if host.is_any() => Err(EndpointError::Wildcard(self.clone())),
            (Mode::Connect, Self::Tcp { port: 0, .. }) => Err(EndpointError::PortZero(self.clone())),
            _ => Ok(()),
        }
    }

    /// Whether only this host (or this pod) can be at the other end: loopback or a unix socket. Anything else is
    /// plaintext over a network, which deserves a warning.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp { host: Host::Ip(ip), .. } => ip.to_canonical().is_loopback(),
            Self::Tcp { host: Host::Name(name), .. } => name.eq_ignore_ascii_case("localhost"),
            Self::Tcp { host: Host::Any, .. } => false,
            Self::Ipc { .. } => true,
        }
    }

    /// What two endpoints share when they cannot both be served: all of this host's addresses count as one.
    pub fn socket(&self) -> String {
        match self {
            Self::Tcp { host, port } if self.is_local() || host.is_any() => format!("tcp://localhost:{port}"),
            other => other.to_string(),
        }
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if let Some(path) = text.strip_prefix("ipc://") {
            if !path.starts_with('/') || path.contains('\0') {
                return Err(EndpointError::RelativePath(text.to_owned()));
            }
            if path.len() > MAX_PATH {
                return Err(EndpointError::PathTooLong(text.to_owned()));
            }
            return Ok(Self::Ipc { path: PathBuf::from(path) });
        }
        let Some(rest) = text.strip_prefix("tcp://") else {
            return Err(EndpointError::Scheme(text.to_owned()));
        };
        let Some((host, port)) = rest.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) else {
            return Err(EndpointError::NoPort(text.to_owned()));
        };
        let host = Host::parse(host).ok_or_else(|| EndpointError::BadHost(text.to_owned()))?;
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        match port.parse() {
            Ok(port) if digits => Ok(Self::Tcp { host, port }),
            _ if port == "*" => Ok(Self::Tcp { host, port: 0 }),
            _ => Err(EndpointError::BadPort(text.to_owned())),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Self::Ipc { path } => write!(f, "ipc://{}", path.display()),
        }
    }
}

// === impl Host ===

impl Host {
    fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::Any);
        }
        if let Some(inner) = text.strip_prefix('[') {
            return inner.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(|ip| Self::Ip(ip.into()));
        }
        // vLLM and SGLang documents also write `tcp://:::5557`; only there are the brackets dispensable.
        if text == "::" {
            return Some(Self::Ip(Ipv6Addr::UNSPECIFIED.into()));
        }
        if let Ok(ip) = text.parse::<std::net::Ipv4Addr>() {
            return Some(Self::Ip(ip.into()));
        }
        let named = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        named.then(|| Self::Name(text.to_owned()))
    }

    /// Whether this means every interface: `*`, `0.0.0.0` or `::`.
    pub fn is_any(&self) -> bool {
        match self {
            Self::Any => true,
            Self::Ip(ip) => ip.is_unspecified(),
            Self::Name(_) => false,
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Ip(IpAddr::V4(ip)) => write!(f, "{ip}"),
            Self::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> Endpoint {
        text.parse().expect(text)
    }

    #[test]
    fn what_engines_are_configured_with_is_understood_and_written_back() {
        for (text, back) in [
            ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5557"),
            ("tcp://[::1]:5557", "tcp://[::1]:5557"),
            ("tcp://[fe80::1:2]:1", "tcp://[fe80::1:2]:1"),
            ("tcp://vllm-0.engines.svc:65535", "tcp://vllm-0.engines.svc:65535"),
            ("tcp://localhost:5557", "tcp://localhost:5557"),
            ("tcp://*:5557", "tcp://*:5557"),
            ("tcp://*:*", "tcp://*:0"),
            ("tcp://0.0.0.0:0", "tcp://0.0.0.0:0"),
            ("tcp://[::]:5557", "tcp://[::]:5557"),
            ("tcp://:::5557", "tcp://[::]:5557"),
            ("ipc:///run/kv/events.sock", "ipc:///run/kv/events.sock"),
        ] {
            assert_eq!(endpoint(text).to_string(), back);
            assert_eq!(endpoint(back), endpoint(text));
        }
    }

    #[test]
    fn a_faulty_endpoint_is_refused_by_the_name_of_its_fault() {
        type Fault = fn(String) -> EndpointError;
        let cases: [(&str, Fault); 19] = [
            ("", EndpointError::Scheme),
            ("127.0.0.1:5557", EndpointError::Scheme),
            ("inproc://kv", EndpointError::Scheme),
            ("TCP://127.0.0.1:5557", EndpointError::Scheme),
            ("tcp://", EndpointError::NoPort),
            ("tcp://host", EndpointError::NoPort),
            ("tcp://[::1]", EndpointError::NoPort),
            ("tcp://host:", EndpointError::BadPort),
            ("tcp://host:65536", EndpointError::BadPort),
            ("tcp://host:+1", EndpointError::BadPort),
            ("tcp://host:http", EndpointError::BadPort),
            ("tcp://:5557", EndpointError::BadHost),
            ("tcp://::1:5557", EndpointError::BadHost),
            ("tcp://[host]:5557", EndpointError::BadHost),
            ("tcp://[127.0.0.1]:5557", EndpointError::BadHost),
            ("tcp://a b:5557", EndpointError::BadHost),
            ("tcp://eth0;host:5557", EndpointError::BadHost),
            ("ipc://events.sock", EndpointError::RelativePath),
            ("ipc://@abstract", EndpointError::RelativePath),
        ];
        for (text, fault) in cases {
            assert_eq!(text.parse::<Endpoint>(), Err(fault(text.to_owned())));
        }
        let long = format!("ipc:///{}", "x".repeat(107));
        assert_eq!(long.parse::<Endpoint>(), Err(EndpointError::PathTooLong(long)));
    }

    #[test]
    fn a_rank_is_added_to_the_port() {
        assert_eq!(endpoint("tcp://h:5557").at_rank(3), Ok(endpoint("tcp://h:5560")));
        assert_eq!(endpoint("tcp://*:0").at_rank(3), Ok(endpoint("tcp://*:0")));
        assert_eq!(endpoint("tcp://h:65535").at_rank(0), Ok(endpoint("tcp://h:65535")));
        for rank in [1, u32::MAX] {
            let refused = endpoint("tcp://h:65535").at_rank(rank);
            assert_eq!(refused, Err(EndpointError::PortRange { endpoint: endpoint("tcp://h:65535"), rank }));
        }
    }

    #[test]
    fn an_ipc_path_serves_one_rank_unless_it_says_where_the_rank_goes() {
        let plain = endpoint("ipc:///run/kv");
        assert_eq!(plain.at_rank(0), Ok(plain.clone()));
        assert_eq!(plain.at_rank(1), Err(EndpointError::IpcRank { endpoint: plain.clone(), rank: 1 }));
        let ranked = endpoint("ipc:///run/kv_dp{rank}");
        assert_eq!(ranked.at_rank(0), Ok(endpoint("ipc:///run/kv_dp0")));
        assert_eq!(ranked.at_rank(12), Ok(endpoint("ipc:///run/kv_dp12")));
    }

    #[test]
    fn only_a_named_host_and_port_can_be_connected_to() {
        for text in ["tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://[::]:5557"] {
            assert_eq!(endpoint(text).check(Mode::Connect), Err(EndpointError::Wildcard(endpoint(text))));
            assert_eq!(endpoint(text).check(Mode::Bind), Ok(()));
        }
        let zero = endpoint("tcp://127.0.0.1:0");
        assert_eq!(zero.check(Mode::Connect), Err(EndpointError::PortZero(zero.clone())));
        assert_eq!(zero.check(Mode::Bind), Ok(()));
        assert_eq!(endpoint("ipc:///run/kv").check(Mode::Connect), Ok(()));
    }

    #[test]
    fn loopback_and_unix_sockets_are_local_and_nothing_else_is() {
        for text in
            ["tcp://127.9.9.9:1", "tcp://[::1]:1", "tcp://[::ffff:127.0.0.1]:1", "tcp://LocalHost:1", "ipc:///x"]
        {
            assert!(endpoint(text).is_local(), "{text}");
        }
        for text in ["tcp://10.0.0.1:1", "tcp://*:1", "tcp://0.0.0.0:1", "tcp://[::]:1", "tcp://localhost.evil:1"] {
            assert!(!endpoint(text).is_local(), "{text}");
        }
    }
}
