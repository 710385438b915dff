use kvtap::sim::engine::{Config, Engine};
use kvtap::sim::load::{Driver, Load, Profile};

const PROFILE: Profile = Profile {
    systems: 2,
    system_tokens: 40,
    user_tokens: 10,
    output_tokens: 8,
    turns: 3,
    conversations: 4,
    adapters: 1,
    tenants: 1,
};

#[test]
fn one_seed_gives_one_stream_of_requests_and_another_seed_another() {
    let stream = |seed| {
        let mut load = Load::new(PROFILE, seed);
        (0..50).map(|_| load.request()).collect::<Vec<_>>()
    };
    assert_eq!(stream(1), stream(1));
    assert_ne!(stream(1), stream(2));
}

#[test]
fn a_turn_extends_its_conversation_and_conversations_share_system_prompts() {
    let mut load = Load::new(Profile { adapters: 0, tenants: 0, ..PROFILE }, 3);
    let requests: Vec<_> = (0..60).map(|_| load.request()).collect();
    let extends = |later: &[u32], earlier: &[u32]| later.len() > earlier.len() && later.starts_with(earlier);
    let turns = requests
        .iter()
        .enumerate()
        .filter(|(i, request)| {
            requests[..*i].iter().any(|earlier| {
                let mut history = earlier.prompt.tokens.clone();
                history.extend(&earlier.output);
                extends(&request.prompt.tokens, &history)
            })
        })
        .count();
    // Two of three turns continue one, but for the conversations that are still under way.
    assert!((30..=40).contains(&turns), "{turns}");
    let openings: std::collections::BTreeSet<_> =
        requests.iter().map(|request| request.prompt.tokens[..20].to_vec()).collect();
    assert_eq!(openings.len(), 2);
}

#[tokio::test]
async fn a_driver_serves_every_request_through_a_pool_that_is_too_small_for_all_of_them() {
    let config = Config { blocks: 24, replay: None, ..Config::default() };
    let mut engine = Engine::start(config, 0).await.unwrap();
    let mut driver = Driver::new(Load::new(PROFILE, 5), 6);
    for _ in 0..200 {
        driver.admit(&mut engine).await.unwrap();
    }
    driver.drain(&mut engine).await.unwrap();
    let tally = driver.tally();
    assert_eq!((tally.requests, tally.refused), (200, 0));
    assert!(tally.cached_tokens > 0 && tally.cached_tokens < tally.prompt_tokens, "{tally:?}");
    assert_eq!(tally.messages, engine.next_sequence());
    assert_eq!(engine.pool().running(), 0);
}
