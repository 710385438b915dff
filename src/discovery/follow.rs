//! The task that lists, watches, and tells the roster.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, ResourceExt};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::engine::{Found, find};
use super::known::Known;
use super::object::{EndpointSlice, Object, Pod};
use crate::admin::{Discovered, DiscoveryReason};
use crate::backoff::Backoff;
use crate::config::{self, Config, Resource};
use crate::feed::Snapshots;
use crate::roster::{Roster, Source, Wanted};

/// Objects of one page of a list.
const PAGE: u32 = 500;

/// Objects that are kept: a namespace has hundreds.
const MAX_OBJECTS: usize = 20_000;

/// How long the server keeps a watch open. It is then taken up again where it ended.
const WATCH: Duration = Duration::from_secs(240);

/// How much longer than that silence may last: then the connection is half-open.
const LATE: Duration = Duration::from_secs(10);

/// How long a page of a list, or the answer to a watch, may take to come.
const ANSWER: Duration = Duration::from_secs(30);

/// The pauses after failures in a row, from the first to the longest.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));

/// After so many watches in a row that failed, the list is made anew.
const MOST_FAILURES: u32 = 3;

/// A watch that lived so long counts as a success, however it ended.
const LIVED: Duration = Duration::from_secs(5);

/// Discovery in one namespace, as configured at the start.
pub struct Discovery {
    settings: config::Discovery,
    client: Client,
    namespace: String,
    roster: Roster,
    snapshots: Option<Snapshots>,
    record: Arc<Discovered>,
    config: watch::Receiver<Arc<Config>>,
    known: Known,
    told: Option<Vec<Wanted>>,
    failures: Backoff,
}

