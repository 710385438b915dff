//! The whole way from wire bytes to answers against the reference model, on random histories with orphans, salts,
//! copies, removals and clears.

use kvtap::block::{Grid, Group, Tier};
use kvtap::hash::{ContentHash, EngineHash, PrefixHash, Seed};
use kvtap::index::model::{EventBlock, Model, StoreEvent};
use kvtap::index::{Chain, Copies, Limits};
use kvtap::normalize::{Options, OrphanLimits};
use kvtap::worker::Stamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{MODEL, SIZE, Tap, cleared, le, removed, stored};

/// Blocks are named by their path in a small tree: 1 to 3 children each, four deep, two salts.
#[derive(Clone, Debug)]
enum Step {
    Store { salted: bool, path: Vec<u8>, from: usize, host: bool },
    Remove { salted: bool, path: Vec<u8>, host: bool },
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    let path = || prop::collection::vec(0..3u8, 1..5);
    prop_oneof![
        12 => (any::<bool>(), path(), 0..4usize, prop::bool::weighted(0.2)).prop_map(|(salted, path, from, host)| {
            let from = from.min(path.len() - 1);
            Step::Store { salted, path, from, host }
        }),
        8 => (any::<bool>(), path(), prop::bool::weighted(0.2))
            .prop_map(|(salted, path, host)| Step::Remove { salted, path, host }),
        1 => Just(Step::Clear),
    ]
}

fn salt(salted: bool) -> Option<&'static str> {
    salted.then_some("tenant")
}

fn tokens(at: u8) -> Vec<u32> {
    (0..SIZE as u32).map(|i| u32::from(at) * 10 + i).collect()
}

fn name(salted: bool, path: &[u8]) -> u64 {
    let seed = Seed::new(None, salt(salted));
    let contents: Vec<_> = path.iter().map(|at| ContentHash::of_tokens(&le(&tokens(*at)), seed)).collect();
    PrefixHash::chain(&contents).last().expect("a path has a block").0 ^ 0x5a5a
}

fn tier(host: bool) -> (Tier, &'static str) {
    if host { (Tier::Host, "CPU") } else { (Tier::Device, "GPU") }
}

fn check(steps: &[Step]) -> Result<(), TestCaseError> {
    let limits = OrphanLimits { blocks: 12, bytes: usize::MAX };
    let mut tap = Tap::with(Options { orphans: limits, ..Options::default() });
    let mut model = Model::new(Limits::default(), limits.blocks);
    let id = tap.normalizer.rank();
    model.register(id, MODEL, Copies::Count);
    let grid = Grid::new(SIZE as u64).expect("a valid size");
    let known = "the rank is registered";
    model.set_grid(id, grid).expect(known);
    for (i, step) in steps.iter().enumerate() {
        tap.send(json!([event(step)]));
        match step {
            Step::Clear => model.clear(id).expect(known),
            Step::Remove { salted, path, host } => {
                let name = EngineHash::from_u64(name(*salted, path));
                model.remove(id, tier(*host).0, Group(0), &[name]).expect(known);
            }
            Step::Store { salted, path, from, host } => {
                let block = |depth: usize| EventBlock {
                    engine: EngineHash::from_u64(name(*salted, &path[..=depth])),
                    tokens: le(&tokens(path[depth])),
                    keys: Vec::new(),
                };
                let event = StoreEvent {
                    parent: (*from > 0).then(|| EngineHash::from_u64(name(*salted, &path[..*from]))),
                    seed: Seed::new(None, salt(*salted)),
                    tier: tier(*host).0,
                    group: Group(0),
                    blocks: (*from..path.len()).map(block).collect(),
                };
                model.store_event(id, event).expect(known);
            }
        }
        model.commit(id, Stamp { epoch: 1, sequence: Some(i as u64) }).expect(known);
        prop_assert_eq!(tap.normalizer.orphans(), model.orphans(id) as u64, "orphans after step {}", i);
        compare(&tap, &model, grid, i)?;
    }
    Ok(())
}

fn event(step: &Step) -> Value {
    match step {
        Step::Clear => cleared(),
        Step::Remove { salted, path, host } => removed(&[name(*salted, path)], json!({"medium": tier(*host).1})),
        Step::Store { salted, path, from, host } => {
            let names: Vec<_> = (*from..path.len()).map(|depth| name(*salted, &path[..=depth])).collect();
            let tokens: Vec<_> = path[*from..].iter().flat_map(|at| tokens(*at)).collect();
            let parent = (*from > 0).then(|| name(*salted, &path[..*from]));
            // Only a prompt's first block carries the salt.
            let mut keys = vec![Value::Null; names.len()];
            if let (0, Some(salt)) = (*from, salt(*salted)) {
                keys[0] = json!([salt]);
            }
            stored(&names, parent, &tokens, json!({"medium": tier(*host).1, "extra_keys": keys}))
        }
    }
}

fn compare(tap: &Tap, model: &Model, grid: Grid, step: usize) -> Result<(), TestCaseError> {
    let id = tap.normalizer.rank();
    for salted in [false, true] {
        for number in 0..81u32 {
            let path = [number / 27 % 3, number / 9 % 3, number / 3 % 3, number % 3].map(|at| at as u8);
            let prompt: Vec<_> = path.iter().flat_map(|at| tokens(*at)).collect();
            let chain = grid.plain_contents(&le(&prompt), Seed::new(None, salt(salted)));
            let expected = model.match_chain(MODEL, grid, Chain::Content(&chain), Some(&[id]));
            let got = tap.ask_chain(grid, &chain);
            prop_assert_eq!(Some(&got), expected.first(), "path {:?} salted {} after step {}", path, salted, step);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn wire_bytes_lead_to_what_the_model_holds(steps in prop::collection::vec(step(), 1..40)) {
        check(&steps)?;
    }
}
