//! `kvtap watch`: the normalized feed, as it happens.

use std::io::{self, Write};

use bytes::Bytes;
use tonic::{Code, Status};

use super::client::{Server, refused};
use super::watch_output::{json, text};
use super::{Failure, Outcome};
use crate::proto::v1;
use crate::proto::v1::watch_response::What;
use crate::proto::v1::watch_service_client::WatchServiceClient;

/// The arguments of `kvtap watch`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: Server,
    /// Watch workers of this model only.
    #[arg(long, value_name = "M", default_value = "", hide_default_value = true)]
    model: String,
    /// Watch only this worker, by name, address or alias; may be repeated.
    #[arg(long = "worker", value_name = "NAME")]
    workers: Vec<String>,
    /// Go on after this cursor of an earlier watch, as --json printed it.
    #[arg(long, value_name = "CURSOR")]
    resume_after: Option<String>,
    /// End once everything that is there now was told.
    #[arg(long)]
    once: bool,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

/// The largest message that is read, in bytes. The server's are a few hundred KiB at most.
const MAX_MESSAGE: usize = 16 << 20;

/// Watches until the server ends it, or what reads the output does. A watch that was cut is resumed.
///
/// # Errors
/// [`Failure`] where the server cannot be reached, refuses or goes away.
pub async fn run(args: Args) -> Outcome {
    let channel = args.server.channel().await?;
    let mut client = WatchServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
    let mut cursor = match &args.resume_after {
        None => Bytes::new(),
        Some(hex) => unhex(hex).ok_or_else(|| Failure::Usage("--resume-after: this is no cursor".to_owned()))?,
    };
    let mut out = io::stdout().lock();
    loop {
        let (model, workers) = (args.model.clone(), args.workers.clone());
        let request = v1::WatchRequest { model, workers, resume_after: cursor.clone() };
        let mut messages = client.watch(request).await.map_err(|status| refused(&status))?.into_inner();
        let ended: Status = loop {
            let response = match messages.message().await {
                Ok(Some(response)) => response,
                Ok(None) => return Err(Failure::Failed("the server has ended the watch".to_owned())),
                Err(status) => break status,
            };
            let line = if args.json { json(&response)? } else { text(&response) };
            if !line.is_empty() {
                writeln!(out, "{line}")?;
                out.flush()?;
            }
            if args.once && matches!(response.what, Some(What::Synced(_))) {
                return Ok(());
            }
            if !response.cursor.is_empty() {
                cursor = response.cursor;
            }
        };
        if ended.code() != Code::Aborted {
            return Err(refused(&ended));
        }
        eprintln!("kvtap: {}; going on", ended.message());
    }
}

fn unhex(hex: &str) -> Option<Bytes> {
    let (pairs, []) = hex.as_bytes().as_chunks::<2>() else { return None };
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.iter().map(byte).collect()
}
