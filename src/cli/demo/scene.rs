//! What happens in the demo, in order.

use std::time::Duration;

use tonic::Status;
use tonic::transport::Channel;

use super::engines::{Played, Position, Simulated};
use super::report::{Answer, Report};
use super::{Demo, MODEL};
use crate::cli::{Failure, client};
use crate::proto::v1;
use crate::proto::v1::query_service_client::QueryServiceClient;
use crate::sim::pool::Prompt;

/// How long to wait before asking again whether a message has arrived.
const POLL: Duration = Duration::from_millis(2);

/// Who is asked for, and what the engine itself would say.
struct Expected<'a> {
    worker: &'a str,
    block_size: usize,
    position: Position,
    cached_tokens: usize,
}

/// Plays it.
pub(super) async fn play(
    demo: &mut Demo,
    kvtap: QueryServiceClient<Channel>,
    address: &str,
) -> Result<Report, Failure> {
    let Demo { a, b, real } = demo;
    let mut asker = Asker { client: kvtap, answers: Vec::new() };
    simulated(&mut asker, a, b).await?;
    captured(&mut asker, real).await?;
    let workers = asker.client.list_workers(v1::ListWorkersRequest::default()).await.map_err(refused)?.into_inner();
    Ok(Report {
        grpc: address.to_owned(),
        real: format!("vLLM {}", real.version),
        answers: asker.answers,
        workers: workers.workers,
    })
}

/// Two conversations under one system prompt, one on each engine; then one engine restarts.
async fn simulated(asker: &mut Asker, a: &mut Simulated, b: &mut Simulated) -> Result<(), Failure> {
    let mut text = Text(fastrand::Rng::with_seed(7));
    let system = text.tokens(320);
    let opening = |question: Vec<u32>| Prompt { tokens: [system.clone(), question].concat(), ..Prompt::default() };
    let mut on_a = opening(text.tokens(40));
    let mut on_b = opening(text.tokens(60));
    a.serve(&mut on_a, &text.tokens(120)).await?;
    b.serve(&mut on_b, &text.tokens(50)).await?;
    on_a.tokens.extend(text.tokens(30));
    on_b.tokens.extend(text.tokens(30));
    let fresh = opening(text.tokens(50));
    let salted = Prompt { salt: Some("another-tenant".to_owned()), ..fresh.clone() };
    let unseen = Prompt { tokens: text.tokens(200), ..Prompt::default() };

    asker.ask_both("next turn of sim-a's conversation", &on_a, a, b).await?;
    asker.ask_both("next turn of sim-b's conversation", &on_b, a, b).await?;
    asker.ask_both("new question, same system prompt", &fresh, a, b).await?;
    asker.ask_both("the same from another tenant (salt)", &salted, a, b).await?;
    asker.ask_both("a prompt nobody has seen", &unseen, a, b).await?;
    b.restart().await?;
    b.serve(&mut unseen.clone(), &text.tokens(4)).await?;
    asker.ask_both("sim-b's conversation after sim-b restarted", &on_b, a, b).await
}

/// What a real engine published, prompt by prompt, beside what it counted itself.
async fn captured(asker: &mut Asker, real: &mut Played) -> Result<(), Failure> {
    let mut n = 0;
    while let Some((prompt, cached_tokens)) = real.next_request().await? {
        n += 1;
        let expected =
            Expected { worker: real.name, block_size: real.block_size, position: real.position(), cached_tokens };
        asker.ask(&format!("captured prompt {n}"), &prompt, expected).await?;
    }
    Ok(())
}

/// Asks over gRPC, as a router does.
struct Asker {
    client: QueryServiceClient<Channel>,
    answers: Vec<Answer>,
}

impl Asker {
    async fn ask_both(&mut self, what: &str, prompt: &Prompt, a: &Simulated, b: &Simulated) -> Result<(), Failure> {
        for simulated in [a, b] {
            let expected = Expected {
                worker: simulated.name,
                block_size: simulated.engine.pool().shape().block_size.get(),
                position: simulated.position(),
                cached_tokens: simulated.engine.pool().cached_tokens(prompt),
            };
            self.ask(what, prompt, expected).await?;
        }
        Ok(())
    }

    /// Asks one worker once all that its engine published has arrived.
    async fn ask(&mut self, what: &str, prompt: &Prompt, expected: Expected<'_>) -> Result<(), Failure> {
        let tokens_le: Vec<u8> = prompt.tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let request = v1::MatchRequest {
            model: MODEL.to_owned(),
            cache_salt: prompt.salt.clone().unwrap_or_default(),
            prompt: Some(v1::match_request::Prompt::TokensLe(tokens_le.into())),
            workers: vec![expected.worker.to_owned()],
            ..v1::MatchRequest::default()
        };
        let found = loop {
            let response = self.client.r#match(request.clone()).await.map_err(refused)?.into_inner();
            let found = response.matches.into_iter().next().ok_or_else(|| {
                Failure::Failed(format!("{} was asked for by name and is not in the answer", expected.worker))
            })?;
            let Position { life, sequence } = expected.position;
            if sequence.is_none() || (found.epoch >= life && found.last_seq == sequence) {
                break found;
            }
            tokio::time::sleep(POLL).await;
        };
        // An engine computes at least the last token anew, whatever it holds.
        let usable = found.matched_tokens.min(most(prompt, expected.block_size));
        self.answers.push(Answer {
            prompt: what.to_owned(),
            tokens: prompt.tokens.len() as u64,
            worker: expected.worker.to_owned(),
            held_tokens: found.matched_tokens,
            cached_tokens: usable,
            engine_cached_tokens: expected.cached_tokens as u64,
            state: found.state(),
            epoch: found.epoch,
            last_seq: found.last_seq,
            age_ms: found.age_ms,
        });
        Ok(())
    }
}

fn most(prompt: &Prompt, block_size: usize) -> u64 {
    (prompt.tokens.len().saturating_sub(1) / block_size * block_size) as u64
}

fn refused(status: Status) -> Failure {
    client::refused(&status)
}

/// Tokens out of nowhere, the same in every run.
struct Text(fastrand::Rng);

impl Text {
    fn tokens(&mut self, length: usize) -> Vec<u32> {
        (0..length).map(|_| self.0.u32(..32_000)).collect()
    }
}
