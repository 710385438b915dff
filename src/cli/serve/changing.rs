//! Who may change what runs, besides the file: Kubernetes, and calls.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::admin_rpc::reader;
use crate::admin::{Fleet, RequestMetrics};
use crate::cli::Failure;
use crate::config::Config;
use crate::discovery::Discovery;
use crate::feed::Snapshots;
use crate::roster::Roster;
use crate::serve::{self, AdminRpc, Guards, Listener};

/// What may want other feeds than the file does.
pub(super) struct Changing {
    pub roster: Roster,
    pub snapshots: Option<Snapshots>,
    pub config: watch::Receiver<Arc<Config>>,
}

// === impl Changing ===

impl Changing {
    /// Begins to discover, where that is configured.
    pub async fn discovery(&self, config: &Config, fleet: &Fleet) -> Result<Option<JoinHandle<()>>, Failure> {
        let Some(settings) = config.discovery.clone() else { return Ok(None) };
        let (roster, snapshots, config) = (self.roster.clone(), self.snapshots.clone(), self.config.clone());
        let discovery = Discovery::new(settings, roster, snapshots, Arc::clone(&fleet.discovered), config).await;
        let discovery = discovery.map_err(|error| Failure::Failed(error.to_string()))?;
        Ok(Some(tokio::spawn(discovery.run())))
    }

    /// Begins to take Admin calls, where that is configured; returns what waits for the end of it.
    pub fn admin_rpc(
        self,
        listeners: Vec<Listener>,
        guards: Guards,
        requests: RequestMetrics,
        shutdown: CancellationToken,
    ) -> Result<impl Future<Output = ()>, Failure> {
        let served = if listeners.is_empty() {
            None
        } else {
            let service = AdminRpc::new(self.roster, reader(self.config, self.snapshots));
            let served = serve::admin_rpc::open(listeners, service, requests, guards, shutdown);
            Some(tokio::spawn(served.map_err(|error| Failure::Failed(error.to_string()))?))
        };
        Ok(async move {
            match served {
                None => {}
                Some(served) => match served.await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::error!(%error, "The Admin service failed."),
                    Err(error) => tracing::error!(%error, "The Admin service's task failed."),
                },
            }
        })
    }
}
