//! Three servers, and one of them dies: the one that leads.

use std::net::TcpListener;
use std::time::Duration;

use async_nats::jetstream;
use kvtap::feed::status::State;
use tokio::time::{Instant, sleep};

use crate::fleet::{Engine, Member, options};
use crate::server::{PATIENCE, Server};

/// Three servers that know each other.
async fn cluster() -> Vec<Server> {
    // Servers must name each other before any of them runs.
    let listeners: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<u16> = listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
    drop(listeners);
    let routes: Vec<String> = ports.iter().map(|port| format!("\"nats://127.0.0.1:{port}\"")).collect();
    let mut servers = Vec::new();
    for (i, port) in ports.iter().enumerate() {
        let settings = format!(
            "server_name: s{i}\ncluster {{ name: fleet, listen: \"127.0.0.1:{port}\", routes: [ {} ] }}\n",
            routes.join(", ")
        );
        servers.push(Server::with(&settings).await);
    }
    servers
}

/// The stream as it is once it has three replicas that are current and a leader, which is not `not`.
async fn settled(servers: &[Server], stream: &str, not: Option<usize>) -> usize {
    let deadline = Instant::now() + PATIENCE;
    loop {
        for (i, server) in servers.iter().enumerate() {
            if Some(i) == not {
                continue;
            }
            let context = jetstream::new(server.client().await);
            let Ok(found) = context.get_stream(stream).await else { continue };
            let info = found.cached_info();
            let Some(cluster) = &info.cluster else { continue };
            let leader = cluster.leader.as_deref().and_then(|name| name.strip_prefix('s')?.parse().ok());
            let current = cluster.replicas.iter().filter(|replica| replica.current && !replica.offline).count();
            let wanted = if not.is_none() { 2 } else { 1 };
            if let Some(leader) = leader.filter(|leader| Some(*leader) != not && current >= wanted) {
                assert_eq!(info.config.num_replicas, 3);
                return leader;
            }
        }
        assert!(Instant::now() < deadline, "{stream} has no leader");
        sleep(Duration::from_millis(100)).await;
    }
}

async fn messages(server: &Server) -> u64 {
    let context = jetstream::new(server.client().await);
    context.get_stream("KVTAP").await.map_or(0, |stream| stream.cached_info().state.messages)
}

/// Changes something until the stream has taken it.
async fn takes_again(server: &Server, engine: &mut Engine) {
    let (deadline, before) = (Instant::now() + PATIENCE, messages(server).await);
    while messages(server).await <= before {
        engine.deepen(5, engine.depths[5] % 20 + 1);
        assert!(Instant::now() < deadline, "the stream takes nothing");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_cluster_whose_leader_dies_goes_on_and_ends_right() {
    let mut servers = cluster().await;
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let mut replicated = options(&urls.join(","));
    replicated.stream.replicas = 3;
    replicated.stream.on_disk = true;
    // A server makes no stream that its disk could not hold: this runs on small ones too.
    replicated.stream.max_bytes = 64 << 20;
    replicated.keep = Some(Duration::from_secs(2));
    let (owner, follower) = (Member::join(replicated.clone()), Member::join(replicated.clone()));
    let mut engine = owner.engine("a", 0);
    engine.deepen(0, 9);
    follower.equal(&engine).await;
    let leader = settled(&servers, "KVTAP", None).await;
    settled(&servers, "KVTAP_KEPT", None).await;

    servers[leader].kill().await;
    engine.deepen(1, 6);
    let next = settled(&servers, "KVTAP", Some(leader)).await;
    engine.deepen(0, 4);
    follower.equal(&engine).await;
    takes_again(&servers[next], &mut engine).await;
    follower.equal(&engine).await;
    // Who joins now finds all it needs.
    let joiner = Member::join(replicated);
    joiner.equal(&engine).await;

    servers[leader].start_again().await;
    settled(&servers, "KVTAP", None).await;
    engine.deepen(2, 8);
    for member in [&follower, &joiner] {
        member.equal(&engine).await;
        assert_eq!(member.entry("a", 0).unwrap().status().state, State::Live);
    }
}
