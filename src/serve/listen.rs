//! Listening sockets: tcp and unix, bound before anything is served on them.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, UnixListener};

/// Where to listen: `HOST:PORT`, `[::]:PORT` (IPv6 and IPv4 on one socket), or `unix:///PATH`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ListenAddr {
    /// An address and a port; port 0 is any free one.
    Tcp(SocketAddr),
    /// The path of a unix socket.
    Unix(PathBuf),
}

/// A bound socket. Connections wait in it from now on.
#[derive(Debug)]
pub enum Listener {
    /// A tcp socket.
    Tcp(TcpListener),
    /// A unix socket, and its file.
    Unix(UnixListener, PathBuf),
}

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Neither a tcp address nor a unix socket.
    #[error("{0:?} is neither HOST:PORT nor unix:///PATH")]
    BadAddress(String),
    /// A file that is no socket stands where the socket should be.
    #[error("{} exists and is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// The operating system refuses.
    #[error("cannot listen on {address}: {error}")]
    Refused {
        /// The address.
        address: ListenAddr,
        /// Why.
        error: io::Error,
    },
}

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

// === impl ListenAddr ===

impl FromStr for ListenAddr {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        let bad = || ListenError::BadAddress(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.is_empty() { Err(bad()) } else { Ok(Self::Unix(path.into())) };
        }
        let mut addresses = text.to_socket_addrs().map_err(|_| bad())?;
        addresses.next().map(Self::Tcp).ok_or_else(bad)
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

// === impl Listener ===

impl Listener {
    /// Binds `address`. Needs a tokio runtime around it.
    ///
    /// A unix socket file that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// [`ListenError::NotASocket`], [`ListenError::Refused`].
    pub fn bind(address: &ListenAddr) -> Result<Self, ListenError> {
        let refused = |error| ListenError::Refused { address: address.clone(), error };
        match address {
            ListenAddr::Tcp(socket) => Ok(Self::Tcp(bind_tcp(*socket).map_err(refused)?)),
            ListenAddr::Unix(path) => {
                unlink_stale(path, refused)?;
                Ok(Self::Unix(UnixListener::bind(path).map_err(refused)?, path.clone()))
            }
        }
    }

    /// The address it is bound to, port 0 resolved.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn address(&self) -> io::Result<ListenAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(ListenAddr::Tcp),
            Self::Unix(_, path) => Ok(ListenAddr::Unix(path.clone())),
        }
    }
}

/// Binds a tcp socket; `[::]` takes IPv4 too, and takes only that on hosts without IPv6.
///
/// # Errors
/// Those of the operating system.
pub fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let any = address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let open = |address| Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP));
    let (socket, address) = match open(address) {
        Err(_) if any => {
            let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
            (open(address)?, address)
        }
        socket => (socket?, address),
    };
    if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        socket.set_only_v6(false)?;
    }
    // A restart must not wait for the last connections' TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

fn unlink_stale(path: &Path, refused: impl Fn(io::Error) -> ListenError) -> Result<(), ListenError> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(refused(error)),
        Ok(file) if !file.file_type().is_socket() => Err(ListenError::NotASocket(path.to_owned())),
        Ok(_) => match std::os::unix::net::UnixStream::connect(path) {
            Ok(_) => Err(refused(io::ErrorKind::AddrInUse.into())),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(refused)
            }
            Err(error) => Err(refused(error)),
        },
    }
}
