//! What a new file changes that a running process cannot follow.

use super::sections::{Admin, Grpc, Log, Snapshot};
use super::{Config, Discovery};
use crate::net::Bounds;

// === impl Config ===

impl Config {
    /// The keys in which `new` differs from this configuration, the one a process was started with, and which only a
    /// restart brings into force. Everything else can change while it runs.
    pub fn fixed_changes(&self, new: &Self) -> Vec<&'static str> {
        // Taken apart whole, so that whoever adds a setting decides here.
        let Self { grpc, admin, admin_rpc, log, limits: _, snapshot, nats, relay, .. } = self;
        let Self { defaults: _, discovery, feeds: _, .. } = self;
        let Grpc { listen, max_message_bytes, reflection, drain_grace, limits, keep_alive, .. } = grpc;
        // What the files hold can change while it runs; which files they are cannot.
        let Grpc { tls, token_file, adapters, watch, .. } = grpc;
        let Admin { listen: admin_listen, bounds } = admin;
        // Its three times are one setting.
        let Bounds { connections, handshake: request_time, idle: _, stall: _ } = bounds;
        let Log { level: _, format } = log;
        let Snapshot { directory, interval } = snapshot;
        let mut differs = vec![
            ("grpc.listen", *listen != new.grpc.listen),
            ("grpc.max_message_bytes", *max_message_bytes != new.grpc.max_message_bytes),
            ("grpc.reflection", *reflection != new.grpc.reflection),
            ("grpc.drain_grace", *drain_grace != new.grpc.drain_grace),
            ("grpc.limits", *limits != new.grpc.limits),
            ("grpc.keep_alive", *keep_alive != new.grpc.keep_alive),
            ("grpc.tls", *tls != new.grpc.tls),
            ("grpc.token_file", *token_file != new.grpc.token_file),
            ("grpc.adapters", *adapters != new.grpc.adapters),
            ("grpc.watch", *watch != new.grpc.watch),
            ("admin.listen", *admin_listen != new.admin.listen),
            ("admin.connections", *connections != new.admin.bounds.connections),
            ("admin.request_time", *request_time != new.admin.bounds.handshake),
            ("admin_rpc.listen", admin_rpc.listen != new.admin_rpc.listen),
            // What the files hold can change while it runs; which files they are cannot.
            ("admin_rpc.tls", admin_rpc.guards.tls != new.admin_rpc.guards.tls),
            ("admin_rpc.token_file", admin_rpc.guards.token_file != new.admin_rpc.guards.token_file),
            ("log.format", *format != new.log.format),
            ("snapshot.directory", *directory != new.snapshot.directory),
            ("snapshot.interval", *interval != new.snapshot.interval),
            // Feeds take their new connection at once, the relay does not.
            ("nats", relay.is_some() && *nats != new.nats),
            ("relay", *relay != new.relay),
        ];
        match (discovery, &new.discovery) {
            (Some(old), Some(new)) => {
                // What the API server is asked. What its answers come to can change while it runs.
                let Discovery { selector, resource, namespace, kubeconfig, resync, .. } = old;
                differs.extend([
                    ("discovery.selector", *selector != new.selector),
                    ("discovery.resource", *resource != new.resource),
                    ("discovery.namespace", *namespace != new.namespace),
                    ("discovery.kubeconfig", *kubeconfig != new.kubeconfig),
                    ("discovery.resync", *resync != new.resync),
                ]);
            }
            (old, new) => differs.push(("discovery.selector", old.is_some() != new.is_some())),
        }
        differs.into_iter().filter_map(|(key, differs)| differs.then_some(key)).collect()
    }
}