/// Why discovery cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The pod has no service account, or not in a pod at all.
    #[error(
        "discovery: there is no service account token, or this is no pod: {0} (discovery.kubeconfig names a file instead)"
    )]
    InCluster(#[from] kube::config::InClusterError),
    /// The file cannot be used.
    #[error("discovery.kubeconfig: {file}: {error}", file = .file.display())]
    Kubeconfig {
        /// The file.
        file: PathBuf,
        /// Why.
        error: kube::config::KubeconfigError,
    },
    /// There can be no client for it.
    #[error("discovery: {0}")]
    Client(#[from] kube::Error),
}

/// Why a list or a watch ended early.
struct Failure {
    reason: DiscoveryReason,
    what: String,
}

/// How a watch ended.
enum Ended {
    /// As watches do: it is to be taken up again.
    Closed,
    /// The server has forgotten what comes after that version.
    Expired,
    /// It is time for a new list.
    Resync,
}

// === impl Discovery ===

impl Discovery {
    /// Discovery as `settings` say, which tells `roster` what it finds and `record` how it fares. Settings for engines
    /// (model, ports, defaults) are those of `config` at any time. Asks the API server nothing yet.
    ///
    /// # Errors
    /// [`DiscoveryError`] where there are no credentials to ask with.
    pub async fn new(
        settings: config::Discovery,
        roster: Roster,
        snapshots: Option<Snapshots>,
        record: Arc<Discovered>,
        config: watch::Receiver<Arc<Config>>,
    ) -> Result<Self, DiscoveryError> {
        let mut client = match &settings.kubeconfig {
            None => kube::Config::incluster()?,
            Some(file) => {
                let unusable = |error| DiscoveryError::Kubeconfig { file: file.clone(), error };
                let read = Kubeconfig::read_from(file).map_err(unusable)?;
                let options = KubeConfigOptions::default();
                kube::Config::from_custom_kubeconfig(read, &options).await.map_err(unusable)?
            }
        };
        // A watch is silent for as long as nothing happens: its deadlines are kept here.
        client.read_timeout = Some(WATCH + 2 * LATE);
        client.connect_timeout = Some(ANSWER);
        let namespace = settings.namespace.clone().unwrap_or_else(|| client.default_namespace.clone());
        let client = Client::try_from(client)?;
        let (known, told) = Default::default();
        Ok(Self { settings, client, namespace, roster, snapshots, record, config, known, told, failures: PAUSES })
    }

    /// Finds engines until it is dropped.
    pub async fn run(self) {
        let namespace = self.namespace.clone();
        let (selector, resource) = (self.settings.selector.clone(), self.settings.resource.name());
        tracing::info!(
            namespace,
            selector,
            resource,
            "Engines are discovered. They are followed over the pod network, which is neither encrypted nor authenticated."
        );
        let client = self.client.clone();
        match self.settings.resource {
            Resource::Pods => self.follow(Api::<Pod>::namespaced(client, &namespace)).await,
            Resource::EndpointSlices => self.follow(Api::<EndpointSlice>::namespaced(client, &namespace)).await,
        }
    }

    async fn follow<K: Object>(mut self, api: Api<K>) {
        loop {
            let listed = Instant::now();
            match self.list(&api).await {
                Ok(version) => self.watch_from(&api, version, listed).await,
                Err(failure) => self.rest(failure).await,
            }
        }
    }

    /// Makes the list, tells of it, and returns its version.
    async fn list<K: Object>(&mut self, api: &Api<K>) -> Result<String, Failure> {
        let mut objects = BTreeMap::new();
        let mut params = ListParams::default().labels(&self.settings.selector).limit(PAGE);
        let version = loop {
            let page = timeout(ANSWER, api.list(&params)).await;
            let page = page.map_err(|_| Failure::late("a list"))?.map_err(Failure::of_list)?;
            for object in page.items {
                objects.insert(object.name_any(), object.told());
            }
            if objects.len() > MAX_OBJECTS {
                return Err(Failure::too_many(DiscoveryReason::ListFailed));
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => break page.metadata.resource_version.unwrap_or_default(),
            }
        };
        self.known.list(objects);
        self.record.listed();
        self.tell().await;
        Ok(version)
    }

    /// Watches from a version on, until the list has to be made anew.
    async fn watch_from<K: Object>(&mut self, api: &Api<K>, mut version: String, listed: Instant) {
        let resync = listed + self.settings.resync;
        loop {
            let began = Instant::now();
            let ended = self.watch(api, &mut version, resync).await;
            if began.elapsed() >= LIVED {
                self.failures.reset();
            }
            match ended {
                Ok(Ended::Closed) => {
                    // A server that ends every watch at once must not be asked without a pause.
                    if began.elapsed() < LIVED {
                        self.pause().await;
                    }
                }
                Ok(Ended::Resync) => return,
                Ok(Ended::Expired) => {
                    self.record.failed(DiscoveryReason::Expired, None);
                    tracing::info!("The API server has forgotten the version that was watched from: listing anew.");
                    if began.elapsed() < LIVED {
                        self.pause().await;
                    }
                    return;
                }
                Err(failure) => {
                    self.rest(failure).await;
                    if self.failures.attempts() >= MOST_FAILURES {
                        return;
                    }
                }
            }
        }
    }

    /// One watch, from `version` on; it is moved along.
    async fn watch<K: Object>(
        &mut self,
        api: &Api<K>,
        version: &mut String,
        resync: Instant,
    ) -> Result<Ended, Failure> {
        let seconds = WATCH.as_secs() as u32;
        let params = WatchParams::default().labels(&self.settings.selector).timeout(seconds);
        let events = timeout(ANSWER, api.watch(&params, version)).await.map_err(|_| Failure::late("a watch"))?;
        let mut events = match events {
            Ok(events) => pin!(events),
            Err(error) if is_gone(&error) => return Ok(Ended::Expired),
            Err(error) => return Err(Failure::of_watch(error)),
        };
        self.record.watching();
        loop {
            let event = tokio::select! {
                event = timeout(WATCH + LATE, events.next()) => event.map_err(|_| Failure::late("a watch"))?,
                () = tokio::time::sleep_until(resync) => return Ok(Ended::Resync),
                changed = self.config.changed() => {
                    // What is known may mean something else now. Nobody changes it any more at the end of the process.
                    if changed.is_err() {
                        std::future::pending::<()>().await;
                    }
                    self.tell().await;
                    continue;
                }
            };
            let changed = match event {
                None => return Ok(Ended::Closed),
                Some(Err(error)) if is_gone(&error) => return Ok(Ended::Expired),
                // A line that broke off is the end of the stream, and what was whole before it counts.
                Some(Err(error)) => return Err(Failure::of_watch(error)),
                Some(Ok(WatchEvent::Error(status))) if status.code == 410 => return Ok(Ended::Expired),
                Some(Ok(WatchEvent::Error(status))) => return Err(Failure::of_watch(kube::Error::Api(status))),
                Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                    *version = bookmark.metadata.resource_version;
                    false
                }
                Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                    note(version, &object);
                    self.known.apply(object.name_any(), object.told())
                }
                Some(Ok(WatchEvent::Deleted(object))) => {
                    note(version, &object);
                    self.known.delete(&object.name_any())
                }
            };
            if self.known.len() > MAX_OBJECTS {
                return Err(Failure::too_many(DiscoveryReason::WatchFailed));
            }
            if changed {
                self.tell().await;
            }
        }
    }

    /// Brings roster and record in line with what is known.
    async fn tell(&mut self) {
        let config = Arc::clone(&self.config.borrow_and_update());
        let mut wanted = Vec::new();
        let mut waiting = 0;
        let mut refused: Vec<String> = self.known.refused().into_iter().map(str::to_owned).collect();
        for sighting in self.known.engines() {
            // A file that speaks of no discovery any more comes into force with a restart.
            let settings = config.discovery.as_ref().unwrap_or(&self.settings);
            match find(sighting, settings, &config.defaults, &config.nats, self.snapshots.as_ref()) {
                Found::Engine(engine) => wanted.push(engine),
                Found::Waiting => waiting += 1,
                Found::Refused(what) => refused.push(what),
            }
        }
        for what in self.record.found(wanted.len(), waiting, refused) {
            tracing::warn!(what, "What was discovered cannot be followed.");
        }
        if self.told.as_ref() != Some(&wanted) {
            self.roster.set(Source::Discovery, wanted.clone()).await;
            self.told = Some(wanted);
        }
    }

    async fn rest(&mut self, failure: Failure) {
        let Failure { reason, what } = failure;
        if self.record.failed(reason, Some(what.clone())) {
            tracing::warn!(reason = reason.name(), what, "The API server cannot be followed; what is known stays.");
        }
        self.pause().await;
    }

    async fn pause(&mut self) {
        sleep(self.failures.wait()).await;
    }
}

