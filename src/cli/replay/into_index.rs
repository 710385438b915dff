//! A recording straight into an index: what a bug report looks like from inside.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::super::table::number;
use super::super::{Failure, Outcome, tokens};
use super::{Args, open, torn_failure};
use crate::admin::Fleet;
use crate::admin::report::RankReport;
use crate::feed::machine::Limits;
use crate::feed::recording::{Header, Reader, Record, Recorded};
use crate::feed::runner::{Runner, Timing};
use crate::feed::status::{Board, Entry};
use crate::hash::Seed;
use crate::index::{self, Chain, Copies, Index};
use crate::normalize::{self, Normalizer};
use crate::wire::Dialect;
use crate::worker::Identity;

/// What the index is asked at the end.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Question {
    /// The model's name in what is printed.
    #[arg(long, value_name = "M", default_value = "recorded", requires = "into_index")]
    model: String,
    /// Then match these token ids, with commas between them. Of a redacted recording, pseudonyms.
    #[arg(long, value_name = "IDS", requires = "into_index", conflicts_with = "tokens_file")]
    tokens: Option<String>,
    /// Then match the token ids in this file, with whitespace or commas between them.
    #[arg(long, value_name = "FILE", requires = "into_index")]
    tokens_file: Option<PathBuf>,
    /// The LoRA adapter's name, for the match.
    #[arg(long, value_name = "L", default_value = "", hide_default_value = true, requires = "into_index")]
    lora: String,
    /// The cache salt, for the match.
    #[arg(long, value_name = "S", default_value = "", hide_default_value = true, requires = "into_index")]
    salt: String,
    /// Count a block that was announced twice as one: `copies: set` of the configuration.
    #[arg(long, requires = "into_index")]
    copies_set: bool,
    /// Print one JSON object.
    #[arg(long, requires = "into_index")]
    json: bool,
}

/// What came of it. Its JSON field names are relied on by other programs.
#[derive(Debug, Serialize)]
struct Report {
    recording: Recording,
    workers: Vec<RankReport>,
    /// The answer, where a prompt was given.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    matched: Option<Match>,
}

#[derive(Debug, Serialize)]
struct Recording {
    parts: Vec<Part>,
    program: String,
    started_unix_ns: u64,
    redacted: bool,
    replayable: bool,
}

#[derive(Debug, Serialize)]
struct Part {
    part: u32,
    /// Where and why its reading ended early.
    torn: Option<String>,
}

#[derive(Debug, Serialize)]
struct Match {
    blocks: usize,
    block_size: Option<u32>,
    matched_blocks: u32,
    matched_tokens: u64,
    device_blocks: u32,
}

/// The parts one after the other; how each ended goes to `ends`.
struct Parts<R> {
    parts: std::vec::IntoIter<Reader<R>>,
    current: Option<Reader<R>>,
    ends: std::sync::mpsc::Sender<Part>,
}

pub(super) async fn run(args: &Args) -> Outcome {
    let question = &args.question;
    let prompt = match (&question.tokens, &question.tokens_file) {
        (Some(text), _) => Some(tokens::of_argument(text)?),
        (None, Some(file)) => Some(of_file(file)?),
        (None, None) => None,
    };
    let parts = open(&args.files)?;
    let Some(header) = parts.first().map(|part| part.header().clone()) else { return Ok(()) };
    let (ends, ended) = std::sync::mpsc::channel();
    let records = Parts { parts: parts.into_iter(), current: None, ends };
    let (fleet, rank) = play(question, &header, args, records).await?;
    let report = Report {
        recording: Recording {
            parts: ended.iter().collect(),
            program: header.program,
            started_unix_ns: header.started_unix_ns,
            redacted: header.redacted,
            replayable: header.replayable,
        },
        workers: fleet.reports(),
        matched: prompt.map(|prompt| question.ask(&fleet.index, rank, &prompt)),
    };
    let mut out = io::stdout().lock();
    if question.json {
        serde_json::to_writer(&mut out, &report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        print(&report, &mut out)?;
    }
    out.flush()?;
    let torn = report.recording.parts.iter().filter_map(|part| Some((part.part, part.torn.as_deref()?)));
    torn_failure(torn)
}

/// Plays the records to the runner that sockets are played to.
async fn play(
    question: &Question,
    header: &Header,
    args: &Args,
    records: impl Iterator<Item = Record> + Send + 'static,
) -> Result<(Fleet, crate::worker::RankId), Failure> {
    let failed = |error: index::IndexError| Failure::Failed(error.to_string());
    let index = Index::new(index::Limits { blocks_per_rank: 1 << 24, blocks_in_all: 1 << 24 });
    let board = Arc::new(Board::default());
    let copies = if question.copies_set { Copies::Set } else { Copies::Count };
    let writer = index.register(&question.model, copies).map_err(failed)?;
    let rank = writer.rank();
    let identity = Identity {
        worker: "recorded".into(),
        address: "".into(),
        aliases: Arc::new([]),
        model: question.model.as_str().into(),
        rank: 0,
    };
    let file = args.files.first().map(|file| file.display().to_string()).unwrap_or_default();
    let entry = Arc::new(Entry::new(rank, identity, file.clone(), header.replayable.then_some(file), "auto"));
    board.insert(Arc::clone(&entry));
    let source = Recorded::new(records, Arc::clone(&entry));
    let normalizer = Normalizer::new(writer, normalize::Options::default());
    // Nobody answers late here, and nobody is spared by waiting. A disconnection lasted as long as it lasted.
    let soon = Duration::from_millis(1);
    let timing = Timing { grace: None, first_retry: soon, longest_retry: soon, ..Timing::default() };
    let limits = Limits::default();
    Runner::new(source, normalizer, entry, Dialect::Auto, timing, limits).run(CancellationToken::new()).await;
    Ok((Fleet::new(index, board), rank))
}

fn of_file(file: &PathBuf) -> Result<Vec<u8>, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Failed(format!("--tokens-file: {}: {error}", file.display()));
    let text = fs::read_to_string(file).map_err(|error| failed(&error))?;
    let mut tokens_le = Vec::new();
    tokens::parse(&text, &mut tokens_le).map_err(|error| failed(&error))?;
    Ok(tokens_le)
}

