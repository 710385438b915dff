//! From what was seen to what is to be mended.

use std::collections::BTreeMap;
use std::io;

use super::Target;
use super::finding::Finding;
use super::past::Past;
use super::survey::Survey;
use super::watch::Live;
use crate::feed::zmq::{Endpoint, Fault, Host, Mode};
use crate::feed::zmtp::Violation;

/// A clock that is this far off, in seconds, is worth mending: ages and logs are compared across hosts.
const CLOCK_SECONDS: f64 = 2.0;

const SAID: &str = "are its events on? vLLM: --kv-events-config with enable_kv_cache_events and publisher zmq; SGLang: \
                    --kv-events-config; TensorRT-LLM: event_buffer_max_size. Where its endpoint has no `*`, vLLM connects: use bind. \
                    Then send the same prompt twice";

/// Everything that is found, the worst first.
pub(super) fn findings(target: &Target, live: &Live, past: Option<&Past>) -> Vec<Finding> {
    let mut found = Vec::new();
    if live.connected.is_none() {
        found.push(unreached(target, live));
    } else {
        connected(target, live, past, &mut found);
    }
    match past {
        Some(past) => replay(live, past, &mut found),
        None => found.push(Finding::warning(
            "no_replay",
            "there is no replay endpoint: what is published before kvtap connects, or lost on the way, cannot be had back",
            "set replay_endpoint on the engine, and give it as `replay`",
        )),
    }
    for survey in [Some(&live.survey), past.map(|past| &past.survey)].into_iter().flatten() {
        contents(target, survey, &mut found);
    }
    // Live messages and replay often say the same.
    found.sort_by_key(|finding: &Finding| (finding.level, finding.code));
    found.dedup_by_key(|finding| finding.code);
    found
}

/// No connection ever stood.
fn unreached(target: &Target, live: &Live) -> Finding {
    let endpoint = &target.link.endpoint;
    let ranks = if target.rank > 0 {
        format!(
            "; rank {r} is looked for at the port of rank 0 plus {r}: has the engine so many ranks?",
            r = target.rank
        )
    } else {
        String::new()
    };
    let Some(fault) = &live.fault else {
        let (reason, count) = live.turned_away.iter().next().map_or(("", 0), |(reason, count)| (*reason, *count));
        return match (target.link.mode, count) {
            (Mode::Bind, 0) => Finding::fault(
                "nobody_came",
                format!("it listens on {}, and no engine has connected", live.listening.as_ref().unwrap_or(endpoint)),
                "give the engine this host and port as its endpoint, without `*`; where it binds itself, leave bind out",
            ),
            (Mode::Bind, _) => Finding::fault(
                "not_zmq",
                format!("whoever connected was turned away: {reason}, {count} times"),
                "something else than an engine connects here; look who has this address",
            ),
            (Mode::Connect, _) => Finding::fault("timeout", "no answer while it was watched", "watch for longer"),
        };
    };
    let (code, fix) = cause(endpoint, fault);
    Finding::fault(code, format!("cannot be followed: {fault}"), format!("{fix}{ranks}"))
}

/// The word for a failed connection, and its fix.
fn cause(endpoint: &Endpoint, fault: &Fault) -> (&'static str, &'static str) {
    let named = matches!(endpoint, Endpoint::Tcp { host: Host::Name(_), .. });
    match fault {
        Fault::NoAddress => ("name", "the host name does not resolve: correct it, or fix DNS"),
        // A resolver's errors are no system calls'.
        Fault::Connect(error) if named && error.raw_os_error().is_none() => {
            ("name", "the host name does not resolve: correct it, or fix DNS")
        }
        Fault::Connect(error) if error.kind() == io::ErrorKind::ConnectionRefused => (
            "refused",
            "nobody listens there: is the engine up, do its events go to this port, and on this interface (`*`, not \
             127.0.0.1, for another host)? Where its endpoint has no `*`, vLLM connects: use bind",
        ),
        Fault::Connect(error) if error.kind() == io::ErrorKind::NotFound => {
            ("refused", "the socket's file does not exist: is the engine up, and the folder shared with it?")
        }
        Fault::Connect(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            ("permission", "let this user into the folder, or write to the socket's file")
        }
        Fault::Connect(_) => ("unreachable", "the network does not lead there: look at address, routes and policies"),
        Fault::ConnectDeadline => {
            ("timeout", "packets are swallowed: look at the address, at firewalls and at network policies")
        }
        Fault::Bind(_) => ("bind", "the port is taken, or the address is not this host's"),
        Fault::Violation(Violation::SocketType) => (
            "socket_type",
            "this is a ZMQ socket of another kind: an engine's replay socket (ROUTER) is given as --replay, its events \
             (PUB) as ENDPOINT; are the two swapped?",
        ),
        Fault::Violation(Violation::Mechanism) => {
            ("mechanism", "it asks for ZMQ security (CURVE or PLAIN); engines publish with NULL")
        }
        _ => {
            ("not_zmq", "something listens there that does not speak ZMQ: an HTTP port, for instance; correct the port")
        }
    }
}

