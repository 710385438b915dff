//! TLS, client certificates and bearer tokens of `kvtap serve`, run as the binary that people run: asked by its own
//! commands and by grpcio, with certificates made on the spot, while files are replaced under it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

mod tap_support;

use std::path::{Path, PathBuf};
use std::process::Output;

use rcgen::{BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use tap_support::eventually;
use tap_support::kvtap::{Kvtap, run};
use tap_support::peer::Peer;

/// An authority.
struct Authority {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // A certificate whose issuer has its own name would be taken for one that it has signed itself.
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    /// Writes itself, and a certificate for the loopback with its key, into `folder`.
    fn write(&self, folder: &Path) {
        std::fs::create_dir_all(folder).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(folder.join("ca.pem"), self.certificate.pem()).unwrap();
        std::fs::write(folder.join("cert.pem"), certificate.pem()).unwrap();
        std::fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
    }
}

/// A folder of an authority and a certificate of it.
fn issued() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    Authority::new().write(folder.path());
    folder
}

fn text(path: PathBuf) -> String {
    path.to_str().unwrap().to_owned()
}

async fn serve(grpc: &str) -> Kvtap {
    let feeds = "feeds:\n  - { worker: pod-a, model: m, endpoint: \"tcp://127.0.0.1:1\" }\n";
    Kvtap::start(&format!("grpc: {{ listen: [\"127.0.0.1:0\"], {grpc} }}\n{feeds}")).await
}

/// `kvtap workers` with these arguments more.
async fn workers(server: &str, more: &[String]) -> Output {
    let mut arguments = vec!["workers", "--server", server, "--json"];
    arguments.extend(more.iter().map(String::as_str));
    run(&arguments).await
}

fn ca(folder: &Path) -> Vec<String> {
    vec!["--tls-ca".to_owned(), text(folder.join("ca.pem"))]
}

fn identity(folder: &Path) -> Vec<String> {
    let file = |name: &str| text(folder.join(name));
    vec!["--tls-cert".to_owned(), file("cert.pem"), "--tls-key".to_owned(), file("key.pem")]
}

/// What grpcio gets, asked for the list.
async fn python(server: &str, more: &[String]) -> Value {
    let mut arguments = vec!["--server", server];
    arguments.extend(more.iter().map(String::as_str));
    let mut router = Peer::start("grpc_router.py", &arguments).await;
    router.tell(&json!({"list": true}).to_string()).await;
    router.line().await
}

async fn reloads(kvtap: &Kvtap, what: &str, outcome: &str) -> u64 {
    let mut stream = TcpStream::connect(&kvtap.admin).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: kvtap\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let series = format!("kvtap_grpc_reloads_total{{what=\"{what}\",outcome=\"{outcome}\"}} ");
    answer.lines().find_map(|line| line.strip_prefix(&series)).unwrap().parse().unwrap()
}

#[tokio::test]
async fn tls_is_spoken_to_who_believes_the_authority_and_to_nobody_else() {
    let (ours, other) = (issued(), issued());
    let at = ours.path().display();
    let kvtap = serve(&format!("tls: {{ cert: \"{at}/cert.pem\", key: \"{at}/key.pem\" }}")).await;
    let https = format!("https://{}", kvtap.grpc);

    let listed = workers(&https, &ca(ours.path())).await;
    assert!(listed.status.success(), "{listed:?}");
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["workers"][0]["worker"], "pod-a");
    assert_eq!(python(&kvtap.grpc, &ca(ours.path())).await["workers"][0]["worker"], "pod-a");

    for (server, more) in [(&https, ca(other.path())), (&kvtap.grpc, Vec::new())] {
        let refused = workers(server, &more).await;
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    }
    assert_eq!(workers(&https, &[]).await.status.code(), Some(64));
    assert_eq!(python(&kvtap.grpc, &ca(other.path())).await["error"], "UNAVAILABLE");
}

#[tokio::test]
async fn mutual_tls_admits_who_shows_a_certificate_of_the_authority() {
    let (server, caller, other) = (issued(), issued(), issued());
    let (at, callers) = (server.path().display(), caller.path().display());
    let tls = format!("tls: {{ cert: \"{at}/cert.pem\", key: \"{at}/key.pem\", client_ca: \"{callers}/ca.pem\" }}");
    let kvtap = serve(&tls).await;
    let https = format!("https://{}", kvtap.grpc);
    let with = |folder: &Path| [ca(server.path()), identity(folder)].concat();

    let listed = workers(&https, &with(caller.path())).await;
    assert!(listed.status.success(), "{listed:?}");
    assert_eq!(python(&kvtap.grpc, &with(caller.path())).await["workers"][0]["worker"], "pod-a");
    for more in [ca(server.path()), with(other.path())] {
        let refused = workers(&https, &more).await;
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert_eq!(python(&kvtap.grpc, &more).await["error"], "UNAVAILABLE");
    }
}

