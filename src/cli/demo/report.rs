//! What was asked and answered, for people and for programs.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::json;

use crate::cli::table::{Align, Table, age, number};
use crate::proto::v1;
use crate::serve::response::{report_of, state_name};

/// Everything that came of a demo.
#[derive(Clone, Debug)]
pub struct Report {
    pub(super) grpc: String,
    pub(super) real: String,
    pub(super) answers: Vec<Answer>,
    pub(super) workers: Vec<v1::RankReport>,
}

/// One prompt asked of one worker.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Answer {
    /// What the prompt is.
    pub prompt: String,
    /// Its length.
    pub tokens: u64,
    /// Who was asked for.
    pub worker: String,
    /// Leading tokens that kvtap says the worker holds.
    pub held_tokens: u64,
    /// Of those, what the engine can use: never the last token.
    pub cached_tokens: u64,
    /// What the engine itself counts.
    pub engine_cached_tokens: u64,
    /// The feed's state.
    #[serde(serialize_with = "as_word")]
    pub state: v1::FeedState,
    /// The engine's life.
    pub epoch: u64,
    /// The engine's message after which the answer is exact.
    pub last_seq: Option<u64>,
    /// How long ago the feed was heard.
    pub age_ms: Option<u64>,
}

// === impl Answer ===

impl Answer {
    /// Whether kvtap and the engine say the same.
    pub fn agrees(&self) -> bool {
        self.cached_tokens == self.engine_cached_tokens
    }
}

// === impl Report ===

impl Report {
    /// Every question with its answer.
    pub fn answers(&self) -> &[Answer] {
        &self.answers
    }

    /// How many answers differ from the engine's own count.
    pub fn differing(&self) -> usize {
        self.answers.iter().filter(|answer| !answer.agrees()).count()
    }

    /// One JSON object: `agree`, every answer, every worker.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn json(&self, out: &mut impl Write) -> io::Result<()> {
        let workers: Vec<_> = self.workers.iter().cloned().map(report_of).collect();
        let report = json!({
            "grpc": self.grpc,
            "captured_engine": self.real,
            "agree": self.differing() == 0,
            "answers": self.answers,
            "workers": workers,
        });
        writeln!(out, "{report}")
    }

    /// A table for people.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn table(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "Two simulated engines and a played-back {} publish KV events over ZMQ;", self.real)?;
        writeln!(out, "one kvtap follows all three and answers over gRPC on {}.", self.grpc)?;
        writeln!(out)?;
        let mut table = Table::new([
            ("PROMPT", Align::Left),
            ("TOKENS", Align::Right),
            ("WORKER", Align::Left),
            ("HELD", Align::Right),
            ("USABLE", Align::Right),
            ("ENGINE", Align::Right),
            ("", Align::Left),
            ("STATE", Align::Left),
            ("EPOCH", Align::Right),
            ("SEQ", Align::Right),
            ("HEARD", Align::Right),
        ]);
        for answer in &self.answers {
            table.row([
                answer.prompt.clone(),
                answer.tokens.to_string(),
                answer.worker.clone(),
                answer.held_tokens.to_string(),
                answer.cached_tokens.to_string(),
                answer.engine_cached_tokens.to_string(),
                if answer.agrees() { "=" } else { "DIFFERS" }.to_owned(),
                state_name(answer.state).to_owned(),
                answer.epoch.to_string(),
                number(answer.last_seq),
                age(answer.age_ms),
            ]);
        }
        table.print(out)?;
        writeln!(out)?;
        writeln!(out, "HELD    leading tokens that kvtap says the worker holds now")?;
        writeln!(out, "USABLE  of those, what the engine can take: it computes at least the last token anew")?;
        writeln!(out, "ENGINE  the engine's own number of cached tokens")?;
        writeln!(out, "SEQ     the engine's message after which the answer is exact, in that EPOCH of the engine")?;
        writeln!(out)?;
        let agreeing = self.answers.len() - self.differing();
        writeln!(out, "kvtap agrees with the engine's own number in {agreeing} of {} answers.", self.answers.len())
    }
}

fn as_word<S: serde::Serializer>(state: &v1::FeedState, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(state_name(*state))
}
