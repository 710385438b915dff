//! What was found, for people and for scripts.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::finding::{Examined, Level};
use super::past::Past;
use super::survey::Survey;
use super::watch::{Live, Sequence};

/// One JSON object. Its field names are relied on by other programs.
pub(super) fn json(examined: &[Examined], code: u8, out: &mut impl Write) -> io::Result<()> {
    let feeds: Vec<Value> = examined.iter().map(feed).collect();
    serde_json::to_writer(&mut *out, &json!({ "feeds": feeds, "exit_code": code }))?;
    writeln!(out)
}

fn feed(examined: &Examined) -> Value {
    let Examined { target, live, past, findings } = examined;
    json!({
        "worker": target.name,
        "rank": target.rank,
        "endpoint": target.link.endpoint.to_string(),
        "listening": live.listening.as_ref().map(ToString::to_string),
        "connected_ms": live.connected.map(|after| after.as_millis() as u64),
        "watched_ms": live.took.as_millis() as u64,
        "messages": live.messages,
        "bytes": live.bytes,
        "messages_per_second": live.rate(live.messages),
        "blocks_per_second": live.rate(live.survey.stored_blocks),
        "sequence": sequence(&live.sequence),
        "seen": survey(&live.survey),
        "replay": past.as_ref().map(replay),
        "findings": findings,
    })
}

fn sequence(sequence: &Sequence) -> Value {
    let Sequence { first, last, gaps, missed, repeated, restarts } = *sequence;
    json!({ "first": first, "last": last, "gaps": gaps, "missed": missed, "repeated": repeated, "restarts": restarts })
}

fn survey(survey: &Survey) -> Value {
    json!({
        "events": survey.events,
        "stored_blocks": survey.stored_blocks,
        "removed_blocks": survey.removed_blocks,
        "clears": survey.clears,
        "ranks": survey.ranks,
        "block_sizes": survey.block_sizes,
        "groups": survey.groups,
        "tiers": survey.tiers,
        "integer_hashes": survey.integer_names,
        "byte_hashes": survey.byte_names,
        "named_salts": survey.named_salts,
        "unnamed_salts": survey.unnamed_salts,
        "named_adapters": survey.named_adapters,
        "numbered_adapters": survey.numbered_adapters,
        "clock_behind_seconds": survey.behind,
        "unreadable": survey.unreadable,
        "rejected": survey.rejected,
    })
}

fn replay(past: &Past) -> Value {
    json!({
        "endpoint": past.endpoint.to_string(),
        "took_ms": past.took.as_millis() as u64,
        "messages": past.replies,
        "sequence": sequence(&past.sequence),
        "layout": past.layout(),
        "ended": past.ended,
        "fault": past.fault.as_ref().map(|fault| fault.reason()),
        "same_as_live": past.same,
        "other_than_live": past.other,
        "seen": survey(&past.survey),
    })
}

/// A page: what is there, then what is wrong.
pub(super) fn text(examined: &[Examined], out: &mut impl Write) -> io::Result<()> {
    for Examined { target, live, past, findings } in examined {
        let name = if target.name.is_empty() { String::new() } else { format!("{} ", target.name) };
        writeln!(out, "{name}rank {} at {}", target.rank, target.link.endpoint)?;
        facts(live, out)?;
        if let Some(past) = past {
            past_facts(past, out)?;
        }
        for finding in findings {
            writeln!(out, "  {:<8} {}: {}", finding.level.word(), finding.code, finding.what)?;
            if !finding.fix.is_empty() {
                writeln!(out, "           fix: {}", finding.fix)?;
            }
        }
        if findings.iter().all(|finding| finding.level == Level::Note) {
            writeln!(out, "  OK       kvtap can follow this feed exactly")?;
        }
    }
    Ok(())
}

fn facts(live: &Live, out: &mut impl Write) -> io::Result<()> {
    let Some(after) = live.connected else { return Ok(()) };
    writeln!(
        out,
        "  live     connected after {} ms; {} messages, {} bytes in {:.1} s ({:.1} messages, {:.0} blocks a second){}",
        after.as_millis(),
        live.messages,
        live.bytes,
        live.took.as_secs_f64(),
        live.rate(live.messages),
        live.rate(live.survey.stored_blocks),
        numbers(&live.sequence),
    )?;
    seen(&live.survey, out)
}

fn past_facts(past: &Past, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "  replay   {}: {} messages in {} ms{}{}{}",
        past.endpoint,
        past.replies,
        past.took.as_millis(),
        numbers(&past.sequence),
        past.layout().map(|layout| format!(", replies {layout}")).unwrap_or_default(),
        if past.same > 0 { format!(", {} of them came live, with the same bytes", past.same) } else { String::new() },
    )?;
    seen(&past.survey, out)
}

fn numbers(sequence: &Sequence) -> String {
    match (sequence.first, sequence.last, sequence.gaps) {
        (Some(first), Some(last), 0) => format!(", numbers {first} to {last} without a gap"),
        (Some(first), Some(last), gaps) => format!(", numbers {first} to {last} with {gaps} gaps"),
        _ => String::new(),
    }
}

fn seen(survey: &Survey, out: &mut impl Write) -> io::Result<()> {
    if survey.events == 0 {
        return Ok(());
    }
    let list = |values: Vec<String>| if values.is_empty() { "not said".to_owned() } else { values.join(", ") };
    let names = match (survey.integer_names, survey.byte_names) {
        (_, 0) => "integers",
        (0, _) => "bytes",
        _ => "integers and bytes",
    };
    writeln!(
        out,
        "           {} events: {} blocks stored, {} removed, {} clears; block size {}; groups {}; tiers {}; hashes are {names}; \
         {} salts, {} adapters",
        survey.events,
        survey.stored_blocks,
        survey.removed_blocks,
        survey.clears,
        list(survey.block_sizes.iter().map(u64::to_string).collect()),
        list(survey.groups.iter().map(u32::to_string).collect()),
        list(survey.tiers.iter().map(|tier| (*tier).to_owned()).collect()),
        survey.named_salts + survey.unnamed_salts,
        survey.named_adapters + survey.numbered_adapters,
    )
}
