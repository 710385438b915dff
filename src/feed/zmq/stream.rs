//! Sockets: TCP and unix alike, opened and bound.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::BytesMut;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::{Instant, timeout_at};

use super::{Endpoint, Fault, Host};

/// How long a TCP connection may be silent before the kernel probes it, and how long between probes. This alone
/// notices the death of a peer that knows no PING.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);

const BACKLOG: i32 = 128;

/// One connection.
#[derive(Debug)]
pub enum Stream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a unix socket.
    Unix(UnixStream),
}

/// One bound socket.
#[derive(Debug)]
pub enum Listener {
    /// On a TCP port.
    Tcp(TcpListener),
    /// On a unix socket, whose file goes when this does.
    Unix(UnixListener, SocketFile),
}

/// A socket's file, unlinked on drop.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

// === impl Stream ===

impl Stream {
    /// Connects to `endpoint` before `deadline`. A name is resolved anew; each of its addresses gets an equal
    /// share of the time, so that one which swallows packets does not hide the next.
    ///
    /// # Errors
    /// [`Fault::NoAddress`], [`Fault::Connect`], [`Fault::ConnectDeadline`].
    pub async fn connect(endpoint: &Endpoint, deadline: Instant) -> Result<Self, Fault> {
        let (host, port) = match endpoint {
            Endpoint::Ipc { path } => {
                let stream = timeout_at(deadline, UnixStream::connect(path)).await;
                return stream.map_err(|_| Fault::ConnectDeadline)?.map(Self::Unix).map_err(Fault::Connect);
            }
            Endpoint::Tcp { host, port } => (host, *port),
        };
        let addresses = timeout_at(deadline, resolve(host, port)).await.map_err(|_| Fault::ConnectDeadline)?;
        let addresses = addresses.map_err(Fault::Connect)?;
        let mut fault = Fault::NoAddress;
        for (tried, address) in addresses.iter().enumerate() {
            let left = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
            let now = Instant::now();
            let share = now + deadline.saturating_duration_since(now) / left;
            fault = match timeout_at(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Self::tcp(stream).map_err(Fault::Connect),
                Ok(Err(error)) => Fault::Connect(error),
                Err(_) => Fault::ConnectDeadline,
            };
        }
        Err(fault)
    }

    fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        Ok(Self::Tcp(stream))
    }

    /// Waits until there may be something to read.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.readable().await,
            Self::Unix(stream) => stream.readable().await,
        }
    }

    /// Waits until there may be room to write.
    pub async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.writable().await,
            Self::Unix(stream) => stream.writable().await,
        }
    }

    /// Reads what is there into the spare room of `buffer`: how many bytes, 0 at the end of the stream, `None`
    /// where nothing is there now.
    pub fn try_read(&self, buffer: &mut BytesMut) -> io::Result<Option<usize>> {
        none_if_not_now(match self {
            Self::Tcp(stream) => stream.try_read_buf(buffer),
            Self::Unix(stream) => stream.try_read_buf(buffer),
        })
    }

    /// Writes as much of `bytes` as there is room for; `None` where there is none now.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        none_if_not_now(match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
        })
    }
}

fn none_if_not_now(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

// === impl Listener ===

impl Listener {
    /// Binds `endpoint`. `*` and `::` serve IPv6 and IPv4 where the host has both. A socket file that nobody
    /// listens on any more is replaced; a live one, or a file of another kind, is not.
    ///
    /// # Errors
    /// [`Fault::NoAddress`], [`Fault::Bind`].
    pub async fn bind(endpoint: &Endpoint) -> Result<Self, Fault> {
        match endpoint {
            Endpoint::Ipc { path } => bind_unix(path).await.map_err(Fault::Bind),
            Endpoint::Tcp { host, port } => {
                let mut fault = Fault::NoAddress;
                for address in resolve(host, *port).await.map_err(Fault::Bind)? {
                    match bind_tcp(address) {
                        Ok(listener) => return Ok(Self::Tcp(listener)),
                        Err(error) => fault = Fault::Bind(error),
                    }
                }
                Err(fault)
            }
        }
    }

    /// Where it is bound: the port is the one that the system chose, where 0 was asked for.
    pub fn endpoint(&self) -> io::Result<Endpoint> {
        match self {
            Self::Tcp(listener) => {
                let address = listener.local_addr()?;
                Ok(Endpoint::Tcp { host: Host::Ip(address.ip()), port: address.port() })
            }
            Self::Unix(_, file) => Ok(Endpoint::Ipc { path: file.0.clone() }),
        }
    }

    /// The next connection. An error means that none can be accepted now.
    pub async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => loop {
                // A peer that is gone again already is not an error of the listener.
                if let Ok(stream) = Stream::tcp(listener.accept().await?.0) {
                    return Ok(stream);
                }
            },
            Self::Unix(listener, _) => Ok(Stream::Unix(listener.accept().await?.0)),
        }
    }
}

async fn resolve(host: &Host, port: u16) -> io::Result<Vec<SocketAddr>> {
    match host {
        // Without IPv6 in the kernel, the second is what remains.
        Host::Any => Ok([IpAddr::from(Ipv6Addr::UNSPECIFIED), Ipv4Addr::UNSPECIFIED.into()]
            .map(|ip| SocketAddr::new(ip, port))
            .to_vec()),
        Host::Ip(ip) => Ok(vec![SocketAddr::new(*ip, port)]),
        Host::Name(name) => Ok(tokio::net::lookup_host((name.as_str(), port)).await?.collect()),
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    // A port whose last connections still linger can be bound at once after a restart.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

async fn bind_unix(path: &Path) -> io::Result<Listener> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path).await => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        result => result,
    }?;
    Ok(Listener::Unix(listener, SocketFile(path.to_owned())))
}

/// Whether `path` is a socket that nobody listens on.
async fn is_stale(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
        && UnixStream::connect(path).await.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

// === impl SocketFile ===

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::debug!(path = %self.0.display(), %error, "Socket file is not removed.");
        }
    }
}
