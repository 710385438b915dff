//! A Kubernetes API server as far as discovery sees one: lists in pages, watches with bookmarks, versions that are
//! forgotten, refusals, and streams that break off, over real HTTP.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// Objects of a page, however many are asked for.
const PAGE: usize = 2;

const TOKEN: &str = "of-the-service-account";

/// The server; it ends when it is dropped.
pub struct Api {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
    address: String,
}

struct Shared {
    state: Mutex<Inner>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct Inner {
    version: u64,
    /// Versions up to this one are forgotten.
    compacted: u64,
    /// By resource and name.
    objects: BTreeMap<(String, String), Value>,
    /// What happened, at which version: resource, type, object before, object.
    history: Vec<(u64, String, &'static str, Option<Value>, Value)>,
    /// What the next requests are answered instead of what they ask for.
    list_faults: VecDeque<u16>,
    watch_faults: VecDeque<u16>,
    refuses: Option<u16>,
    lists: u32,
    watches: u32,
    /// Every watch that is open is told to do this, by its number of commands so far.
    commands: Vec<Command>,
    /// Watches are not answered for now.
    holds: bool,
    /// Watches that wait for an answer.
    held: u32,
}

/// What open watches are told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Send a bookmark.
    Bookmark,
    /// Break off in the middle of a line.
    Cut,
    /// End as watches do.
    Close,
    /// Say 410 Gone.
    Gone,
}

// === impl Api ===

impl Api {
    /// Starts one that has no objects.
    pub async fn start() -> Self {
        Self::start_at("127.0.0.1:0", Arc::new(Shared { state: Mutex::default(), changed: watch::Sender::new(0) }))
            .await
    }

    async fn start_at(address: &str, shared: Arc<Shared>) -> Self {
        let listener = TcpListener::bind(address).await.expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let task = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("it serves");
        });
        Self { shared, task, address }
    }

    /// A kubeconfig that leads to it, in `folder`.
    pub fn kubeconfig(&self, folder: &Path) -> PathBuf {
        let file = folder.join("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{ "name": "test", "cluster": { "server": format!("http://{}", self.address) } }],
            "users": [{ "name": "test", "user": { "token": TOKEN } }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test", "namespace": "ns" } }],
        });
        std::fs::write(&file, config.to_string()).expect("the kubeconfig is written");
        file
    }

    /// Creates or replaces an object, by its resource (`pods`, `endpointslices`).
    pub fn put(&self, resource: &str, object: Value) {
        let mut state = self.lock();
        state.version += 1;
        let version = state.version;
        let mut object = object;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        let before = state.objects.insert((resource.to_owned(), name), object.clone());
        let kind = if before.is_some() { "MODIFIED" } else { "ADDED" };
        state.history.push((version, resource.to_owned(), kind, before, object));
        self.shared.changed.send_replace(version);
    }

    /// Deletes an object.
    pub fn delete(&self, resource: &str, name: &str) {
        let mut state = self.lock();
        state.version += 1;
        let version = state.version;
        let mut object = state.objects.remove(&(resource.to_owned(), name.to_owned())).expect("it is there");
        let before = object.clone();
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        state.history.push((version, resource.to_owned(), "DELETED", Some(before), object));
        self.shared.changed.send_replace(version);
    }

    /// Deletes an object without a word to those who watch.
    pub fn delete_in_silence(&self, resource: &str, name: &str) {
        self.delete(resource, name);
        self.lock().history.pop();
    }

    /// Forgets every version up to now: who begins to watch from one before it is told 410.
    pub fn compact(&self) {
        let mut state = self.lock();
        state.compacted = state.version;
    }

    /// Has watches wait for their answers, or not any more.
    pub fn hold_watches(&self, holds: bool) {
        self.lock().holds = holds;
        self.shared.changed.send_modify(|_| {});
    }

    /// Watches that wait for their answers.
    pub fn held(&self) -> u32 {
        self.lock().held
    }

    /// Tells every watch that is open to do something.
    pub fn tell(&self, command: Command) {
        self.lock().commands.push(command);
        self.shared.changed.send_modify(|_| {});
    }

    /// Answers the next lists, each page counting as one, with these statuses; 0 stands for what was asked for.
    pub fn fail_lists(&self, statuses: &[u16]) {
        self.lock().list_faults.extend(statuses);
    }

    /// Answers the next watches with these statuses.
    pub fn fail_watches(&self, statuses: &[u16]) {
        self.lock().watch_faults.extend(statuses);
    }

    /// Answers everything with this status until further notice.
    pub fn refuse(&self, status: Option<u16>) {
        self.lock().refuses = status;
    }

    /// Whole lists, and watches, that were granted so far.
    pub fn granted(&self) -> (u32, u32) {
        let state = self.lock();
        (state.lists, state.watches)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.shared.state.lock().expect("the lock")
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.task.abort();
        // Connections live on without their server; the watches on them end.
        self.shared.state.lock().expect("the lock").commands.push(Command::Cut);
        self.shared.changed.send_modify(|_| {});
    }
}

