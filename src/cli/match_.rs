//! `kvtap match`: who holds how much of a prompt.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;

use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::transport::Channel;

use super::client::{Server, refused};
use super::match_output::Answer;
use super::{Failure, Outcome, tokens};
use crate::proto::v1;
use crate::proto::v1::match_stream_response::Result as StreamResult;
use crate::proto::v1::query_service_client::QueryServiceClient;

/// The arguments of `kvtap match`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: Server,
    /// The model, as the server's feeds are configured.
    #[arg(long, value_name = "M")]
    model: String,
    /// The LoRA adapter's name.
    #[arg(long, value_name = "L", default_value = "", hide_default_value = true)]
    lora: String,
    /// The cache salt.
    #[arg(long, value_name = "S", default_value = "", hide_default_value = true)]
    salt: String,
    #[command(flatten)]
    prompt: Prompt,
    /// One query for each line of --tokens-file, one answer for each, in order, over one connection.
    #[arg(long, requires = "tokens_file")]
    batch: bool,
    /// Answer on this block size only, in tokens.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    block_size: u32,
    /// Ask only this worker, by name, address or alias; may be repeated.
    #[arg(long = "worker", value_name = "NAME")]
    workers: Vec<String>,
    /// Show at most so many ranks, the deepest first.
    #[arg(long, value_name = "K", default_value_t = 0, hide_default_value = true)]
    top_k: u32,
    /// Leave out ranks that match fewer blocks.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    min_blocks: u32,
    /// Print one JSON object for each query.
    #[arg(long)]
    json: bool,
}

/// Where the token ids come from.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(super) struct Prompt {
    /// Token ids, with commas between them.
    #[arg(long, value_name = "IDS")]
    tokens: Option<String>,
    /// A file of token ids with whitespace or commas between them; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    tokens_file: Option<PathBuf>,
}

/// Queries of a batch that may be under way at once.
const PIPELINE: usize = 64;

/// Asks, and prints the answer.
///
/// # Errors
/// [`Failure::Usage`] for tokens that are none, [`Failure::Failed`] where the server cannot be reached or refuses.
pub async fn run(args: Args) -> Outcome {
    match &args.prompt {
        Prompt { tokens_file: Some(file), .. } if args.batch => batch(&args, file).await,
        prompt => one(&args, prompt.tokens_le()?).await,
    }
}

async fn one(args: &Args, tokens_le: Vec<u8>) -> Outcome {
    let mut client = args.server.connect().await?;
    let response = client.r#match(args.request(tokens_le)).await.map_err(|status| refused(&status))?;
    let answer = Answer::new(response.into_inner());
    let mut out = io::stdout().lock();
    if args.json {
        json(&mut out, &answer)?
    } else {
        answer.table(&mut out)?
    }
    Ok(out.flush()?)
}

async fn batch(args: &Args, file: &Path) -> Outcome {
    let client = args.server.connect().await?;
    let (requests, pending) = mpsc::channel(PIPELINE);
    let (report, read) = oneshot::channel();
    let lines = BufReader::new(open(file)?);
    let reader = args.clone();
    // A thread of its own, because a terminal or a pipe may stay silent for ever; the process does not wait for it.
    thread::spawn(move || {
        // Nobody waits for the report once the answers have failed.
        let _ = report.send(send_lines(&reader, lines, &requests));
    });

    let mut refusals = 0u64;
    let answered = print_answers(args, client, pending, &mut refusals).await?;
    let sent = read.await.map_err(|_| Failure::Failed("the input was not read to its end".to_owned()))??;
    if answered < sent {
        return Err(Failure::Failed(format!("the server ended after {answered} of {sent} answers")));
    }
    if refusals > 0 {
        return Err(Failure::Failed(format!("{refusals} of {answered} queries were refused")));
    }
    Ok(())
}