#[tokio::test]
async fn replaced_certificates_are_in_force_and_bad_ones_leave_the_old_so() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    Authority::new().write(&at("first"));
    Authority::new().write(&at("second"));
    std::os::unix::fs::symlink(at("first"), at("..data")).unwrap();
    let data = at("..data");
    let file = |name: &str| text(data.join(name));
    let kvtap = serve(&format!("tls: {{ cert: \"{}\", key: \"{}\" }}", file("cert.pem"), file("key.pem"))).await;
    let https = format!("https://{}", kvtap.grpc);
    let (first, second) = (ca(&at("first")), ca(&at("second")));
    assert!(workers(&https, &first).await.status.success());

    std::os::unix::fs::symlink(at("second"), at("..next")).unwrap();
    std::fs::rename(at("..next"), &data).unwrap();
    eventually("the second", async || workers(&https, &second).await.status.success(), |ok| *ok).await;
    assert_eq!(reloads(&kvtap, "tls", "ok").await, 1);

    std::fs::write(at("second").join("cert.pem"), "no certificate").unwrap();
    eventually("a failure", async || reloads(&kvtap, "tls", "failed").await, |failed| *failed == 1).await;
    assert!(workers(&https, &second).await.status.success());
    let told = kvtap.log().iter().filter(|line| line.contains("what was in force stays so")).count();
    assert_eq!(told, 1, "{:?}", kvtap.log());
}

#[tokio::test]
async fn a_token_is_asked_for_and_the_one_in_its_file_counts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let old = folder.path().join("old");
    std::fs::write(&file, "first-token-0123456789\n").unwrap();
    std::fs::copy(&file, &old).unwrap();
    let kvtap = serve(&format!("token_file: \"{}\"", file.display())).await;
    let with = |file: &Path| vec!["--token-file".to_owned(), text(file.to_owned())];

    assert!(workers(&kvtap.grpc, &with(&file)).await.status.success());
    assert_eq!(python(&kvtap.grpc, &with(&file)).await["workers"][0]["worker"], "pod-a");
    let refused = workers(&kvtap.grpc, &[]).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("a bearer token is required"), "{refused:?}");
    assert_eq!(python(&kvtap.grpc, &[]).await["error"], "UNAUTHENTICATED");

    std::fs::write(&file, "second-token-0123456789\n").unwrap();
    eventually("the second", async || workers(&kvtap.grpc, &with(&file)).await.status.success(), |ok| *ok).await;
    assert_eq!(workers(&kvtap.grpc, &with(&old)).await.status.code(), Some(1));
    std::fs::write(&file, "short").unwrap();
    eventually("a failure", async || reloads(&kvtap, "token", "failed").await, |failed| *failed == 1).await;
    // What was in force is the second still.
    std::fs::write(&old, "second-token-0123456789\n").unwrap();
    assert!(workers(&kvtap.grpc, &with(&old)).await.status.success());
    assert!(kvtap.log().iter().all(|line| !line.contains("-token-0123456789")), "{:?}", kvtap.log());
}

/// A kvtap with an Admin service, and where that is.
async fn with_admin(settings: &str) -> (Kvtap, String) {
    let kvtap = Kvtap::start(&format!("admin_rpc: {{ {settings} }}\nfeeds: []\n")).await;
    let at = kvtap.said("admin rpc listening on ").await;
    (kvtap, at)
}

/// `kvtap admin dump` with these arguments more.
async fn dump(server: &str, more: &[String]) -> Output {
    let mut arguments = vec!["admin", "--server", server, "--json"];
    arguments.extend(more.iter().map(String::as_str));
    arguments.push("dump");
    run(&arguments).await
}

