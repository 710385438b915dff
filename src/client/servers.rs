//! Many servers, asked at once.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::iter;
use tokio::time::{Instant, sleep, timeout_at};

use super::connect::{Client, ClientError};
use super::gathered::{Gathered, Missing};
use crate::proto::v1;

/// Many servers.
#[derive(Clone, Debug)]
pub struct Servers {
    clients: Vec<Client>,
    options: ServersOptions,
}

/// How many servers are asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServersOptions {
    /// Questions under way at one time.
    pub at_once: usize,
    /// When the answer is there, whatever came by then.
    pub within: Duration,
    /// Without an answer for so long, a server is asked once more over another connection.
    pub hedge: Duration,
}

// === impl ServersOptions ===

impl Default for ServersOptions {
    /// 64 at once; within 10 s, asked again after 2 s.
    fn default() -> Self {
        Self { at_once: 64, within: Duration::from_secs(10), hedge: Duration::from_secs(2) }
    }
}

// === impl Servers ===

impl Servers {
    /// These servers, asked like that.
    pub const fn new(clients: Vec<Client>, options: ServersOptions) -> Self {
        Self { clients, options }
    }

    /// Asks every server the same question and puts the answers together. There is an answer at the deadline, with
    /// those who are missing in it; servers whose turn never came are among them.
    pub async fn ask(&self, request: &v1::MatchRequest) -> Gathered {
        let deadline = Instant::now() + self.options.within;
        let questions = self.clients.iter().map(|client| {
            let request = request.clone();
            async move {
                let asked = timeout_at(deadline, self.ask_one(client, request, deadline)).await;
                let answer = asked.unwrap_or(Err(ClientError::Late(self.options.within)));
                (client, answer)
            }
        });
        let mut answers = iter(questions).buffer_unordered(self.options.at_once.max(1));
        let (mut responses, mut missing) = (Vec::new(), Vec::new());
        while let Some((client, answer)) = answers.next().await {
            match answer {
                Ok(response) => responses.push(response),
                Err(error) => missing.push(Missing { server: client.address().to_owned(), error }),
            }
        }
        Gathered::of(request, responses, missing)
    }

    /// Asks one server, and once more where it takes its time; the first answer counts.
    async fn ask_one(
        &self,
        client: &Client,
        request: v1::MatchRequest,
        deadline: Instant,
    ) -> Result<v1::MatchResponse, ClientError> {
        let left = || deadline.saturating_duration_since(Instant::now());
        let first = Box::pin(client.ask(request.clone(), left()));
        let first = match select(first, Box::pin(sleep(self.options.hedge))).await {
            Either::Left((answer, _)) => return answer,
            Either::Right(((), first)) => first,
        };
        let another = client.another();
        let second = Box::pin(another.ask(request, left()));
        match select(first, second).await {
            Either::Left((Ok(answer), _)) | Either::Right((Ok(answer), _)) => Ok(answer),
            Either::Left((Err(_), second)) => second.await,
            Either::Right((Err(_), first)) => first.await,
        }
    }
}