fn print(report: &Report, out: &mut impl Write) -> io::Result<()> {
    for part in &report.recording.parts {
        if let Some(torn) = &part.torn {
            writeln!(out, "part {} is torn {torn}", u64::from(part.part) + 1)?;
        }
    }
    if report.recording.redacted {
        writeln!(out, "redacted: tokens, hashes and names are pseudonyms")?;
    }
    for worker in &report.workers {
        writeln!(out, "state     {} ({})", worker.state, worker.why)?;
        writeln!(out, "epoch     {}, last sequence {}", worker.epoch, number(worker.last_seq))?;
        writeln!(out, "blocks    {} of {} tokens", worker.blocks, number(worker.block_size.map(u64::from)))?;
        writeln!(out, "orphans   {}", worker.orphans)?;
        writeln!(out, "messages  {}, events {}", worker.messages, worker.events)?;
        writeln!(out, "gaps      {}, missed {}, duplicates {}", worker.gaps, worker.missed, worker.duplicates)?;
        for (kind, counts) in
            [("dropped", &worker.dropped), ("reset", &worker.resets), ("replay", &worker.replay_outcomes)]
        {
            for (reason, count) in counts.iter().filter(|(_, count)| **count > 0) {
                writeln!(out, "{kind:<9} {reason} {count}")?;
            }
        }
    }
    match &report.matched {
        Some(found) => {
            writeln!(out, "match     {}/{} blocks, {} tokens", found.matched_blocks, found.blocks, found.matched_tokens)
        }
        None => Ok(()),
    }
}

// === impl Question ===

impl Question {
    fn ask(&self, index: &Index, rank: crate::worker::RankId, prompt: &[u8]) -> Match {
        let grid = index.usage(rank).and_then(|usage| usage.grid);
        let (mut contents, mut found) = (Vec::new(), Vec::new());
        if let Some(grid) = grid {
            contents = grid.plain_contents(prompt, Seed::new(Some(&self.lora), Some(&self.salt)));
            index.match_chain(&self.model, grid, Chain::Content(&contents), Some(&[rank]), &mut found);
        }
        let (blocks, device) = found.first().map_or((0, 0), |found| (found.blocks, found.device));
        Match {
            blocks: contents.len(),
            block_size: grid.map(|grid| grid.size()),
            matched_blocks: blocks,
            matched_tokens: u64::from(blocks) * grid.map_or(0, |grid| u64::from(grid.size())),
            device_blocks: device,
        }
    }
}

// === impl Parts ===

impl<R: io::Read> Iterator for Parts<R> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        loop {
            if self.current.is_none() {
                self.current = Some(self.parts.next()?);
            }
            if let Some(record) = self.current.as_mut().and_then(Iterator::next) {
                return Some(record);
            }
            if let Some(ended) = self.current.take() {
                let torn = ended.torn().map(|torn| format!("after {} bytes: {}", torn.offset, torn.what));
                // Whoever plays may not care how a part ended.
                drop(self.ends.send(Part { part: ended.header().part, torn }));
            }
        }
    }
}