impl std::fmt::Debug for Discovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Discovery")
            .field("settings", &self.settings)
            .field("known", &self.known)
            .finish_non_exhaustive()
    }
}

fn note(version: &mut String, object: &impl Object) {
    if let Some(reached) = &object.meta().resource_version {
        version.clone_from(reached);
    }
}

fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 410)
}

// === impl Failure ===

impl Failure {
    fn too_many(reason: DiscoveryReason) -> Self {
        Self { reason, what: format!("the selector chooses more than {MAX_OBJECTS} objects") }
    }

    fn late(what: &str) -> Self {
        Self { reason: DiscoveryReason::Timeout, what: format!("{what} is not answered in time") }
    }

    fn of_list(error: kube::Error) -> Self {
        Self::of(error, DiscoveryReason::ListFailed)
    }

    fn of_watch(error: kube::Error) -> Self {
        Self::of(error, DiscoveryReason::WatchFailed)
    }

    fn of(error: kube::Error, otherwise: DiscoveryReason) -> Self {
        let reason = match &error {
            kube::Error::Api(status) if matches!(status.code, 401 | 403) => DiscoveryReason::Forbidden,
            kube::Error::Api(status) if status.code == 410 => DiscoveryReason::Expired,
            _ => otherwise,
        };
        let what = match error {
            kube::Error::Api(status) => format!("{} ({})", status.message, status.code),
            other => other.to_string(),
        };
        Self { reason, what }
    }
}
