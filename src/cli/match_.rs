//! `kvtap match`: who holds how much of a prompt.

mod batch;

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::client::Server;
use super::match_output::Answer;
use super::{Failure, Outcome, tokens};
use crate::client::Servers;
use crate::proto::v1;

/// The arguments of `kvtap match`. With commas between them, `--server` names several servers: all are asked, and
/// their answers put together.
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
    /// One query for each line of --tokens-file, one answer for each, in order, over one connection. A line that is no
    /// query is answered by its error, the exit code is then 1.
    #[arg(long)]
    batch: bool,
    /// Answer on this block size only, in tokens.
    #[arg(long, value_name = "N")]
    block_size: Option<u32>,
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

/// Asks, and prints the answer.
///
/// # Errors
/// [`Failure::Usage`] for arguments that mean nothing, [`Failure::Failed`] where the server cannot be reached or refuses.
pub async fn run(args: Args) -> Outcome {
    if args.block_size == Some(0) {
        return Err(Failure::Usage("--block-size: a block of 0 tokens is none".to_owned()));
    }
    if args.batch && args.server.servers()?.is_some() {
        return Err(Failure::Usage("--batch: asks one server".to_owned()));
    }
    match &args.prompt {
        Prompt { tokens_file: Some(file), .. } if args.batch => batch::run(&args, open(file)?).await,
        _ if args.batch => Err(Failure::Usage("--batch: the queries are the lines of --tokens-file".to_owned())),
        prompt => one(&args, prompt.tokens_le()?).await,
    }
}

async fn one(args: &Args, tokens_le: Vec<u8>) -> Outcome {
    if let Some(servers) = args.server.servers()? {
        return many(args, &servers, tokens_le).await;
    }
    let mut client = args.server.connect().await?;
    let response = client.r#match(args.request(tokens_le)).await.map_err(|status| args.server.refused(&status))?;
    print(args, &Answer::new(response.into_inner()))
}

/// Asks many servers; whoever is missing is told with the answer. Nobody there is a failure.
async fn many(args: &Args, servers: &Servers, tokens_le: Vec<u8>) -> Outcome {
    let gathered = servers.ask(&args.request(tokens_le)).await;
    let missing: Vec<_> =
        gathered.missing.iter().map(|missing| format!("{}: {}", missing.server, missing.error)).collect();
    if gathered.answered == 0 {
        return Err(Failure::Failed(format!("no server answered: {}", missing.join("; "))));
    }
    for line in missing {
        eprintln!("missing {line}");
    }
    print(args, &Answer::gathered(gathered))
}

fn print(args: &Args, answer: &Answer) -> Outcome {
    let mut out = io::stdout().lock();
    if args.json {
        json(&mut out, answer)?
    } else {
        answer.table(&mut out)?
    }
    Ok(out.flush()?)
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
            block_size: self.block_size.unwrap_or(0),
            workers: self.workers.clone(),
            top_k: self.top_k,
            min_blocks: self.min_blocks,
            ..v1::MatchRequest::default()
        }
    }
}