async fn answer(State(shared): State<Arc<Shared>>, headers: HeaderMap, uri: Uri) -> Response {
    let query = query(uri.query().unwrap_or_default());
    let watches = query.get("watch").is_some_and(|watch| watch == "true");
    let expected = format!("Bearer {TOKEN}");
    if headers.get(header::AUTHORIZATION).is_none_or(|sent| sent.as_bytes() != expected.as_bytes()) {
        return status(401, "Unauthorized");
    }
    let resource = match uri.path() {
        "/api/v1/namespaces/ns/pods" => "pods",
        "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices" => "endpointslices",
        path => return status(404, &format!("there is no {path}")),
    };
    if watches {
        wait_while_held(&shared).await;
    }
    let mut state = shared.state.lock().expect("the lock");
    let fault = if watches { state.watch_faults.pop_front() } else { state.list_faults.pop_front() };
    if let Some(code) = state.refuses.or(fault).filter(|code| *code != 0) {
        return status(code, &format!("{resource} is what the test refuses"));
    }
    let selector = query.get("labelSelector").cloned().unwrap_or_default();
    if watches {
        state.watches += 1;
        let from: u64 = query.get("resourceVersion").and_then(|version| version.parse().ok()).expect("a version");
        assert_eq!(query.get("allowWatchBookmarks").map(String::as_str), Some("true"));
        assert!(query.contains_key("timeoutSeconds"), "a watch without an end");
        let done = state.commands.len();
        drop(state);
        return stream(shared, resource, selector, from, done);
    }
    list(&mut state, resource, &selector, query.get("continue").map(String::as_str))
}

async fn wait_while_held(shared: &Shared) {
    let mut changed = shared.changed.subscribe();
    shared.state.lock().expect("the lock").held += 1;
    while shared.state.lock().expect("the lock").holds {
        changed.changed().await.expect("the server lives");
    }
    shared.state.lock().expect("the lock").held -= 1;
}

