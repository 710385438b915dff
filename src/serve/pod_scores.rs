//! llm-d's `indexer.v1.IndexerService`, for schedulers that speak it already.
//!
//! llm-d's indexer takes the prompt as text and tokenizes it; kvtap has no tokenizer, so here the text is the token ids.
//! A block counts 1 on the device and 0.8 elsewhere, which are llm-d's own weights unless it is configured otherwise.

use std::collections::HashMap;

use tonic::{Request, Response, Status};

use super::query::{Queries, deadline};
use crate::admin::Rpc;
use crate::proto::indexer::indexer_service_server::IndexerService;
use crate::proto::indexer::{GetPodScoresRequest, GetPodScoresResponse, PodScore};
use crate::proto::v1;

/// Answers `indexer.v1.IndexerService`.
#[derive(Clone, Debug)]
pub(super) struct PodScores(pub(super) Queries);

/// What a block counts that does not lie on the device.
const OFF_DEVICE: f64 = 0.8;

#[tonic::async_trait]
impl IndexerService for PodScores {
    async fn get_pod_scores(
        &self,
        request: Request<GetPodScoresRequest>,
    ) -> Result<Response<GetPodScoresResponse>, Status> {
        let deadline = deadline(&request);
        let asked = request.into_inner();
        let tokens = tokens(&asked.prompt)?;
        let query = v1::MatchRequest {
            model: asked.model_name,
            prompt: Some(v1::match_request::Prompt::TokensLe(tokens.into())),
            min_blocks: 1,
            workers: asked.pod_identifiers,
            ..v1::MatchRequest::default()
        };
        let answer = self.0.matching(Rpc::GetPodScores, Some(&query), deadline).await?.into_message();
        Ok(Response::new(GetPodScoresResponse { scores: scores(&answer, &query.workers) }))
    }
}

fn scores(answer: &v1::MatchResponse, asked: &[String]) -> Vec<PodScore> {
    let mut ranks: HashMap<&str, u32> = HashMap::new();
    for who in answer.matches.iter().filter_map(|found| found.worker_rank.as_ref()) {
        let highest = ranks.entry(&who.worker).or_default();
        *highest = who.rank.max(*highest);
    }
    let score = |found: &v1::RankMatch| {
        let who = found.worker_rank.as_ref()?;
        let names = [&who.worker, &who.address].into_iter().chain(&who.aliases);
        let pod = names.clone().find(|name| asked.contains(name)).unwrap_or(&who.worker);
        let device = f64::from(found.matched_blocks).min(found.tiers.map_or(0.0, |tiers| tiers.device as f64));
        let several = ranks.get(who.worker.as_str()).is_some_and(|highest| *highest > 0);
        Some(PodScore {
            pod: pod.clone(),
            score: device + OFF_DEVICE * (f64::from(found.matched_blocks) - device),
            data_parallel_rank: several.then(|| i32::try_from(who.rank).unwrap_or(i32::MAX)),
        })
    };
    let mut scores: Vec<_> = answer.matches.iter().filter_map(score).collect();
    scores.sort_by(|a, b| b.score.total_cmp(&a.score));
    scores
}

/// Token ids as raw bytes. A text that is none is refused without a word of it.
fn tokens(text: &str) -> Result<Vec<u8>, Status> {
    let words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    let mut raw = Vec::with_capacity(text.len());
    for (i, word) in words.enumerate() {
        let id = word.parse::<u32>().map_err(|_| {
            Status::invalid_argument(format!(
                "prompt: entry {i} is no token id; kvtap has no tokenizer, so a prompt is token ids with commas or spaces"
            ))
        })?;
        raw.extend_from_slice(&id.to_le_bytes());
    }
    Ok(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_ids_are_read_and_text_is_refused_without_a_word_of_it() {
        assert_eq!(tokens("1, 2\n3").unwrap(), [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
        assert!(tokens("").unwrap().is_empty());
        let refused = tokens("1 secret").unwrap_err();
        assert!(refused.message().starts_with("prompt: entry 1 is no token id"), "{refused:?}");
        assert!(!refused.message().contains("secret"));
    }
}
