//! The server itself: sockets, health, reflection, drain, and the admin port beside it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod serve_support;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kvtap::admin::Admin;
use kvtap::proto::v1;
use kvtap::proto::v1::query_service_client::QueryServiceClient;
use kvtap::serve::{ListenAddr, ListenError, Listener, Options};
use serve_support::{PATIENCE, Server, by_tokens, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

const SERVICE: &str = "kvtap.v1.QueryService";

async fn lists(endpoint: String) -> bool {
    let channel = Endpoint::from_shared(endpoint).unwrap().connect().await.unwrap();
    QueryServiceClient::new(channel).list_workers(v1::ListWorkersRequest::default()).await.is_ok()
}

#[tokio::test]
async fn one_server_answers_on_several_sockets_tcp_and_unix() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kvtap.sock");
    let unix: ListenAddr = format!("unix://{}", path.display()).parse().unwrap();
    let server = Server::start_with(Options::default(), vec![Listener::bind(&unix).unwrap()]).await;
    assert!(lists(format!("http://{}", server.address)).await);
    assert!(lists(format!("unix://{}", path.display())).await);
    server.stop().await;
    assert!(!path.exists(), "the socket file is left behind");
}

#[tokio::test]
async fn one_dual_stack_socket_answers_both_families() {
    let both = Listener::bind(&"[::]:0".parse().unwrap()).unwrap();
    let ListenAddr::Tcp(address) = both.address().unwrap() else { panic!("not tcp") };
    let server = Server::start_with(Options::default(), vec![both]).await;
    assert!(lists(format!("http://127.0.0.1:{}", address.port())).await);
    assert!(lists(format!("http://[::1]:{}", address.port())).await);
    server.stop().await;
}

#[tokio::test]
async fn a_stale_socket_file_is_replaced_and_a_live_one_or_another_file_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let address = |name: &str| ListenAddr::Unix(folder.path().join(name));

    drop(std::os::unix::net::UnixListener::bind(folder.path().join("stale")).unwrap());
    Listener::bind(&address("stale")).unwrap();

    let _live = Listener::bind(&address("live")).unwrap();
    assert!(matches!(Listener::bind(&address("live")), Err(ListenError::Refused { .. })));

    std::fs::write(folder.path().join("file"), "precious").unwrap();
    assert!(matches!(Listener::bind(&address("file")), Err(ListenError::NotASocket(_))));
    assert_eq!(std::fs::read_to_string(folder.path().join("file")).unwrap(), "precious");
}

#[test]
fn addresses_read_back_as_they_are_shown() {
    for text in ["127.0.0.1:9400", "[::]:9400", "unix:///run/kvtap/kvtap.sock"] {
        assert_eq!(text.parse::<ListenAddr>().unwrap().to_string(), text);
    }
    for text in ["", "9400", "127.0.0.1", "unix:", "unix://", "127.0.0.1:99999", "http://x:1"] {
        assert!(text.parse::<ListenAddr>().is_err(), "{text:?}");
    }
}

#[tokio::test]
async fn health_serves_the_server_and_its_service_and_says_so_when_it_drains() {
    let server = Server::start().await;
    let mut health = HealthClient::new(server.channel().await);
    for service in ["", SERVICE] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let status = health.check(request).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::Serving);
    }
    let request = HealthCheckRequest { service: "kvtap.v1.Other".to_owned() };
    assert_eq!(health.check(request).await.unwrap_err().code(), Code::NotFound);

    let request = HealthCheckRequest { service: SERVICE.to_owned() };
    let mut watch = health.watch(request).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    server.shutdown.cancel();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    // The watch ends, so that it does not hold the drain until the end of the grace.
    assert!(watch.message().await.unwrap().is_none());
    server.stop().await;
}

