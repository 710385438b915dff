use kvtap::cli::demo;

#[tokio::test(flavor = "multi_thread")]
async fn kvtap_says_what_every_engine_of_the_demo_says_itself_and_a_restart_empties_only_one() {
    let report = demo::play().await.unwrap();
    assert_eq!(report.differing(), 0, "{:#?}", report.answers());
    let hits = |worker: &str| {
        report.answers().iter().filter(|answer| answer.worker == worker && answer.engine_cached_tokens > 0).count()
    };
    assert_eq!((hits("sim-a"), hits("sim-b"), hits("vllm")), (4, 3, 8));
    assert!(report.answers().iter().any(|answer| answer.worker == "sim-b" && answer.epoch == 2));
}
