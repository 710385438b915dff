//! What `kvtap watch` prints of a message.

use std::fmt::Write;
use std::io;

use serde_json::{Value, json};

use crate::proto::v1;
use crate::proto::v1::change::Change;
use crate::proto::v1::event::Event;
use crate::proto::v1::watch_response::What;
use crate::serve::response::state_name;

/// A message as one JSON object. Hashes are numbers of 64 bits.
pub(super) fn json(response: &v1::WatchResponse) -> io::Result<String> {
    let mut object = match &response.what {
        None => json!({ "event": "unknown" }),
        Some(What::Started(started)) => json!({ "event": "started", "resumed": started.resumed, "why": started.why }),
        Some(What::Synced(_)) => json!({ "event": "synced" }),
        Some(What::Event(event)) => event.event.as_ref().map_or_else(|| json!({ "event": "unknown" }), event_json),
    };
    let hex = response.cursor.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    if let Some(fields) = object.as_object_mut()
        && !hex.is_empty()
    {
        fields.insert("cursor".to_owned(), hex.into());
    }
    serde_json::to_string(&object).map_err(io::Error::from)
}

fn event_json(event: &Event) -> Value {
    let (key, mut object) = match event {
        Event::Added(added) => {
            let state = state_name(added.state());
            (&added.key, json!({ "event": "added", "state": state, "why": added.why }))
        }
        Event::Changed(changed) => {
            let state = state_name(changed.state());
            (&changed.key, json!({ "event": "changed", "state": state, "why": changed.why }))
        }
        Event::Gone(gone) => (&gone.key, json!({ "event": "gone" })),
        Event::SnapshotBegin(begin) => {
            let mut object = json!({ "event": "snapshot_begin", "partial": begin.partial });
            at(&mut object, begin.at.as_ref());
            put(&mut object, "grid", begin.grid.as_ref().map_or(Value::Null, grid_json));
            put(&mut object, "groups", begin.groups.as_ref().map_or(Value::Null, groups_json));
            (&begin.key, object)
        }
        Event::SnapshotPart(part) => {
            let runs: Vec<Value> = part.runs.iter().map(run_json).collect();
            (&part.key, json!({ "event": "snapshot_part", "changes": runs }))
        }
        Event::SnapshotEnd(end) => {
            let mut object = json!({ "event": "snapshot_end", "parts": end.parts });
            at(&mut object, end.at.as_ref());
            (&end.key, object)
        }
        Event::Delta(delta) => {
            let changes: Vec<Value> = delta.changes.iter().map(change_json).collect();
            let mut object = json!({ "event": "delta", "changes": changes, "goes_on": delta.goes_on });
            at(&mut object, delta.at.as_ref());
            (&delta.key, object)
        }
    };
    if let Some(key) = key {
        put(&mut object, "worker", key.worker.clone().into());
        put(&mut object, "model", key.model.clone().into());
        put(&mut object, "rank", key.rank.into());
    }
    object
}

fn put(object: &mut Value, name: &str, value: Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(name.to_owned(), value);
    }
}

fn at(object: &mut Value, point: Option<&v1::Point>) {
    let Some(point) = point else { return };
    put(object, "number", point.number.into());
    put(object, "epoch", point.epoch.into());
    put(object, "sequence", point.sequence.map_or(Value::Null, Value::from));
}

fn change_json(change: &v1::Change) -> Value {
    match &change.change {
        None => json!({ "change": "unknown" }),
        Some(Change::Cleared(_)) => json!({ "change": "cleared" }),
        Some(Change::Reset(_)) => json!({ "change": "reset" }),
        Some(Change::Grid(grid)) => json!({ "change": "grid", "grid": grid_json(grid) }),
        Some(Change::Groups(groups)) => json!({ "change": "groups", "groups": groups_json(groups) }),
        Some(Change::Partial(partial)) => json!({ "change": "partial", "partial": partial }),
        Some(Change::Run(run)) => run_json(run),
    }
}

fn run_json(run: &v1::BlockRun) -> Value {
    json!({
        "change": kind_name(run.kind()),
        "tier": tier_name(run.tier()),
        "group": run.group,
        "parent": run.parent,
        "position": run.position,
        "prefix_hashes": run.prefix_hashes,
        "content_hashes": run.content_hashes,
    })
}

fn grid_json(grid: &v1::Grid) -> Value {
    json!({ "block_size": grid.block_size, "lookahead": grid.lookahead })
}

