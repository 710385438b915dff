//! The one kvtap of the demo: an index, three feeds, a gRPC server on a free port.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

use super::{FeedAt, MODEL};
use crate::admin::{Fleet, Readiness, RequestMetrics};
use crate::cli::Failure;
use crate::feed::status::Board;
use crate::feed::zmq::{self, Mode, ReplayOptions, SubOptions};
use crate::feed::{self, Feed, Following};
use crate::index::{Index, Limits};
use crate::proto::v1::query_service_client::QueryServiceClient;
use crate::serve::{self, ListenAddr, Listener, ServeError};
use crate::wire::Dialect;
use crate::worker::Identity;

/// A kvtap that follows some feeds and answers.
#[derive(Debug)]
pub(super) struct Tap {
    address: String,
    feeds: Vec<Feed>,
    server: JoinHandle<Result<(), ServeError>>,
    shutdown: CancellationToken,
}

// === impl Tap ===

impl Tap {
    /// Starts it.
    pub(super) fn start(feeds: &[FeedAt]) -> Result<Self, Failure> {
        let index = Index::new(Limits::default());
        let board = Arc::new(Board::default());
        let feeds = feeds.iter().map(|at| Feed::spawn(options(at)?, &index, &board).map_err(failed));
        let feeds = feeds.collect::<Result<Vec<_>, Failure>>()?;

        let any = ListenAddr::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let listener = Listener::bind(&any).map_err(failed)?;
        let address = listener.address()?.to_string();
        let shutdown = CancellationToken::new();
        let options = serve::Options { grace: Duration::from_secs(1), ..serve::Options::default() };
        let server = tokio::spawn(serve::run(
            vec![listener],
            Arc::new(Fleet::new(index, board)),
            RequestMetrics::new(),
            Readiness::default(),
            options,
            shutdown.clone(),
        ));
        Ok(Self { address, feeds, server, shutdown })
    }

    /// Where it answers.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// A connection to it, as a router would have one.
    pub(super) async fn client(&self) -> Result<QueryServiceClient<Channel>, Failure> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).map_err(failed)?;
        Ok(QueryServiceClient::new(endpoint.tcp_nodelay(true).connect().await.map_err(failed)?))
    }

    /// Ends feeds and server.
    pub(super) async fn stop(self) -> Result<(), Failure> {
        self.shutdown.cancel();
        for feed in self.feeds {
            feed.stop().await;
        }
        self.server.await.map_err(failed)?.map_err(failed)
    }
}

fn options(at: &FeedAt) -> Result<feed::Options, Failure> {
    let endpoint = |text: &str| text.parse::<zmq::Endpoint>().map_err(failed);
    let replay = at.replay.as_deref().map(endpoint).transpose()?;
    Ok(feed::Options {
        identity: Identity {
            worker: at.worker.as_str().into(),
            address: "".into(),
            aliases: Arc::new([]),
            model: MODEL.into(),
            rank: 0,
        },
        link: SubOptions::new(endpoint(&at.endpoint)?, Mode::Connect),
        replay: replay.map(ReplayOptions::new),
        following: Following::new("vllm", Dialect::Vllm),
        snapshots: None,
    })
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}
