//! What kvtap claims, held against what the engine held.
//!
//! A claim is a match that was read while the feed said `live`, before and after, without a change in between. It
//! carries its stamp: epoch and sequence number. It is true if there is a life of the engine in which, after the
//! message of that number, the engine held just that. Which life that is, kvtap cannot be asked: so all claims between
//! two changes of state in one epoch must be true of one and the same life, and never of an earlier one than the
//! claims before. (Where nothing could prove the epoch, a clear may make a feed live in the epoch it was in, though the
//! engine is another.) A dead life may be claimed for as long as kvtap cannot know; that it ends is seen at the end,
//! when only the present one will do.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use kvtap::block::Grid;
use kvtap::feed::status::Entry;
use kvtap::hash::ContentHash;
use kvtap::index::{Chain, Index, RankMatch};
use kvtap::proto::v1;
use kvtap::proto::v1::query_service_client::QueryServiceClient;
use kvtap::sim::pool::Prompt;
use tonic::transport::Channel;

use crate::engine::{BLOCK, Truth, contents};

/// How claims are read.
#[derive(Clone)]
pub enum Eye {
    /// From index and board.
    Inside { index: Arc<Index>, entry: Arc<Entry> },
    /// From a server's answers.
    Server { client: QueryServiceClient<Channel>, worker: String },
}

/// What was read for one prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    pub prompt: usize,
    pub epoch: u64,
    pub sequence: Option<u64>,
    pub blocks: u32,
    pub held: u64,
    /// Since when the feed had been live, where that can be read.
    since: Option<SystemTime>,
}

/// One who watches one feed.
pub struct Witness {
    eye: Eye,
    truth: Arc<Truth>,
    prompts: Arc<[Prompt]>,
    contents: Vec<Vec<ContentHash>>,
    /// The lives that the last claims may be of, and what those have in common.
    lives: BTreeSet<usize>,
    spell: (u64, Option<SystemTime>),
    /// Claims that were judged.
    pub claims: u64,
}

// === impl Witness ===

impl Witness {
    pub fn new(eye: Eye, truth: Arc<Truth>, prompts: Arc<[Prompt]>) -> Self {
        let contents = prompts.iter().map(contents).collect();
        Self { eye, truth, prompts, contents, lives: BTreeSet::from([0]), spell: (0, None), claims: 0 }
    }

    /// Reads everything once, and judges what is claimed.
    ///
    /// # Errors
    /// The claim that is not true, in words.
    pub async fn look(&mut self) -> Result<Vec<Claim>, String> {
        let claims = self.read().await;
        for claim in &claims {
            self.judge(claim)?;
        }
        self.claims += claims.len() as u64;
        Ok(claims)
    }

    /// What is claimed now; nothing, unless the feed is live.
    async fn read(&mut self) -> Vec<Claim> {
        let mut claims = Vec::new();
        match &mut self.eye {
            Eye::Inside { index, entry } => {
                let Some(live) = entry.live_since() else { return claims };
                let grid = Grid::new(BLOCK as u64).expect("a grid");
                let mut found: Vec<RankMatch> = Vec::new();
                for (prompt, contents) in self.contents.iter().enumerate() {
                    index.match_chain("m", grid, Chain::Content(contents), Some(&[entry.rank]), &mut found);
                    let [found] = found.as_slice() else { panic!("one answer for one rank") };
                    let (epoch, sequence) = (found.stamp.epoch, found.stamp.sequence);
                    claims.push(Claim {
                        prompt,
                        epoch,
                        sequence,
                        blocks: found.blocks,
                        held: found.held,
                        since: Some(live),
                    });
                }
                if entry.live_since() != Some(live) {
                    claims.clear();
                }
            }
            Eye::Server { client, worker } => {
                for (prompt, of) in self.prompts.iter().enumerate() {
                    let request = v1::MatchRequest {
                        model: "m".to_owned(),
                        lora_name: of.lora.as_ref().map(|lora| lora.name.clone()).unwrap_or_default(),
                        cache_salt: of.salt.clone().unwrap_or_default(),
                        prompt: Some(v1::match_request::Prompt::Tokens(v1::TokenList { ids: of.tokens.clone() })),
                        workers: vec![worker.clone()],
                        ..Default::default()
                    };
                    let answer = client.r#match(request).await.expect("an answer").into_inner();
                    let [found] = answer.matches.as_slice() else { panic!("one answer for one worker") };
                    if found.state() == v1::FeedState::Live {
                        let (epoch, sequence) = (found.epoch, found.last_seq);
                        let (blocks, held) = (found.matched_blocks, found.held_blocks);
                        claims.push(Claim { prompt, epoch, sequence, blocks, held, since: None });
                    }
                }
            }
        }
        claims
    }

    fn judge(&mut self, claim: &Claim) -> Result<(), String> {
        let Some(sequence) = claim.sequence else {
            return match (claim.blocks, claim.held) {
                (0, 0) => Ok(()),
                _ => Err(format!("{claim:?}, but nothing was published")),
            };
        };
        let (spell, all) = ((claim.epoch, claim.since), self.truth.lives());
        let earliest = self.lives.first().copied().unwrap_or(0);
        let may_move = claim.since.is_none() || self.spell != spell;
        let may_be = if may_move { (earliest..all).collect() } else { self.lives.clone() };
        self.spell = spell;
        self.lives = may_be.clone();
        self.lives.retain(|life| {
            let after = self.truth.after(*life, sequence);
            after.is_some_and(|after| after.leading[claim.prompt] == claim.blocks && after.held == claim.held)
        });
        if !self.lives.is_empty() {
            return Ok(());
        }
        let held = may_be.iter().map(|life| match self.truth.after(*life, sequence) {
            None => format!("\n  life {life} has no message {sequence}"),
            Some(after) => {
                let (blocks, held) = (after.leading[claim.prompt], after.held);
                let word = if claim.blocks > blocks || claim.held > held { "OVERCLAIMED" } else { "differs" };
                format!("\n  life {life} held {blocks} of {held} after message {sequence}: {word}")
            }
        });
        let held: String = held.collect();
        Err(format!("{claim:?} of a live feed is not true{held}\n  of {all} lives"))
    }

    /// Whether these claims are the present: everything that the engine said last.
    pub fn is_present(&self, claims: &[Claim]) -> bool {
        let life = self.truth.lives() - 1;
        !claims.is_empty()
            && claims.len() == self.prompts.len()
            && claims.iter().all(|claim| {
                let present = claim.sequence.is_some_and(|sequence| self.truth.after(life, sequence + 1).is_none());
                let after = claim.sequence.and_then(|sequence| self.truth.after(life, sequence));
                present
                    && after
                        .is_some_and(|after| after.leading[claim.prompt] == claim.blocks && after.held == claim.held)
            })
    }

    /// Where the feed stands, by the state's word, and what else it says of itself.
    pub async fn status(&mut self) -> (&'static str, String) {
        match &mut self.eye {
            Eye::Inside { entry, .. } => {
                let status = entry.status();
                (status.state.name(), format!("{status:?}"))
            }
            Eye::Server { client, worker } => {
                let request = v1::ListWorkersRequest { workers: vec![worker.clone()], ..Default::default() };
                let answer = client.list_workers(request).await.expect("an answer").into_inner();
                let [report] = answer.workers.as_slice() else { panic!("one report of one worker") };
                (kvtap::serve::response::state_name(report.state()), format!("{report:?}"))
            }
        }
    }
}
