//! Routers that ask a server without end, in bursts. Each is to be answered for as long as it asks.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use kvtap::proto::v1;
use kvtap::proto::v1::query_service_client::QueryServiceClient;
use kvtap::sim::pool::Prompt;
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

/// How many queries a router asks in a row, and for how long it is silent after them.
const BURST: usize = 16;
const PAUSE: Duration = Duration::from_millis(50);

/// So many of them.
#[derive(Default)]
pub struct Routers {
    asking: JoinSet<Result<(), String>>,
    ending: CancellationToken,
    /// What was wrong first.
    failed: Option<String>,
}

// === impl Routers ===

impl Routers {
    pub fn begin(count: usize, client: &QueryServiceClient<Channel>, prompts: &Arc<[Prompt]>) -> Self {
        let mut routers = Self::default();
        for _ in 0..count {
            routers.add(ask_in_bursts(client.clone(), Arc::clone(prompts)));
        }
        routers
    }

    /// One that asks until it is told to end, and says what was wrong if it ends before.
    fn add(&mut self, asking: impl Future<Output = String> + Send + 'static) {
        let ending = self.ending.clone();
        self.asking.spawn(async move { ending.run_until_cancelled(asking).await.map_or(Ok(()), Err) });
    }

    /// Whether one has ended before it was told to.
    pub fn have_failed(&mut self) -> bool {
        while let Some(ended) = self.asking.try_join_next() {
            self.note(ended);
        }
        self.failed.is_some()
    }

    /// Ends them all.
    ///
    /// # Errors
    /// What the first was not answered that was not, or how it ended.
    pub async fn end(&mut self) -> Result<(), String> {
        self.ending.cancel();
        while let Some(ended) = self.asking.join_next().await {
            self.note(ended);
        }
        self.failed.take().map_or(Ok(()), Err)
    }

    fn note(&mut self, ended: Result<Result<(), String>, JoinError>) {
        let wrong = match ended {
            Ok(Ok(())) => return,
            Ok(Err(wrong)) => format!("a router is not answered: {wrong}"),
            Err(panic) => format!("a router ended: {panic}"),
        };
        self.failed.get_or_insert(wrong);
    }
}

/// Asks as fast as it is answered, burst after burst; ends with why it was not.
async fn ask_in_bursts(mut client: QueryServiceClient<Channel>, prompts: Arc<[Prompt]>) -> String {
    let mut prompts = prompts.iter().cycle();
    loop {
        sleep(PAUSE).await;
        for prompt in prompts.by_ref().take(BURST) {
            let tokens = v1::TokenList { ids: prompt.tokens.clone() };
            let prompt = Some(v1::match_request::Prompt::Tokens(tokens));
            let request = v1::MatchRequest { model: "m".to_owned(), prompt, ..Default::default() };
            if let Err(status) = client.r#match(request).await {
                return status.to_string();
            }
        }
    }
}

#[tokio::test]
async fn a_router_that_is_not_answered_or_panics_is_noticed_at_once_and_one_that_is_told_to_end_is_none() {
    let mut healthy = Routers::default();
    healthy.add(std::future::pending());
    assert!(!healthy.have_failed());
    assert_eq!(healthy.end().await, Ok(()));

    let (mut silent, mut dying) = (Routers::default(), Routers::default());
    silent.add(async { "nobody is there".to_owned() });
    dying.add(async { panic!("it dies") });
    for routers in [&mut silent, &mut dying] {
        // One that asks on does not hide it.
        routers.add(std::future::pending());
        while !routers.have_failed() {
            tokio::task::yield_now().await;
        }
        assert!(routers.end().await.is_err());
    }
}
