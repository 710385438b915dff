//! An echo with tonic's own server: what a call of this size costs that does nothing.

use bytes::Bytes;
use tokio::net::TcpListener;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

pub mod pb {
    tonic::include_proto!("echo");
}

use crate::process::Server;
use pb::Message;
use pb::echo_server::EchoServer;

/// A running echo.
pub struct Echo {
    at: String,
    _process: Server,
}

struct Service;

static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

#[tonic::async_trait]
impl pb::echo_server::Echo for Service {
    async fn echo(&self, request: Request<Message>) -> Result<Response<Message>, Status> {
        let Message { payload, answer } = request.into_inner();
        let payload = if answer == 0 { payload } else { Bytes::from_static(&ZEROS[..answer as usize]) };
        Ok(Response::new(Message { payload, answer: 0 }))
    }
}

/// Serves, with as many threads as it has cores.
pub async fn echo() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("listening on {}", listener.local_addr().unwrap());
    let connections = TcpListenerStream::new(listener).map(|stream| {
        let stream = stream?;
        stream.set_nodelay(true)?;
        Ok::<_, std::io::Error>(stream)
    });
    let service = EchoServer::new(Service).max_decoding_message_size(64 << 20);
    tonic::transport::Server::builder().add_service(service).serve_with_incoming(connections).await.unwrap();
}

impl Echo {
    pub fn start() -> Self {
        let this = std::env::current_exe().unwrap();
        let (process, at) = Server::start(&this, &["echo"], "listening on ");
        Self { at, _process: process }
    }

    pub async fn channel(&self) -> Channel {
        crate::load::channel(&self.at).await
    }
}