fn list(state: &mut Inner, resource: &str, selector: &str, token: Option<&str>) -> Response {
    let chosen = state.objects.iter().filter(|((of, _), object)| of == resource && selects(selector, object));
    let rest = chosen.filter(|((_, name), _)| token.is_none_or(|token| name.as_str() > token));
    let rest: Vec<_> = rest.collect();
    let items: Vec<&Value> = rest.iter().take(PAGE).map(|(_, object)| *object).collect();
    let last = rest.iter().take(PAGE).next_back().map(|((_, name), _)| name.as_str()).unwrap_or_default();
    let token = if rest.len() > PAGE { last } else { "" };
    let (api, kind) = if resource == "pods" { ("v1", "PodList") } else { ("discovery.k8s.io/v1", "EndpointSliceList") };
    let metadata = json!({ "resourceVersion": state.version.to_string(), "continue": token });
    let body = json!({ "apiVersion": api, "kind": kind, "metadata": metadata, "items": items }).to_string();
    state.lists += u32::from(token.is_empty());
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// The lines of one watch.
fn stream(shared: Arc<Shared>, resource: &'static str, selector: String, from: u64, mut done: usize) -> Response {
    let (lines, mut body) = mpsc::channel::<Result<Bytes, io::Error>>(16);
    tokio::spawn(async move {
        let mut changed = shared.changed.subscribe();
        let (mut sent, mut is_new) = (from, true);
        loop {
            let (mut due, commands) = {
                let state = shared.state.lock().expect("the lock");
                if from < state.compacted && is_new {
                    (vec![gone()], vec![Command::Close])
                } else {
                    let news = state.history.iter().filter(|(version, of, ..)| *version > sent && of == resource);
                    let due = news.filter_map(|(_, _, kind, before, object)| event(&selector, kind, before, object));
                    let due: Vec<Value> = due.collect();
                    let commands = state.commands.get(done..).unwrap_or_default().to_vec();
                    sent = state.version;
                    done = state.commands.len();
                    (due, commands)
                }
            };
            is_new = false;
            let mut end = None;
            for command in commands {
                match command {
                    Command::Bookmark => {
                        let metadata = json!({ "resourceVersion": sent.to_string() });
                        let object = json!({ "kind": "Pod", "apiVersion": "v1", "metadata": metadata });
                        due.push(json!({ "type": "BOOKMARK", "object": object }));
                    }
                    Command::Gone => due.push(gone()),
                    Command::Cut | Command::Close => end = Some(command),
                }
            }
            for line in due {
                if lines.send(Ok(format!("{line}\n").into())).await.is_err() {
                    return;
                }
            }
            match end {
                None => {}
                Some(Command::Cut) => {
                    // Nobody may be there any more to see it.
                    let _ = lines.send(Ok(Bytes::from_static(b"{\"type\":\"ADDED\",\"object\":{\"kind\":\"Po"))).await;
                    let _ = lines.send(Err(io::Error::other("the connection is cut"))).await;
                    return;
                }
                Some(_) => return,
            }
            tokio::select! {
                changed = changed.changed() => if changed.is_err() { return },
                () = lines.closed() => return,
            }
        }
    });
    let lines = futures_util::stream::poll_fn(move |context| body.poll_recv(context));
    ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(lines)).into_response()
}

/// What a watcher with this selector sees of a change: an object that it ceases to select is deleted for it.
fn event(selector: &str, kind: &str, before: &Option<Value>, object: &Value) -> Option<Value> {
    let was = before.as_ref().is_some_and(|before| selects(selector, before));
    let is = kind != "DELETED" && selects(selector, object);
    let kind = match (was, is) {
        (false, false) => return None,
        (false, true) => "ADDED",
        (true, true) => "MODIFIED",
        (true, false) => "DELETED",
    };
    Some(json!({ "type": kind, "object": object }))
}

fn gone() -> Value {
    json!({ "type": "ERROR", "object": status_object(410, "too old resource version") })
}

fn status(code: u16, message: &str) -> Response {
    let body = status_object(code, message).to_string();
    let code = StatusCode::from_u16(code).expect("a status");
    (code, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn status_object(code: u16, message: &str) -> Value {
    let reason = match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        410 => "Expired",
        _ => "InternalError",
    };
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": reason, "code": code })
}

/// Whether labels equal what a selector of `key=value` terms asks for.
fn selects(selector: &str, object: &Value) -> bool {
    selector.split(',').filter(|term| !term.is_empty()).all(|term| {
        let (key, value) = term.split_once('=').expect("an equality");
        object["metadata"]["labels"][key] == json!(value)
    })
}

fn query(text: &str) -> HashMap<String, String> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), decode(value))).collect()
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits: String = rest.by_ref().take(2).map(char::from).collect();
                u8::from_str_radix(&digits, 16).expect("two hexadecimal digits")
            }
            b'+' => b' ',
            byte => byte,
        });
    }
    String::from_utf8(bytes).expect("UTF-8")
}
