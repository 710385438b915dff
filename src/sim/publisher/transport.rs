//! Endpoints of a rank, and binding to them.

use std::os::unix::fs::FileTypeExt;

use zeromq::Socket;

use super::PublishError;

/// The endpoint of rank `rank`: port + rank, or a path of its own.
///
/// vLLM refuses ipc with more than one rank; TensorRT-LLM appends `_dp<rank>`, and so do we.
pub(super) fn for_rank(endpoint: &str, rank: u16) -> Result<String, PublishError> {
    let wrong = |what| PublishError::Endpoint { endpoint: endpoint.to_owned(), what };
    if let Some(path) = endpoint.strip_prefix("ipc://") {
        return match (path, rank) {
            ("", _) => Err(wrong("no path after ipc://")),
            (_, 0) => Ok(endpoint.to_owned()),
            (path, rank) => Ok(format!("ipc://{path}_dp{rank}")),
        };
    }
    let Some(address) = endpoint.strip_prefix("tcp://") else {
        return Err(wrong("expected tcp://host:port or ipc://path"));
    };
    let Some((host, port)) = address.rsplit_once(':') else { return Err(wrong("no port")) };
    let port: u16 = port.parse().map_err(|_| wrong("the port is not a number up to 65535"))?;
    let port = match port {
        0 => 0,
        port => port.checked_add(rank).ok_or_else(|| wrong("port + rank is above 65535"))?,
    };
    let host = match host {
        "" => return Err(wrong("no host")),
        "*" => "0.0.0.0",
        host => host,
    };
    Ok(format!("tcp://{host}:{port}"))
}

/// Binds a socket, and writes the port it got into the endpoint.
pub(super) async fn bind<S: Socket>(endpoint: &mut String) -> Result<S, PublishError> {
    if let Some(path) = endpoint.strip_prefix("ipc://") {
        remove_stale(path);
    }
    let mut socket = S::new();
    match socket.bind(endpoint).await {
        Ok(bound) => {
            *endpoint = bound.to_string();
            Ok(socket)
        }
        Err(source) => Err(PublishError::Bind { endpoint: endpoint.clone(), source }),
    }
}

/// A socket file that a dead process left behind keeps a new one from binding; libzmq removes it, the crate does not.
fn remove_stale(path: &str) {
    let is_socket = std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        // Where removing fails, binding fails next and says why.
        let _ = std::fs::remove_file(path);
    }
}
