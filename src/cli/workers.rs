//! `kvtap workers`: who is there, what they hold, and how far the picture of them can be trusted.

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde::Serialize;

use super::client::Server;
use super::table::{Align, Table, age, number};
use super::{Failure, Outcome};
use crate::admin::report::RankReport;
use crate::proto::v1;
use crate::serve::response::report_of;

/// The arguments of `kvtap workers`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: Server,
    /// List workers of this model only.
    #[arg(long, value_name = "M", default_value = "", hide_default_value = true)]
    model: String,
    /// List only this worker, by name, address or alias; may be repeated.
    #[arg(long = "worker", value_name = "NAME")]
    workers: Vec<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Listing {
    workers: Vec<RankReport>,
    version: String,
    uptime_ms: u64,
}

/// Asks, and prints the list.
///
/// # Errors
/// [`Failure::Failed`] where the server cannot be reached, or refuses, or has no worker of those asked for.
pub async fn run(args: Args) -> Outcome {
    let mut client = args.server.connect().await?;
    let request = v1::ListWorkersRequest { model: args.model.clone(), workers: args.workers.clone() };
    let response = client.list_workers(request).await.map_err(|status| args.server.refused(&status))?.into_inner();
    let nobody = response.workers.is_empty() && !(args.model.is_empty() && args.workers.is_empty());
    let listing = Listing {
        workers: response.workers.into_iter().map(report_of).collect(),
        version: response.version,
        uptime_ms: response.uptime_ms,
    };
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, &listing).map_err(io::Error::from)?;
        writeln!(out)?;
    } else if !nobody {
        table(&listing.workers, &mut out)?;
    }
    out.flush()?;
    drop(out);
    if nobody {
        let all = client.list_workers(v1::ListWorkersRequest::default()).await;
        let all = all.map_err(|status| args.server.refused(&status))?.into_inner().workers;
        return Err(Failure::Failed(args.nobody(&all)));
    }
    Ok(())
}

// === impl Args ===

impl Args {
    /// That no worker is as asked for, and which there are.
    fn nobody(&self, all: &[v1::RankReport]) -> String {
        let known: BTreeSet<_> = all
            .iter()
            .filter_map(|report| report.worker_rank.as_ref())
            .map(|who| if self.workers.is_empty() { &who.model } else { &who.worker })
            .collect();
        let known = match known.is_empty() {
            true => "none".to_owned(),
            false => known.into_iter().cloned().collect::<Vec<_>>().join(", "),
        };
        match (self.workers.is_empty(), self.model.is_empty()) {
            (true, _) => format!("no worker serves model {:?}; known: {known}", self.model),
            (false, true) => format!("no worker is called {}; known: {known}", self.workers.join(" or ")),
            (false, false) => {
                format!("no worker of model {:?} is called {}; known: {known}", self.model, self.workers.join(" or "))
            }
        }
    }
}

fn table(reports: &[RankReport], out: &mut impl Write) -> io::Result<()> {
    let mut table = Table::new([
        ("WORKER", Align::Left),
        ("RANK", Align::Right),
        ("MODEL", Align::Left),
        ("STATE", Align::Left),
        ("EPOCH", Align::Right),
        ("SEQ", Align::Right),
        ("HEARD", Align::Right),
        ("BLOCKS", Align::Right),
        ("SIZE", Align::Right),
        ("GAPS", Align::Right),
        ("MISSED", Align::Right),
        ("REPLAYS", Align::Right),
        ("DROPPED", Align::Right),
        ("ORPHANS", Align::Right),
        ("WHY", Align::Left),
    ]);
    for report in reports {
        table.row([
            report.worker.clone(),
            report.rank.to_string(),
            report.model.clone(),
            report.state.clone(),
            report.epoch.to_string(),
            number(report.last_seq),
            age(report.age_ms),
            report.blocks.to_string(),
            number(report.block_size.map(u64::from)),
            report.gaps.to_string(),
            report.missed.to_string(),
            report.replays.to_string(),
            report.dropped.values().sum::<u64>().to_string(),
            report.orphans.to_string(),
            report.why.clone(),
        ]);
    }
    table.print(out)
}
