//! A TCP proxy that can lose a link in every way that networks do.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// One address that stands for another.
pub struct Proxy {
    pub address: SocketAddr,
    control: Arc<watch::Sender<Control>>,
    accepting: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Control {
    /// Whom new connections are for; `None`: they are closed at once.
    target: Option<SocketAddr>,
    /// How often connections were cut; those made before a cut are closed by it.
    cut: u64,
    /// How often they were frozen; those made before it stay open, and nothing passes any more.
    frozen: u64,
    /// Nothing passes for now.
    paused: bool,
}

impl Proxy {
    pub async fn start() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        // Small, so that what waits, waits in the publisher.
        socket.set_send_buffer_size(8192).expect("a buffer");
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("bound");
        let listener = socket.listen(64).expect("listening");
        let address = listener.local_addr().expect("its address");
        let control = Arc::new(watch::Sender::new(Control::default()));
        let accepting = tokio::spawn(accept(listener, Arc::clone(&control)));
        Self { address, control, accepting }
    }

    /// Connections from now on are for `target`.
    pub fn lead_to(&self, target: Option<SocketAddr>) {
        self.control.send_modify(|control| control.target = target);
    }

    /// Closes every connection that there is.
    pub fn cut(&self) {
        self.control.send_modify(|control| control.cut += 1);
    }

    /// Makes every connection that there is half-open: it stays, and nothing passes.
    pub fn freeze(&self) {
        self.control.send_modify(|control| control.frozen += 1);
    }

    /// Holds everything up, or lets it go on.
    pub fn pause(&self, paused: bool) {
        self.control.send_modify(|control| control.paused = paused);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn accept(listener: TcpListener, control: Arc<watch::Sender<Control>>) {
    loop {
        let Ok((near, _)) = listener.accept().await else { continue };
        let born = *control.borrow();
        let Some(target) = born.target else { continue };
        let control = control.subscribe();
        tokio::spawn(async move {
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.set_recv_buffer_size(8192).expect("a buffer");
            let Ok(far) = socket.connect(target).await else { return };
            forward(near, far, born, control).await;
        });
    }
}

async fn forward(near: TcpStream, far: TcpStream, born: Control, control: watch::Receiver<Control>) {
    for stream in [&near, &far] {
        stream.set_nodelay(true).expect("an option");
    }
    let (near, far) = (near.into_split(), far.into_split());
    tokio::select! {
        () = pipe(near.0, far.1, born, control.clone()) => {}
        () = pipe(far.0, near.1, born, control.clone()) => {}
        () = is_cut(born, control) => {}
    }
}

async fn pipe(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, born: Control, mut control: watch::Receiver<Control>) {
    let mut buffer = [0; 4096];
    loop {
        if control.wait_for(|now| now.frozen == born.frozen && !now.paused).await.is_err() {
            return;
        }
        tokio::select! {
            biased;
            _ = control.changed() => {}
            read = from.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return,
                Ok(read) => if to.write_all(&buffer[..read]).await.is_err() { return },
            },
        }
    }
}

async fn is_cut(born: Control, mut control: watch::Receiver<Control>) {
    // An end of the proxy is a cut, too.
    let _ = control.wait_for(|now| now.cut != born.cut).await;
}