fn groups_json(groups: &v1::Groups) -> Value {
    let note = |note: &v1::GroupNote| {
        let rule = note.rule().as_str_name().trim_start_matches("GROUP_RULE_").to_ascii_lowercase();
        let (window, size) = (note.window_tokens, note.block_size);
        json!({ "group": note.group, "rule": rule, "window_tokens": window, "block_size": size })
    };
    json!({ "notes": groups.notes.iter().map(note).collect::<Vec<_>>(), "too_many": groups.too_many })
}

/// A message as a line for people; empty where there is nothing to say.
pub(super) fn text(response: &v1::WatchResponse) -> String {
    match &response.what {
        None => String::new(),
        Some(What::Started(started)) if started.resumed => "resumed".to_owned(),
        Some(What::Started(started)) if started.why.is_empty() => "started".to_owned(),
        Some(What::Started(started)) => format!("started anew: {}", started.why),
        Some(What::Synced(_)) => "synced: everything that was there has been told".to_owned(),
        Some(What::Event(event)) => event.event.as_ref().map(event_text).unwrap_or_default(),
    }
}

fn event_text(event: &Event) -> String {
    match event {
        Event::Added(e) => format!("{} added: {}, {}", who(e.key.as_ref()), state_name(e.state()), e.why),
        Event::Changed(e) => format!("{} is {}: {}", who(e.key.as_ref()), state_name(e.state()), e.why),
        Event::Gone(e) => format!("{} gone", who(e.key.as_ref())),
        Event::SnapshotBegin(e) => format!("{} holds, as of {}:", who(e.key.as_ref()), point_text(e.at.as_ref())),
        Event::SnapshotPart(e) => runs_text(who(e.key.as_ref()), e.runs.iter()),
        Event::SnapshotEnd(e) => format!("{} that is all", who(e.key.as_ref())),
        Event::Delta(e) => {
            let head = format!("{} {}", who(e.key.as_ref()), point_text(e.at.as_ref()));
            let mut line = String::new();
            for change in &e.changes {
                line += match &change.change {
                    Some(Change::Cleared(_)) => " cleared",
                    Some(Change::Reset(_)) => " reset",
                    Some(Change::Grid(_)) => " block size known",
                    Some(Change::Groups(_)) => " groups known",
                    Some(Change::Partial(true)) => " partial",
                    Some(Change::Partial(false)) => " no longer partial",
                    Some(Change::Run(_)) | None => "",
                };
            }
            let runs = e.changes.iter().filter_map(|change| match &change.change {
                Some(Change::Run(run)) => Some(run),
                _ => None,
            });
            runs_text(head + &line, runs)
        }
    }
}

fn runs_text<'r>(head: String, runs: impl Iterator<Item = &'r v1::BlockRun>) -> String {
    let mut line = head;
    for run in runs {
        let blocks = run.content_hashes.len();
        let end = u64::from(run.position) + blocks as u64;
        // Writing to a string cannot fail.
        let _ = write!(line, " {} {}..{end}", kind_name(run.kind()), run.position);
        if run.kind() != v1::RunKind::Passed {
            let _ = write!(line, " on {}", tier_name(run.tier()));
        }
        if let Some(group) = run.group {
            let _ = write!(line, " in group {group}");
        }
        line.push(';');
    }
    line
}

fn who(key: Option<&v1::RankKey>) -> String {
    key.map_or_else(|| "?".to_owned(), |key| format!("{}/{}", key.worker, key.rank))
}

fn point_text(point: Option<&v1::Point>) -> String {
    match point {
        Some(v1::Point { epoch, sequence: Some(sequence), .. }) => format!("[{epoch}:{sequence}]"),
        Some(v1::Point { epoch, .. }) => format!("[{epoch}:-]"),
        None => "[-]".to_owned(),
    }
}

fn kind_name(kind: v1::RunKind) -> &'static str {
    match kind {
        v1::RunKind::Unspecified => "unknown",
        v1::RunKind::Stored => "stored",
        v1::RunKind::Removed => "removed",
        v1::RunKind::Passed => "passed",
    }
}

fn tier_name(tier: v1::Tier) -> &'static str {
    match tier {
        v1::Tier::Unspecified => "none",
        v1::Tier::Device => "device",
        v1::Tier::Host => "host",
        v1::Tier::Disk => "disk",
        v1::Tier::External => "external",
        v1::Tier::Other1 => "other_1",
        v1::Tier::Other2 => "other_2",
        v1::Tier::Other3 => "other_3",
        v1::Tier::Other4 => "other_4",
    }
}
