//! Users, permissions, TLS.

use kvtap::feed::status::State;
use kvtap::wire::Dialect;

use crate::dynamo::publish;
use crate::server::Server;
use crate::tap::{Tap, envelope, options, stored};

/// A user's key pair, made for these tests.
fn user() -> (String, String) {
    let key = nkeys::KeyPair::new_user();
    (key.seed().unwrap(), key.public_key())
}

#[tokio::test]
async fn an_nkey_opens_the_server_and_a_rotated_one_is_used_from_the_next_connection_on() {
    let (seed, public) = user();
    let (next_seed, next_public) = user();
    let only =
        |key: &str| format!("authorization {{ users: [ {{ nkey: {key} }}, {{ user: engine, password: pass }} ] }}");
    let mut server = Server::with(&only(&public)).await;
    let path = server.folder().join("user.nk");
    std::fs::write(&path, format!("{seed}\n")).unwrap();
    let mut secured = options(&server, Dialect::Dynamo, "namespace.>");
    secured.connection.security.nkey = Some(path.clone());
    let tap = Tap::start(secured);
    tap.until("plane", 0, "subscribed", |status| status.connected).await;

    server.kill().await;
    server.configure(&only(&next_public));
    server.start_again().await;
    tap.until("plane", 0, "shut out", |status| !status.connected).await;
    std::fs::write(&path, next_seed).unwrap();
    tap.until("plane", 0, "subscribed again", |status| status.connected).await;
    let engine = async_nats::ConnectOptions::with_user_and_password("engine".into(), "pass".into());
    let client = engine.connect(server.url()).await.unwrap();
    publish(&client, envelope(7, 0, &[stored(1, 0, 0..1)])).await;
    tap.live("plane/1", 0, 1).await;
}

#[tokio::test]
async fn a_subscription_that_is_not_allowed_is_never_live_and_heals_once_it_is() {
    let settings = |subject: &str| {
        format!(
            "no_auth_user: anyone\nauthorization {{ users: [ {{ user: anyone, password: x, permissions: {{ publish: \">\", subscribe: \"{subject}\" }} }} ] }}"
        )
    };
    let mut server = Server::with(&settings("other.>")).await;
    let tap = Tap::start(options(&server, Dialect::Dynamo, "namespace.>"));
    let refused = |status: &kvtap::feed::status::Status| status.why.contains("allow");
    tap.until("plane", 0, "refused", refused).await;
    server.kill().await;
    server.configure(&settings("namespace.>"));
    server.start_again().await;
    let client = server.client().await;
    tap.until("plane", 0, "subscribed", |status| status.connected).await;
    publish(&client, envelope(7, 0, &[stored(1, 0, 0..1)])).await;
    tap.until("plane/1", 0, "heard", |status| status.state == State::Live).await;
}