fn connected(target: &Target, live: &Live, past: Option<&Past>, found: &mut Vec<Finding>) {
    if live.disconnects > 0 {
        let why = live.fault.as_ref().map(|fault| format!(": {fault}")).unwrap_or_default();
        found.push(Finding::warning(
            "unstable",
            format!("the connection ended {} times while it was watched{why}", live.disconnects),
            "the engine restarts, or something between closes connections: look at its log",
        ));
    }
    if live.messages == 0 && live.off_topic > 0 {
        let topics: Vec<_> = live.topics.iter().map(|topic| format!("\"{topic}\"")).collect();
        found.push(Finding::fault(
            "topic",
            format!("{} messages came, none under a topic that begins with {:?}", live.off_topic, target.topic),
            format!("leave `topic` out; the engine's are {}", topics.join(", ")),
        ));
    } else if live.messages == 0 {
        match past.map_or(0, |past| past.replies) {
            0 => found.push(Finding::warning("no_events", "connected, and nothing is published or was", SAID)),
            kept => found.push(Finding::note(
                "idle",
                format!("nothing was published while it was watched; the replay holds {kept} messages"),
            )),
        }
    }
    let sequence = live.sequence;
    if sequence.gaps > 0 {
        found.push(Finding::warning(
            "gaps",
            format!("{} messages are missing in {} places", sequence.missed, sequence.gaps),
            "the engine drops what a slow reader does not take: raise its hwm, bring kvtap nearer, and give it a replay",
        ));
    }
    if sequence.repeated > 0 {
        let what =
            format!("{} numbers came twice: two publishers on one port, or one that is forwarded", sequence.repeated);
        found.push(Finding::warning("repeated", what, "one engine rank, one socket: let kvtap connect to it directly"));
    }
    if sequence.restarts > 0 {
        found.push(Finding::warning(
            "restarts",
            format!("numbers began again {} times while it was watched", sequence.restarts),
            "the engine restarts, or several publish to one port: look at its log",
        ));
    }
    if !live.malformed.is_empty() {
        found.push(Finding::fault(
            "unreadable",
            format!("frames are not topic, sequence, payload: {}", counts(&live.malformed)),
            "another kind of publisher is on this port: correct the port",
        ));
    }
}

/// What the messages themselves say.
fn contents(target: &Target, survey: &Survey, found: &mut Vec<Finding>) {
    if !survey.ranks.is_empty() && !survey.ranks.contains(&target.rank) {
        let ranks: Vec<_> = survey.ranks.iter().map(u32::to_string).collect();
        found.push(Finding::fault(
            "rank",
            format!("messages say that they are of rank {}, not {}", ranks.join(" and "), target.rank),
            "rank r is at the port of rank 0 plus r: give rank 0's port, and `ranks`",
        ));
    }
    if !survey.unreadable.is_empty() {
        let what = format!("messages cannot be decoded: {}", counts(&survey.unreadable));
        let fix = "correct `engine`, or leave it out; record it with `kvtap record --redact` and report it";
        found.push(Finding::fault("unreadable", what, fix));
    }
    if !survey.rejected.is_empty() {
        let what = format!("events cannot be decoded: {}", counts(&survey.rejected));
        let fix = "docs/metrics.md explains each reason; record it with `kvtap record --redact` and report it";
        found.push(Finding::warning("unreadable_events", what, fix));
    }
    let sizes: Vec<_> = survey.block_sizes.iter().map(u64::to_string).collect();
    match target.block_size {
        Some(size) if !sizes.is_empty() && !survey.block_sizes.contains(&size) => found.push(Finding::fault(
            "block_size",
            format!("blocks have {} tokens, not {size}", sizes.join(" or ")),
            format!("set block_size to {}, or leave it out", sizes.join(" or ")),
        )),
        _ if sizes.len() > 1 => found.push(Finding::warning(
            "block_sizes",
            format!("blocks of {} tokens come on one feed", sizes.join(", ")),
            "kvtap keeps the first size that it sees: is this port one engine's alone?",
        )),
        _ => {}
    }
    if survey.groups.len() > 1 {
        let groups: Vec<_> = survey.groups.iter().map(u32::to_string).collect();
        let what =
            format!("a hybrid model: cache groups {}; ask without the last token of a prompt", groups.join(", "));
        found.push(Finding::note("groups", what));
    }
    if survey.byte_names > 0 {
        found.push(Finding::note("byte_hashes", "block hashes are digests in bytes; kvtap takes them as they are"));
    }
    if survey.numbered_adapters > 0 {
        found.push(Finding::warning(
            "lora_unnamed",
            format!("{} stores name a LoRA adapter by its number only", survey.numbered_adapters),
            "routers must send that number as lora_name; newer engines send the name",
        ));
    }
    if survey.unnamed_salts > 0 {
        found.push(Finding::note(
            "salts_unnamed",
            format!(
                "{} prompts have text among their extra keys, which nothing labels: it is read as their cache salt (an image of \
                 vLLM 0.17 or 0.18 looks alike)",
                survey.unnamed_salts
            ),
        ));
    }
    if let Some(behind) = survey.behind.filter(|behind| behind.abs() > CLOCK_SECONDS) {
        let (way, by) = if behind > 0.0 { ("behind", behind) } else { ("ahead of", -behind) };
        found.push(Finding::warning(
            "clock",
            format!("the engine's clock is {by:.1} s {way} this one, or its messages take so long"),
            "synchronize the clocks; kvtap's answers do not depend on them, its ages and your logs do",
        ));
    }
}

