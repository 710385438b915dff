//! The figures on one page.

use std::io::{self, Write};

use super::{Latency, Report};

pub(super) fn print(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let shape = report.shape;
    writeln!(
        out,
        "{} workers of {} ranks, {} blocks of {} tokens each; prompts of {} blocks, {:.0} % of each shared; {} cores",
        shape.workers,
        shape.ranks,
        shape.blocks_per_rank,
        shape.block_size,
        shape.prompt_blocks,
        shape.sharing * 100.0,
        report.cores,
    )?;
    if !report.release_build {
        writeln!(out, "THIS IS A DEBUG BUILD: its figures say nothing")?;
    }
    let ingest = report.ingest;
    writeln!(out, "\ningest, one thread, from frames to what a match sees")?;
    writeln!(out, "  filling        {:>12.0} blocks/s", ingest.fill_blocks_per_second)?;
    writeln!(
        out,
        "  full caches    {:>12.0} blocks/s   {:.0} ns a block stored and removed, {:.0} bytes on the wire",
        ingest.steady_blocks_per_second, ingest.nanoseconds_per_block, ingest.bytes_per_block_on_the_wire,
    )?;
    writeln!(out, "\nmatch against all ranks                    p50          p99          max   queries")?;
    latency("from tokens, idle", report.match_idle, out)?;
    latency("from content hashes, idle", report.match_idle_hashed, out)?;
    let load = format!("from tokens, {:.0} blocks/s", report.load_blocks_per_second);
    latency(&load, report.match_under_load, out)?;
    writeln!(out, "\nmemory")?;
    writeln!(out, "  {} blocks held, {:.1} bytes each", report.memory.blocks, report.memory.resident_bytes_per_block,)?;
    let restart = report.restart;
    writeln!(out, "\nrestart of kvtap with {} blocks", restart.blocks)?;
    writeln!(
        out,
        "  first exact answer after {:.0} ms, and a replay of what was published meanwhile",
        restart.first_answer_ms
    )?;
    writeln!(
        out,
        "  a rank's events wait {:.0} ms at most while its snapshot is taken; {:.1} bytes a block on disk",
        restart.longest_stall_ms, restart.file_bytes_per_block,
    )
}

fn latency(what: &str, latency: Latency, out: &mut impl Write) -> io::Result<()> {
    let Latency { queries, p50_us, p99_us, max_us } = latency;
    writeln!(out, "  {what:<34} {p50_us:>8.1} us  {p99_us:>8.1} us  {max_us:>8.1} us  {queries:>8}")
}
