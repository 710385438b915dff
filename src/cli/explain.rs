//! `kvtap explain`: the first block that a worker lacks of a prompt, and why.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::client::{Server, refused};
use super::match_::Prompt;
use super::{Failure, Outcome};
use crate::proto::v1;
use crate::proto::v1::cause::Cause as Of;
use crate::proto::v1::explain_service_client::ExplainServiceClient;
use crate::serve::response::state_name;

/// The arguments of `kvtap explain`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: Server,
    /// The model, as the server's feeds are configured.
    #[arg(long, value_name = "M")]
    model: String,
    /// The worker, by name, address or alias.
    #[arg(long, value_name = "NAME")]
    worker: String,
    /// Only this data-parallel rank of it.
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
    /// The LoRA adapter's name.
    #[arg(long, value_name = "L", default_value = "", hide_default_value = true)]
    lora: String,
    /// The cache salt.
    #[arg(long, value_name = "S", default_value = "", hide_default_value = true)]
    salt: String,
    #[command(flatten)]
    prompt: Prompt,
    /// The block size that is expected of the worker, in tokens.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    block_size: u32,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Asks, and prints the explanation.
///
/// # Errors
/// [`Failure::Usage`] for tokens that are none, [`Failure::Failed`] where the server cannot be reached or refuses.
pub async fn run(args: Args) -> Outcome {
    let request = v1::MatchRequest {
        model: args.model.clone(),
        lora_name: args.lora.clone(),
        cache_salt: args.salt.clone(),
        prompt: Some(v1::match_request::Prompt::TokensLe(args.prompt.tokens_le()?.into())),
        block_size: args.block_size,
        workers: vec![args.worker.clone()],
        ranks: args.rank.into_iter().collect(),
        ..v1::MatchRequest::default()
    };
    let mut client = ExplainServiceClient::new(args.server.channel().await?);
    let explained = client.explain(v1::ExplainRequest { request: Some(request) }).await;
    let explained = explained.map_err(|status| refused(&status))?.into_inner();
    let mut out = io::stdout().lock();
    if args.json {
        let ranks: Vec<Value> = explained.ranks.iter().map(rank_json).collect();
        serde_json::to_writer(&mut out, &json!({ "model": args.model, "ranks": ranks })).map_err(io::Error::from)?;
        writeln!(out)?;
    } else if explained.ranks.is_empty() {
        return Err(Failure::Failed("this worker has no such rank".to_owned()));
    } else {
        explained.ranks.iter().try_for_each(|rank| text(rank, &mut out))?;
    }
    Ok(out.flush()?)
}

fn rank_json(rank: &v1::RankExplanation) -> Value {
    let matched = rank.r#match.clone().unwrap_or_default();
    let who = matched.worker_rank.clone().unwrap_or_default();
    json!({
        "worker": who.worker,
        "rank": who.rank,
        "state": state_name(matched.state()),
        "matched_blocks": matched.matched_blocks,
        "device_blocks": matched.device_blocks,
        "asked_blocks": matched.asked_blocks,
        "block_size": matched.grid.map(|grid| grid.block_size),
        "missing_block": rank.missing_block,
        "content_hash": rank.content_hash,
        "prefix_hash": rank.prefix_hash,
        "causes": rank.causes.iter().map(cause_json).collect::<Vec<_>>(),
        "remembered_since_unix_ms": rank.remembered_since_unix_ms,
    })
}

fn cause_json(cause: &v1::Cause) -> Value {
    let text = &cause.text;
    match &cause.cause {
        None => json!({ "cause": "unknown", "text": text }),
        Some(Of::NeverStored(_)) => json!({ "cause": "never_stored", "text": text }),
        Some(Of::NothingStored(_)) => json!({ "cause": "nothing_stored", "text": text }),
        Some(Of::Removed(of)) => json!({
            "cause": "removed", "text": text, "epoch": of.epoch, "sequence": of.sequence, "unix_ms": of.unix_ms,
        }),
        Some(Of::Dropped(of)) => json!({
            "cause": "dropped", "text": text, "epoch": of.epoch, "sequence": of.sequence, "unix_ms": of.unix_ms,
            "new_epoch": of.new_epoch,
        }),
        Some(Of::CutByGroups(of)) => json!({
            "cause": "cut_by_groups", "text": text, "held_blocks": of.held_blocks, "unknown_rule": of.unknown_rule,
        }),
        Some(Of::OtherNamespace(of)) => json!({
            "cause": "other_namespace", "text": text, "held_blocks": of.held_blocks,
            "without_lora_name": of.without_lora_name, "without_cache_salt": of.without_cache_salt,
        }),
        Some(Of::OtherBlockSize(of)) => {
            json!({ "cause": "other_block_size", "text": text, "block_size": of.block_size })
        }
        Some(Of::Orphans(of)) => json!({
            "cause": "orphans", "text": text, "blocks": of.blocks, "first_block": of.first_block,
            "prompt_blocks": of.prompt_blocks, "parent_engine_hash": of.parent_engine_hash,
        }),
        Some(Of::FeedIncomplete(of)) => json!({
            "cause": "feed_incomplete", "text": text, "state": state_name(of.state()), "since_unix_ms": of.since_unix_ms,
            "why": of.why,
        }),
        Some(Of::Bounded(of)) => json!({ "cause": "bounded", "text": text, "evicted_blocks": of.evicted_blocks }),
    }
}

fn text(rank: &v1::RankExplanation, out: &mut impl Write) -> io::Result<()> {
    let matched = rank.r#match.clone().unwrap_or_default();
    let who = matched.worker_rank.clone().unwrap_or_default();
    let (held, asked) = (matched.matched_blocks, matched.asked_blocks);
    write!(out, "{}/{} holds {held} of {asked} blocks", who.worker, who.rank)?;
    match rank.missing_block {
        None => writeln!(out, ", {} of them on the device", matched.device_blocks)?,
        Some(block) => writeln!(out, "; block {block} is missing:")?,
    }
    rank.causes.iter().try_for_each(|cause| writeln!(out, "  {}", cause.text))
}