fn replay(live: &Live, past: &Past, found: &mut Vec<Finding>) {
    let reached = past.replies > 0 || past.ended || !past.malformed.is_empty();
    match &past.fault {
        Some(Fault::Idle | Fault::Deadline) if !reached => found.push(Finding::fault(
            "replay_mute",
            format!("the replay endpoint {} takes the question and does not answer", past.endpoint),
            "is it this engine's replay socket? Another ROUTER takes questions too; correct the port",
        )),
        Some(Fault::Violation(Violation::SocketType)) => found.push(Finding::fault(
            "replay_socket_type",
            format!("{} is a ZMQ socket of another kind than a replay's (ROUTER)", past.endpoint),
            "an engine's events (PUB) are given as ENDPOINT, its replay socket as --replay; are the two swapped?",
        )),
        Some(fault) if !reached => {
            let (code, fix) = cause(&past.endpoint, fault);
            let code = match code {
                "refused" => "replay_refused",
                "not_zmq" => "replay_not_zmq",
                "name" => "replay_name",
                "timeout" => "replay_timeout",
                _ => "replay_unreachable",
            };
            let fix =
                if code == "replay_refused" { "is replay_endpoint set on the engine, and to this port?" } else { fix };
            found.push(Finding::fault(code, format!("no replay from {}: {fault}", past.endpoint), fix));
        }
        Some(fault) if !past.ended && past.malformed.is_empty() => found.push(Finding::warning(
            "replay_unfinished",
            format!("the replay stopped after {} messages without its end marker: {fault}", past.replies),
            "kvtap asks again, which takes longer; newer engines send the marker",
        )),
        _ => {}
    }
    if !past.malformed.is_empty() {
        found.push(Finding::fault(
            "replay_layout",
            format!("replies of {} are not those of a replay: {}", past.endpoint, counts(&past.malformed)),
            "another kind of ROUTER is on this port: correct the port",
        ));
    }
    if past.other > 0 {
        found.push(Finding::fault(
            "replay_other",
            format!("{} messages of the replay are not the ones that came live under their numbers", past.other),
            "the replay is another rank's or another engine's: correct its port (rank r is port + r), or the engine restarted \
             just now: look again",
        ));
    }
    if past.replies > 0 && past.sequence.first.is_some_and(|first| first > 0) {
        found.push(Finding::warning(
            "replay_short",
            format!("the replay reaches back to message {} only", past.sequence.first.unwrap_or_default()),
            "kvtap is `incomplete` until a clear or a restart of the engine: raise buffer_steps, or start kvtap with the engine",
        ));
    }
    if past.sequence.gaps > 0 {
        found.push(Finding::warning(
            "replay_holes",
            format!("{} messages are missing in the replay, in {} places", past.sequence.missed, past.sequence.gaps),
            "servers before vLLM 0.33 drop replies to a long question, and kvtap asks again; a number that was burned stays \
             missing until a clear",
        ));
    }
    if past.ended && past.replies == 0 && live.messages > 0 {
        found.push(Finding::fault(
            "replay_empty",
            "messages come live, and the replay holds none",
            "the replay is another rank's or another engine's, or buffer_steps is 0",
        ));
    }
}

fn counts(counts: &BTreeMap<&'static str, u64>) -> String {
    counts.iter().map(|(reason, count)| format!("{reason} {count}")).collect::<Vec<_>>().join(", ")
}
