//! Certificates and users: whom we believe, who believes us, and what is said where that fails.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use kvtap::feed::nats::{PlaneOptions, Security};
use kvtap::feed::status::State;
use kvtap::wire::Dialect;
use nkeys::KeyPair;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer};
use serde_json::{Value, json};

use crate::dynamo::publish;
use crate::server::Server;
use crate::tap::{Tap, envelope, options, stored};

/// Somebody who signs certificates.
struct Authority {
    issuer: Issuer<'static, rcgen::KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate and its key, as files.
    fn sign(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let at = |ending: &str| folder.join(format!("{name}.{ending}"));
        std::fs::write(at("pem"), certificate.pem()).unwrap();
        std::fs::write(at("key"), key.serialize_pem()).unwrap();
        (at("pem"), at("key"))
    }

    fn file(&self, folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, &self.pem).unwrap();
        path
    }
}

/// A server that speaks nothing but TLS, and asks for certificates where `asks`.
async fn secured(authority: &Authority, folder: &Path, asks: bool) -> Server {
    let (certificate, key) = authority.sign(folder, "server");
    let ca = authority.file(folder, "ca.pem");
    Server::with(&format!("tls {{ cert_file: {certificate:?}, key_file: {key:?}, ca_file: {ca:?}, verify: {asks} }}"))
        .await
}

fn over_tls(server: &Server, security: Security) -> PlaneOptions {
    let mut options = options(server, Dialect::Dynamo, "namespace.>");
    options.connection.endpoint = server.url().replace("nats://", "tls://").parse().unwrap();
    options.connection.security = security;
    options
}

async fn client(server: &Server, ca: &Path, identity: &(PathBuf, PathBuf)) -> async_nats::Client {
    let options = async_nats::ConnectOptions::new()
        .add_root_certificates(ca.to_owned())
        .add_client_certificate(identity.0.clone(), identity.1.clone());
    options.connect(server.url().replace("nats://", "tls://")).await.unwrap()
}

#[tokio::test]
async fn a_server_is_believed_if_our_authority_signed_it_and_else_it_is_said_why_not() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let folder = tempfile::TempDir::new().unwrap();
    let server = secured(&authority, folder.path(), false).await;
    let ca = authority.file(folder.path(), "ours.pem");
    let wrong = stranger.file(folder.path(), "theirs.pem");
    let refused = Tap::start(over_tls(&server, Security { ca: Some(wrong.clone()), ..Default::default() }));
    let status = refused.until("plane", 0, "told why", |status| status.why.contains("nats.ca")).await;
    assert_eq!((status.state, status.connected), (State::Connecting, false));

    let tap = Tap::start(over_tls(&server, Security { ca: Some(ca.clone()), ..Default::default() }));
    tap.until("plane", 0, "subscribed", |status| status.connected).await;
    let engine = client(&server, &ca, &authority.sign(folder.path(), "engine")).await;
    publish(&engine, envelope(7, 0, &[stored(1, 0, 0..2)])).await;
    tap.live("plane/1", 0, 1).await;
    // The file is read again for each connection.
    std::fs::copy(&ca, &wrong).unwrap();
    refused.until("plane", 0, "subscribed", |status| status.connected).await;
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_gets_ours_and_a_rotated_one_from_the_next_connection_on() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let folder = tempfile::TempDir::new().unwrap();
    let server = secured(&authority, folder.path(), true).await;
    let ca = authority.file(folder.path(), "ours.pem");
    let identity = stranger.sign(folder.path(), "tap");
    let security = Security { ca: Some(ca.clone()), identity: Some(identity), ..Default::default() };
    let tap = Tap::start(over_tls(&server, security));
    let anonymous = Tap::start(over_tls(&server, Security { ca: Some(ca.clone()), ..Default::default() }));
    for refused in [&tap, &anonymous] {
        let told = |status: &kvtap::feed::status::Status| status.why.contains("nats.certificate");
        let status = refused.until("plane", 0, "told why", told).await;
        assert_eq!((status.state, status.connected), (State::Connecting, false));
    }
    authority.sign(folder.path(), "tap");
    tap.until("plane", 0, "subscribed", |status| status.connected).await;
    let engine = client(&server, &ca, &authority.sign(folder.path(), "engine")).await;
    publish(&engine, envelope(7, 0, &[stored(1, 0, 0..2)])).await;
    tap.live("plane/1", 0, 1).await;
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let number = chunk.iter().fold(0_u32, |number, byte| number << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        let digits = (0..=chunk.len()).map(|at| char::from(DIGITS[(number >> (18 - 6 * at) & 63) as usize]));
        text.extend(digits);
    }
    text
}