#[tokio::test]
async fn other_hosts_may_change_feeds_with_a_certificate_of_the_authority_only() {
    let (server, caller, other) = (issued(), issued(), issued());
    let (at, callers) = (server.path().display(), caller.path().display());
    let tls = format!("tls: {{ cert: \"{at}/cert.pem\", key: \"{at}/key.pem\", client_ca: \"{callers}/ca.pem\" }}");
    let (_kvtap, at) = with_admin(&format!("listen: [\"0.0.0.0:0\"], {tls}")).await;
    let port = at.rsplit_once(':').unwrap().1;
    let https = format!("https://127.0.0.1:{port}");
    let with = |folder: &Path| [ca(server.path()), identity(folder)].concat();
    let dumped = dump(&https, &with(caller.path())).await;
    assert_eq!(String::from_utf8_lossy(&dumped.stdout).trim(), "{\"entries\":[]}", "{dumped:?}");
    for more in [ca(server.path()), with(other.path())] {
        assert_eq!(dump(&https, &more).await.status.code(), Some(1), "{more:?}");
    }
    assert_eq!(dump(&format!("127.0.0.1:{port}"), &[]).await.status.code(), Some(1));
}

#[tokio::test]
async fn other_hosts_may_change_feeds_with_the_token_only_and_a_replaced_one_counts() {
    let folder = tempfile::tempdir().unwrap();
    let (file, old) = (folder.path().join("token"), folder.path().join("old"));
    std::fs::write(&file, "first-token-0123456789\n").unwrap();
    std::fs::copy(&file, &old).unwrap();
    let (kvtap, at) = with_admin(&format!("listen: [\"0.0.0.0:0\"], token_file: \"{}\"", file.display())).await;
    assert!(kvtap.log().iter().any(|line| line.contains("can read the token")), "{:?}", kvtap.log());
    let at = format!("127.0.0.1:{}", at.rsplit_once(':').unwrap().1);
    let with = |file: &Path| vec!["--token-file".to_owned(), text(file.to_owned())];
    assert!(dump(&at, &with(&file)).await.status.success());
    let refused = dump(&at, &[]).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("a bearer token is required"), "{refused:?}");
    std::fs::write(&file, "second-token-0123456789\n").unwrap();
    eventually("the second", async || dump(&at, &with(&file)).await.status.success(), |ok| *ok).await;
    assert_eq!(dump(&at, &with(&old)).await.status.code(), Some(1));
}

#[tokio::test]
async fn tls_without_a_callers_certificate_tells_no_callers_apart() {
    let folder = issued();
    let (at, config) = (folder.path().display(), folder.path().join("kvtap.yaml"));
    let tls = format!("tls: {{ cert: \"{at}/cert.pem\", key: \"{at}/key.pem\" }}");
    std::fs::write(&config, format!("admin_rpc: {{ listen: [\"0.0.0.0:9402\"], {tls} }}\nfeeds: []\n")).unwrap();
    let output = run(&["serve", "--check-config", "--config", config.to_str().unwrap()]).await;
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not local"), "{output:?}");
    let (_kvtap, at) = with_admin(&format!("listen: [\"127.0.0.1:0\"], {tls}")).await;
    assert!(dump(&format!("https://{at}"), &ca(folder.path())).await.status.success());
}

#[tokio::test]
async fn files_that_cannot_be_used_are_told_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("kvtap.yaml");
    let (ours, other) = (issued(), issued());
    let (at, another) = (ours.path().display(), other.path().display());
    for (grpc, words) in [
        (format!("tls: {{ cert: \"{at}/cert.pem\", key: \"{another}/key.pem\" }}"), "grpc.tls: "),
        (format!("tls: {{ cert: \"{at}/none.pem\", key: \"{at}/key.pem\" }}"), "none.pem"),
        (format!("token_file: \"{at}/none\""), "grpc.token_file: "),
    ] {
        let settings =
            format!("grpc: {{ listen: [\"127.0.0.1:0\"], {grpc} }}\nadmin: {{ listen: \"127.0.0.1:0\" }}\nfeeds: []\n");
        std::fs::write(&config, settings).unwrap();
        let output = run(&["serve", "--config", config.to_str().unwrap()]).await;
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(words), "{output:?}");
    }
    let admin = format!("admin_rpc: {{ listen: [\"127.0.0.1:0\"], token_file: \"{at}/none\" }}\n");
    let sockets = "grpc: { listen: [\"127.0.0.1:0\"] }\nadmin: { listen: \"127.0.0.1:0\" }\nfeeds: []\n";
    std::fs::write(&config, format!("{admin}{sockets}")).unwrap();
    let output = run(&["serve", "--config", config.to_str().unwrap()]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("admin_rpc.token_file: "), "{output:?}");
    std::fs::write(&config, format!("grpc: {{ tls: {{ cert: \"{at}/cert.pem\" }} }}\nfeeds: []\n")).unwrap();
    let output = run(&["serve", "--check-config", "--config", config.to_str().unwrap()]).await;
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("grpc.tls.cert: TLS needs both"), "{output:?}");
}