/// Sends one request for each line; how many there were.
fn send_lines(
    args: &Args,
    lines: impl BufRead,
    requests: &mpsc::Sender<v1::MatchStreamRequest>,
) -> Result<u64, Failure> {
    let mut id = 0;
    for line in lines.lines() {
        let mut tokens_le = Vec::new();
        tokens::parse(&line?, &mut tokens_le)
            .map_err(|error| Failure::Failed(format!("--tokens-file: line {}: {error}", id + 1)))?;
        id += 1;
        let request = v1::MatchStreamRequest { id, request: Some(args.request(tokens_le)) };
        if requests.blocking_send(request).is_err() {
            break;
        }
    }
    Ok(id)
}

/// Prints each answer as it comes; how many came.
async fn print_answers(
    args: &Args,
    mut client: QueryServiceClient<Channel>,
    pending: mpsc::Receiver<v1::MatchStreamRequest>,
    refusals: &mut u64,
) -> Result<u64, Failure> {
    let response = client.match_stream(ReceiverStream::new(pending)).await;
    let mut answers = response.map_err(|status| refused(&status))?.into_inner();
    let mut answered = 0;
    while let Some(answer) = answers.message().await.map_err(|status| refused(&status))? {
        answered += 1;
        // A line is flushed at once: whoever pipes queries in may wait for it. No lock is held across an await.
        let mut out = io::stdout();
        match answer.result {
            Some(StreamResult::Response(response)) if args.json => json(&mut out, &Answer::new(response))?,
            Some(StreamResult::Response(response)) => Answer::new(response).line(&mut out)?,
            failure => {
                *refusals += 1;
                let (code, message) = match failure {
                    Some(StreamResult::Failure(failure)) => (Code::from(failure.code), failure.message),
                    _ => (Code::Unknown, "the server answered nothing that this version knows".to_owned()),
                };
                if args.json {
                    json(
                        &mut out,
                        &serde_json::json!({ "error": { "code": format!("{code:?}"), "message": message } }),
                    )?;
                } else {
                    writeln!(out, "refused: {message}")?;
                }
            }
        }
        out.flush()?;
    }
    Ok(answered)
}

fn json(out: &mut impl Write, value: &impl serde::Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    writeln!(out)
}

fn open(file: &Path) -> Result<Box<dyn Read + Send>, Failure> {
    if file.as_os_str() == "-" {
        return Ok(Box::new(io::stdin()));
    }
    let opened = File::open(file);
    let opened = opened.map_err(|error| Failure::Failed(format!("--tokens-file: {}: {error}", file.display())))?;
    Ok(Box::new(opened))
}

fn of_file(file: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Failed(format!("--tokens-file: {}: {error}", file.display()));
    let mut text = String::new();
    open(file)?.read_to_string(&mut text).map_err(|error| failed(&error))?;
    let mut tokens_le = Vec::new();
    tokens::parse(&text, &mut tokens_le).map_err(|error| failed(&error))?;
    Ok(tokens_le)
}

// === impl Prompt ===

impl Prompt {
    /// The tokens of the one prompt there is, as raw bytes.
    pub(super) fn tokens_le(&self) -> Result<Vec<u8>, Failure> {
        match self {
            Self { tokens_file: Some(file), .. } => of_file(file),
            Self { tokens, .. } => tokens::of_argument(tokens.as_deref().unwrap_or_default()),
        }
    }
}

// === impl Args ===

impl Args {
    fn request(&self, tokens_le: Vec<u8>) -> v1::MatchRequest {
        v1::MatchRequest {
            model: self.model.clone(),
            lora_name: self.lora.clone(),
            cache_salt: self.salt.clone(),
            prompt: Some(v1::match_request::Prompt::TokensLe(tokens_le.into())),
            block_size: self.block_size,
            workers: self.workers.clone(),
            top_k: self.top_k,
            min_blocks: self.min_blocks,
            ..v1::MatchRequest::default()
        }
    }
}