/// What a signer says of somebody.
fn token(signer: &KeyPair, subject: &KeyPair, expires: Option<u64>, nats: Value) -> String {
    let mut claims = json!({
        "jti": "of-a-test", "iat": now(), "iss": signer.public_key(), "sub": subject.public_key(), "name": "test",
        "nats": nats,
    });
    if let Some(expires) = expires {
        claims["exp"] = json!(expires);
    }
    let header = json!({ "typ": "JWT", "alg": "ed25519-nkey" });
    let signed = format!("{}.{}", base64(header.to_string().as_bytes()), base64(claims.to_string().as_bytes()));
    let signature = signer.sign(signed.as_bytes()).unwrap();
    format!("{signed}.{}", base64(&signature))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// An operator with one account, whose users are known by tokens.
struct Account {
    key: KeyPair,
    settings: String,
}

impl Account {
    fn new() -> Self {
        let (operator, key) = (KeyPair::new_operator(), KeyPair::new_account());
        let unlimited = json!({ "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
            "conn": -1, "leaf": -1 });
        let of_operator = token(&operator, &operator, None, json!({ "type": "operator", "version": 2 }));
        let of_account = token(&operator, &key, None, json!({ "type": "account", "version": 2, "limits": unlimited }));
        let system = KeyPair::new_account();
        let of_system =
            token(&operator, &system, None, json!({ "type": "account", "version": 2, "limits": unlimited }));
        let settings = format!(
            "operator: \"{of_operator}\"\nresolver: MEMORY\nsystem_account: {}\n\
             resolver_preload: {{ {}: \"{of_account}\", {}: \"{of_system}\" }}\n",
            system.public_key(),
            key.public_key(),
            system.public_key()
        );
        Self { key, settings }
    }

    /// The file of a user, as the tools of NATS write it.
    fn credentials(&self, expires: Option<u64>) -> String {
        let user = KeyPair::new_user();
        let nats = json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1 });
        let (token, seed) = (token(&self.key, &user, expires, nats), user.seed().unwrap());
        format!(
            "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        )
    }
}

#[tokio::test]
async fn credentials_that_run_out_are_replaced_from_their_file_without_a_restart() {
    let account = Account::new();
    let server = Server::with(&account.settings).await;
    let path = server.folder().join("user.creds");
    let mut credentialed = options(&server, Dialect::Dynamo, "namespace.>");
    credentialed.connection.security.credentials = Some(path.clone());

    let tap = Tap::start(credentialed);
    let status = tap.until("plane", 0, "told why", |status| status.why.contains("user.creds")).await;
    assert_eq!((status.state, status.connected), (State::Connecting, false));
    std::fs::write(&path, "nothing of the kind").unwrap();
    tap.until("plane", 0, "told what", |status| status.why.contains("does not hold what it should")).await;
    std::fs::write(&path, Account::new().credentials(None)).unwrap();
    tap.until("plane", 0, "shut out", |status| status.why.contains("does not let us in")).await;

    std::fs::write(&path, account.credentials(Some(now() + 4))).unwrap();
    tap.until("plane", 0, "subscribed", |status| status.connected).await;
    let theirs = server.folder().join("engine.creds");
    std::fs::write(&theirs, account.credentials(None)).unwrap();
    let client = async_nats::ConnectOptions::with_credentials_file(theirs).await.unwrap();
    let client = client.connect(server.url()).await.unwrap();
    publish(&client, envelope(7, 0, &[stored(1, 0, 0..1)])).await;
    tap.live("plane/1", 0, 1).await;
    // The server ends the connection when the token has run out; by then the file holds another.
    std::fs::write(&path, account.credentials(None)).unwrap();
    tap.until("plane/1", 0, "back", |status| status.connected && status.state == State::Incomplete).await;
    publish(&client, envelope(7, 1, &[stored(1, 0, 1..2)])).await;
    tap.live("plane/1", 0, 2).await;
    assert_eq!(tap.matched("plane/1", 0), 2);
}
