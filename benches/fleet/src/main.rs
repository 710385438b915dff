//! What a fleet costs, measured in one run on a real nats-server: README.md says what each figure is.

mod bytes;
mod cpu;
#[path = "../../engines.rs"]
#[allow(dead_code, reason = "each bench uses its part")]
mod engines;
mod join;
mod latency;
mod member;
mod server;

use server::Server;

fn main() {
    let only = std::env::args().nth(1);
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut reached = true;
    if wanted("bytes") {
        reached &= runtime.block_on(bytes::run(&Server::start()));
    }
    if wanted("latency") {
        reached &= runtime.block_on(latency::run(&Server::start()));
    }
    if wanted("join") {
        reached &= runtime.block_on(join::run(&Server::start()));
    }
    if wanted("cpu") {
        reached &= runtime.block_on(cpu::run(&Server::start()));
    }
    println!("\n{}", if reached { "every figure is reached" } else { "not every figure is reached" });
}

/// One line of a table; whether the figure is reached.
fn verdict(what: &str, ratio: f64, most: f64) -> bool {
    let reached = ratio <= most;
    println!("  {what}: {ratio:.2}, to reach {most}{}", if reached { "" } else { "  NOT REACHED" });
    reached
}

/// Processor time of all threads of this process, in nanoseconds: other programs on this machine do not lengthen it.
fn processor() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of this frame.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) }, 0);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// The value below which this share of the values lie; they come back sorted.
fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share) as usize]
}
