//! Publishers that vanish without closing anything.

use std::sync::Arc;
use std::time::Duration;

use kvtap::feed::zmq::{Endpoint, Heartbeat, Host, Mode, SubOptions, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::libzmq::{Libzmq, Tap, endpoint};

/// Forwards connections, until those that exist are frozen: open, and forwarding nothing.
struct Proxy {
    endpoint: Endpoint,
    /// How often it was frozen. A connection forwards only while this is what it was when it came.
    frozen: Arc<watch::Sender<u64>>,
}

impl Proxy {
    async fn to(target: &Endpoint) -> Self {
        let Endpoint::Tcp { host: Host::Ip(ip), port } = target else { panic!("{target} is not an address") };
        let target = std::net::SocketAddr::new(*ip, *port);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let endpoint = endpoint(&format!("tcp://{}", listener.local_addr().expect("its address")));
        let frozen = Arc::new(watch::Sender::new(0));
        let ice = Arc::clone(&frozen);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(target).await.expect("the target listens");
                let (near, far) = (near.into_split(), far.into_split());
                tokio::spawn(forward(near.0, far.1, ice.subscribe()));
                tokio::spawn(forward(far.0, near.1, ice.subscribe()));
            }
        });
        Self { endpoint, frozen }
    }

    fn freeze(&self) {
        self.frozen.send_modify(|times| *times += 1);
    }
}

async fn forward(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut frozen: watch::Receiver<u64>,
) {
    let copy = tokio::io::copy(&mut from, &mut to);
    tokio::select! {
        _ended = copy => {}
        _ice = frozen.changed() => std::future::pending().await,
    }
}

#[tokio::test]
async fn a_connection_that_died_without_a_word_is_noticed_and_made_anew() {
    for (transport, reason) in [(Transport::Own, "heartbeat"), (Transport::Zeromq, "idle")] {
        let mut publisher = Libzmq::publisher("bind", &endpoint("tcp://127.0.0.1:*")).await;
        let proxy = Proxy::to(&publisher.endpoint).await;
        let mut options = SubOptions { transport, ..SubOptions::new(proxy.endpoint.clone(), Mode::Connect) };
        // Long enough that a busy machine answers in time while nothing is frozen.
        options.timing.heartbeat = Heartbeat { interval: Duration::from_millis(100), timeout: Duration::from_secs(2) };
        options.timing.idle = Duration::from_secs(2);
        let mut tap = Tap::new(options);
        tap.connected().await;
        publisher.subscribed().await;
        publisher.send(&[b"before"]).await;
        assert_eq!(tap.message().await, [&b"before"[..]]);

        proxy.freeze();
        assert_eq!(tap.disconnected().await.reason(), reason);

        tap.connected().await;
        publisher.subscribed().await;
        publisher.send(&[b"after"]).await;
        assert_eq!(tap.message().await, [&b"after"[..]], "{transport:?}");
    }
}
