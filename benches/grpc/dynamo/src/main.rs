//! Dynamo's standalone HTTP indexer, through its public entry point: `dynamo PORT THREADS WORKERS`.

use dynamo_kv_router::services::indexer::{IndexerConfig, run_server};

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port, threads, workers] = &*arguments else { anyhow::bail!("dynamo PORT THREADS WORKERS") };
    let config = IndexerConfig {
        block_size: Some(16),
        port: port.parse()?,
        threads: threads.parse()?,
        workers: Some(workers.clone()),
        model_name: "m".into(),
        routing_group: "default".into(),
        peers: None,
        access_log: None,
        trace_id_header: http::header::HeaderName::from_static("x-request-id"),
        access_log_local_time: false,
    };
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run_server(config))
}
