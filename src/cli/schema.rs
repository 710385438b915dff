//! `kvtap schema`: the JSON Schema of the configuration.

use std::io::{self, Write};

use super::Outcome;
use crate::config;

/// The arguments of `kvtap schema`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Args {}

/// Prints it.
///
/// # Errors
/// [`Failure::Failed`](super::Failure::Failed) where standard output is gone.
pub fn run(_: Args) -> Outcome {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, &config::schema()).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(out.flush()?)
}
