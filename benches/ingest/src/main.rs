//! How fast an engine's messages become visible to a match: kvtap against Dynamo's router, on the same bytes.
//!
//! `ingest` runs everything; `ingest one CONTESTANT SHAPE FORM` runs one for a profiler: see README.md.

mod alloc;
mod contestants;
#[path = "../../engines.rs"]
mod engines;

use contestants::{Contestant, DynamoConcurrent, DynamoDecode, DynamoRadix, Kvtap, KvtapDecode, Prompt};
use engines::{BLOCK, CAPACITY, Engines, Message, RANKS, Shape};
use kvtap::sim::encode::Dialect;

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

/// Timed rounds; a median is of these.
const ROUNDS: usize = 9;
/// Rounds before: caches are full and buffers have grown. The last one of all is for counting allocations.
const WARM: usize = 1;

const SHAPES: [Shape; 2] = [Shape::Decode, Shape::Prefill];
const FORMS: [(&str, Dialect); 2] = [("arrays", Dialect::Array22), ("maps", Dialect::Map33)];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [] => all(),
        ["one", contestant, shape, form] => one(contestant, shape, form),
        _ => {
            eprintln!("usage: ingest | ingest one kvtap|decode|radix decode|prefill arrays|maps");
            std::process::exit(64);
        }
    }
}

fn all() {
    let mut clean = true;
    for shape in SHAPES {
        for (form, dialect) in FORMS {
            println!("\n{}, {form}", shape.name());
            clean &= compare(shape, dialect);
        }
    }
    if !clean {
        eprintln!("kvtap's decoder allocated in the steady state");
        std::process::exit(1);
    }
}

/// One table. Whether kvtap's decoder did without allocations.
fn compare(shape: Shape, dialect: Dialect) -> bool {
    let (messages, held) = messages(shape, dialect, WARM + ROUNDS + 1);
    let (fill, rest) = messages.split_at(shape.fill(RANKS));
    let mut rounds = rest.chunks(round(shape));
    let mut contestants: Vec<Box<dyn Contestant>> = vec![
        Box::new(Kvtap::new()),
        Box::new(DynamoRadix::new()),
        Box::new(DynamoConcurrent::new()),
        Box::new(KvtapDecode::default()),
        Box::new(DynamoDecode),
    ];
    for contestant in &mut contestants {
        contestant.ingest(fill);
        rounds.clone().take(WARM).for_each(|round| contestant.ingest(round));
    }
    rounds.nth(WARM - 1);
    let mut times = vec![Vec::new(); contestants.len()];
    for round in rounds.by_ref().take(ROUNDS) {
        for (contestant, times) in contestants.iter_mut().zip(&mut times) {
            let begun = cpu();
            contestant.ingest(round);
            times.push((cpu() - begun) / stored(round) as f64);
        }
    }
    let last = rounds.next().unwrap();
    let allocations: Vec<_> =
        contestants.iter_mut().map(|contestant| alloc::count(|| contestant.ingest(last))).collect();
    for contestant in &mut contestants {
        for prompt in &held {
            let blocks = prompt.tokens.len() / BLOCK;
            assert_eq!(contestant.blocks(prompt), blocks, "{} lost blocks", contestant.name());
        }
    }

    println!("| | ns a block | range | blocks a second | kvtap is faster by | allocations a block |");
    println!("|---|---|---|---|---|---|");
    let medians: Vec<f64> = times.iter_mut().map(|times| median(times)).collect();
    for (i, contestant) in contestants.iter().enumerate() {
        // The decoders are compared with kvtap's decoder.
        let ours = medians[if contestant.name().ends_with("decode only") { 3 } else { 0 }];
        println!(
            "| {} | {:.0} | {:.0} to {:.0} | {:.2} M | {:.1} | {:.2} |",
            contestant.name(),
            medians[i],
            times[i][0],
            times[i][ROUNDS - 1],
            1e3 / medians[i],
            medians[i] / ours,
            allocations[i].everywhere as f64 / stored(last) as f64,
        );
    }
    allocations[3].here == 0
}

/// The steady state of one contestant, with nothing beside it: for a profiler.
fn one(contestant: &str, shape: &str, form: &str) {
    let shape = if shape == "decode" { Shape::Decode } else { Shape::Prefill };
    let dialect = if form == "arrays" { Dialect::Array22 } else { Dialect::Map33 };
    let mut contestant: Box<dyn Contestant> = match contestant {
        "radix" => Box::new(DynamoRadix::new()),
        "decode" => Box::new(KvtapDecode::default()),
        _ => Box::new(Kvtap::new()),
    };
    let (messages, _) = messages(shape, dialect, 4);
    let (fill, rest) = messages.split_at(shape.fill(RANKS));
    contestant.ingest(fill);
    steady(&mut *contestant, rest);
    println!("{} blocks stored in the steady state, as many removed", stored(rest));
}

/// What a profiler looks at.
#[inline(never)]
fn steady(contestant: &mut dyn Contestant, messages: &[Message]) {
    contestant.ingest(messages);
}

/// Messages of a round: as many blocks in either shape.
fn round(shape: Shape) -> usize {
    RANKS * CAPACITY / 2 / shape.blocks_a_message()
}

/// The messages that fill the caches, then those of so many rounds, and what is held of the newest prompts at the end.
fn messages(shape: Shape, dialect: Dialect, rounds: usize) -> (Vec<Message>, Vec<Prompt>) {
    let mut engines = Engines::new(shape, dialect, RANKS, CAPACITY);
    let messages = engines.by_ref().take(shape.fill(RANKS) + rounds * round(shape)).collect();
    let held = (0..RANKS).map(|rank| Prompt { rank, tokens: engines.prompt(rank).to_vec() }).collect();
    (messages, held)
}

fn stored(messages: &[Message]) -> usize {
    let stored = messages.iter().map(|message| message.stored).sum();
    assert_eq!(messages.iter().map(|message| message.removed).sum::<usize>(), stored, "not the steady state");
    stored
}

/// Processor time of all threads, in nanoseconds: other programs on this machine do not lengthen it.
fn cpu() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of this frame.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) }, 0);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// The median; `times` comes back sorted.
fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
