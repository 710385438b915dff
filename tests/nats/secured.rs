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

/// What docs/relay.md says that the servers must allow, for the owner of `worker`.
fn member(key: &str, worker: &str) -> String {
    let page = include_str!("../../docs/relay.md");
    let (_, after) = page.split_once("```text\nusers: [").unwrap();
    let (user, _) = after.split_once("\n]\n```").unwrap();
    user.replace("U...", key).replace(".W.", &format!(".{worker}."))
}

#[tokio::test]
async fn under_the_documented_permissions_members_follow_and_nobody_speaks_for_anothers_worker() {
    use crate::fleet::{Member, options};
    let keys: Vec<_> = (0..3).map(|_| user()).collect();
    let users = ["pod-a", "pod-b", "nobody"].iter().zip(&keys).map(|(worker, (_, public))| member(public, worker));
    let users: Vec<String> = users.collect();
    let server = Server::with(&format!("authorization {{ users: [ {} ] }}", users.join("\n"))).await;
    let as_user = |at: usize| {
        let path = server.folder().join(format!("user-{at}.nk"));
        std::fs::write(&path, &keys[at].0).unwrap();
        let mut options = options(&server.url());
        options.connection.security.nkey = Some(path);
        options
    };
    let (a, b) = (Member::join(as_user(0)), Member::join(as_user(1)));
    let (mut of_a, mut of_b) = (a.engine("pod-a", 0), b.engine("pod-b", 0));
    of_a.deepen(0, 9);
    of_b.deepen(1, 4);
    b.equal(&of_a).await;
    a.equal(&of_b).await;

    // One that claims pod-a with the rights of another: a newer registration, which would win.
    let foreign = Member::join(as_user(2));
    let mut claimed = foreign.engine("pod-a", 0);
    claimed.deepen(2, 20);
    // It can publish nothing, so it is silent; that it follows shows that it is there.
    foreign.equal(&of_b).await;
    let seed = &keys[2].0;
    let client = async_nats::ConnectOptions::with_nkey(seed.clone()).connect(server.url()).await.unwrap();
    let mut announcements = client.subscribe("kvtap.v1.owners.m%2F1.pod-a.0").await.unwrap();
    let real = futures_util::StreamExt::next(&mut announcements).await.unwrap();
    for subject in ["kvtap.v1.owners.m%2F1.pod-a.0", "kvtap.v1.events.m%2F1.pod-a.0"] {
        client.publish(subject, real.payload.clone()).await.unwrap();
    }
    client.flush().await.unwrap();
    of_a.deepen(3, 2);
    b.equal(&of_a).await;
    assert!(!b.entry("pod-a", 0).unwrap().status().dropped.contains_key("rival_owner"));
}

#[tokio::test]
async fn a_message_that_speaks_of_another_rank_than_its_subject_is_counted_and_not_believed() {
    use crate::fleet::{Member, options};
    let server = Server::start().await;
    let (owner, follower) = (Member::join(options(&server.url())), Member::join(options(&server.url())));
    let (mut mine, other) = (owner.engine("a", 0), owner.engine("b", 0));
    mine.deepen(0, 3);
    follower.equal(&mine).await;
    follower.equal(&other).await;
    let client = server.client().await;
    let mut announcements = client.subscribe("kvtap.v1.owners.m%2F1.b.0").await.unwrap();
    let of_b = futures_util::StreamExt::next(&mut announcements).await.unwrap();
    client.publish("kvtap.v1.owners.m%2F1.a.0", of_b.payload).await.unwrap();
    client.publish("kvtap.v1.owners.m%2F1.a.0", "no announcement".into()).await.unwrap();
    client.publish("kvtap.v1.events.m%2F1.a.0", "no batch".into()).await.unwrap();
    client.flush().await.unwrap();
    let dropped = follower.until("a", 0, "warned", |status| {
        status.dropped.contains_key("foreign_key") && status.dropped.get("not_a_batch").is_some_and(|n| *n >= 2)
    });
    dropped.await;
    mine.deepen(0, 1);
    follower.equal(&mine).await;
}
