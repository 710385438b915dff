//! One answer, taken apart into its events. What an event says is for the decoder; here only its number and its rank.

use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// One event, by its own JSON.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Event {
    pub(super) id: u64,
    pub(super) rank: Option<u32>,
    pub(super) json: Bytes,
}

/// What stands around an event's data.
#[derive(Deserialize)]
struct Envelope {
    event_id: u64,
    attention_dp_rank: Option<u32>,
}

/// Hands each event of an answer, an array of objects, to `take`, in order.
///
/// # Errors
/// What is wrong with the answer. The events before that were taken.
pub(super) fn split(body: &Bytes, mut take: impl FnMut(Event)) -> Result<(), &'static str> {
    const NO_ARRAY: &str = "the answer is not a JSON array";
    const NO_EVENT: &str = "the answer holds what is no event with an `event_id`";
    let mut at = body.len() - body.trim_ascii_start().len();
    if body.get(at) != Some(&b'[') {
        return Err(NO_ARRAY);
    }
    let mut first = true;
    loop {
        // Behind the bracket, a comma, or a value.
        let space = |at: usize| at + body.get(at..).map_or(0, |rest| rest.len() - rest.trim_ascii_start().len());
        let mut next = space(if first { at + 1 } else { at });
        match (body.get(next), first) {
            (Some(b']'), _) => {
                return if space(next + 1) == body.len() { Ok(()) } else { Err(NO_ARRAY) };
            }
            (Some(b','), false) => next = space(next + 1),
            (Some(_), true) => {}
            _ => return Err(NO_ARRAY),
        }
        let rest = body.get(next..).unwrap_or_default();
        let mut value = serde_json::Deserializer::from_slice(rest).into_iter::<IgnoredAny>();
        let Some(Ok(IgnoredAny)) = value.next() else { return Err(NO_ARRAY) };
        let end = next + value.byte_offset();
        let json = body.slice(next..end);
        // A list would do for the parser.
        let envelope = if json.starts_with(b"{") { serde_json::from_slice(&json).ok() } else { None };
        let Some(Envelope { event_id, attention_dp_rank }) = envelope else { return Err(NO_EVENT) };
        take(Event { id: event_id, rank: attention_dp_rank, json });
        at = end;
        first = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Taken = Vec<(u64, Option<u32>, String)>;

    fn events(body: &'static str) -> (Taken, Result<(), &'static str>) {
        let mut events = Vec::new();
        let split = split(&Bytes::from_static(body.as_bytes()), |event| {
            events.push((event.id, event.rank, String::from_utf8(event.json.to_vec()).unwrap()));
        });
        (events, split)
    }

    #[test]
    fn each_event_keeps_its_own_bytes() {
        let (events, split) =
            events(r#" [ {"event_id":7,"data":{"a":"],{"}} , {"attention_dp_rank":3,"event_id":0}]  "#);
        assert_eq!(split, Ok(()));
        assert_eq!(
            events,
            [
                (7, None, r#"{"event_id":7,"data":{"a":"],{"}}"#.to_owned()),
                (0, Some(3), r#"{"attention_dp_rank":3,"event_id":0}"#.to_owned())
            ]
        );
        assert_eq!(self::events("[]"), (vec![], Ok(())));
    }

    #[test]
    fn what_is_no_list_of_events_is_an_error_and_the_events_before_it_count() {
        for body in ["", "{}", "null", "[", "[,]", "[]]", "[1", r#"[{"event_id":1}{"event_id":2}]"#, "[\u{1}]"] {
            assert!(events(body).1.is_err(), "{body}");
        }
        for body in [
            r#"[{"event_id":1},2]"#,
            r#"[{"event_id":1},{}]"#,
            r#"[{"event_id":1},[2,null]]"#,
            r#"[{"event_id":1},{"event_id":-1}]"#,
            r#"[{"event_id":1},"#,
        ] {
            let (before, split) = events(body);
            assert_eq!((before.len(), split.is_err()), (1, true), "{body}");
        }
        let deep = Bytes::from(format!("[{}", "[".repeat(1_000_000)));
        assert!(super::split(&deep, |_| {}).is_err());
    }
}