async fn reflected(server: &Server) -> Result<BTreeSet<String>, tonic::Status> {
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(server.channel().await);
    let mut answers = client.server_reflection_info(tokio_stream::iter([request])).await?.into_inner();
    match answers.message().await?.unwrap().message_response.unwrap() {
        MessageResponse::ListServicesResponse(list) => {
            Ok(list.service.into_iter().map(|service| service.name).collect())
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn reflection_lists_every_service_unless_it_is_switched_off() {
    let server = Server::start().await;
    let others = ["kvtap.v1.WatchService", "kvtap.v1.ExplainService"];
    let standard = ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"];
    let expected = [&[SERVICE][..], &others, &standard].concat();
    assert_eq!(reflected(&server).await.unwrap(), expected.into_iter().map(str::to_owned).collect());
    server.stop().await;

    let server = Server::start_with(Options { reflection: false, ..Options::default() }, Vec::new()).await;
    assert_eq!(reflected(&server).await.unwrap_err().code(), Code::Unimplemented);
    server.stop().await;
}

#[tokio::test]
async fn a_drain_ends_open_streams_after_what_they_have_asked() {
    let server = Server::start().await;
    let _worker = server.worker("m", "w", 0);
    let (requests, pending) = tokio::sync::mpsc::channel(1);
    let mut client = server.client().await;
    requests.send(v1::MatchStreamRequest { id: 1, request: Some(by_tokens("m", &[])) }).await.unwrap();
    let mut answers = client.match_stream(ReceiverStream::new(pending)).await.unwrap().into_inner();
    assert_eq!(answers.message().await.unwrap().unwrap().id, 1);
    server.stop().await;
    assert!(answers.message().await.unwrap().is_none());
}

#[tokio::test]
async fn a_drain_is_over_at_the_end_of_the_grace_whatever_a_client_does() {
    let options = Options { grace: Duration::from_millis(50), ..Options::default() };
    let server = Server::start_with(options, Vec::new()).await;
    // A request whose body never comes.
    let (_requests, pending) = tokio::sync::mpsc::channel::<ServerReflectionRequest>(1);
    let mut client = ServerReflectionClient::new(server.channel().await);
    let _open = client.server_reflection_info(ReceiverStream::new(pending)).await.unwrap();
    server.stop().await;
}

async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: kvtap\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    tokio::time::timeout(PATIENCE, stream.read_to_string(&mut text)).await.unwrap().unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, body.to_owned())
}

#[tokio::test]
async fn the_admin_port_is_alive_always_and_ready_while_grpc_answers() {
    let server = Server::start().await;
    let mut worker = server.worker("m", "w", 0);
    worker.store(kvtap::block::Grid::new(4).unwrap(), &[1, 2, 3, 4], kvtap::hash::Seed::PLAIN);
    let listener = kvtap::serve::listen::bind_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let admin = Admin::new(Arc::clone(&server.fleet), &server.requests, server.readiness.clone());
    let close = CancellationToken::new();
    let port = tokio::spawn(kvtap::admin::serve(listener, admin, close.clone()));
    eventually("the server is ready", || server.readiness.is_ready()).await;
    server.client().await.r#match(by_tokens("m", &[1, 2, 3, 4])).await.unwrap();

    assert_eq!(get(address, "/live").await.0, 200);
    assert_eq!(get(address, "/ready").await.0, 200);
    let (code, metrics) = get(address, "/metrics").await;
    assert_eq!(code, 200);
    assert!(metrics.contains("kvtap_grpc_requests_total{rpc=\"Match\",code=\"ok\"} 1\n"), "{metrics}");
    assert!(metrics.contains("kvtap_match_best_blocks_total 1\n"), "{metrics}");
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
    let (code, status) = get(address, "/status").await;
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!((code, &status["workers"][0]["worker"], &status["workers"][0]["blocks"]), (200, &"w".into(), &1.into()));
    assert_eq!((&status["version"], &status["ready"]), (&env!("CARGO_PKG_VERSION").into(), &true.into()));
    assert_eq!(get(address, "/other").await.0, 404);

    server.stop().await;
    assert_eq!(get(address, "/live").await.0, 200);
    assert_eq!(get(address, "/ready").await.0, 503);
    close.cancel();
    tokio::time::timeout(PATIENCE, port).await.unwrap().unwrap().unwrap();
}
