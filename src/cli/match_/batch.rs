//! Many queries over one connection: a line in, an answer out, in order.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::thread;

use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

use super::super::match_output::Answer;
use super::super::{Failure, Outcome, tokens};
use super::{Args, json};
use crate::proto::v1;
use crate::proto::v1::match_stream_response::Result as StreamResult;

/// Queries that may be under way at once.
const PIPELINE: usize = 64;

/// One line of the input.
enum Line {
    /// The server was asked.
    Asked,
    /// It is no query, and why.
    Bad(String),
}

/// A line that has no answer, and why.
struct Refusal {
    code: Code,
    message: String,
}

/// Asks and prints until the input ends.
///
/// # Errors
/// [`Failure::Failed`] where the server fails, and, after all answers, where a line had none.
pub(super) async fn run(args: &Args, input: Box<dyn Read + Send>) -> Outcome {
    let mut client = args.server.connect().await?;
    let (requests, pending) = mpsc::channel(PIPELINE);
    let (lines, mut order) = mpsc::channel(PIPELINE);
    let (report, read) = oneshot::channel();
    let reader = args.clone();
    // A thread of its own, because a terminal or a pipe may stay silent for ever; the process does not wait for it.
    thread::spawn(move || {
        // Nobody waits for the report once the answers have failed.
        let _ = report.send(send(&reader, BufReader::new(input), &requests, &lines));
    });
    let answers = client.match_stream(ReceiverStream::new(pending)).await;
    let mut answers = answers.map_err(|status| args.server.refused(&status))?.into_inner();
    let (mut number, mut refused) = (0u64, 0u64);
    while let Some(line) = order.recv().await {
        number += 1;
        let answer = match line {
            Line::Bad(message) => Err(Refusal { code: Code::InvalidArgument, message }),
            Line::Asked => next(args, &mut answers, number).await?,
        };
        refused += u64::from(answer.is_err());
        print(args, number, answer)?;
    }
    read.await.map_err(|_| Failure::Failed("the input was not read to its end".to_owned()))??;
    match refused {
        0 => Ok(()),
        _ => Err(Failure::Failed(format!("{refused} of {number} lines have no answer"))),
    }
}

/// Sends one request for each line that is a query, and says of each line what became of it.
fn send(
    args: &Args,
    mut input: impl BufRead,
    requests: &mpsc::Sender<v1::MatchStreamRequest>,
    lines: &mpsc::Sender<Line>,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    for id in 0.. {
        bytes.clear();
        if input.read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        let mut tokens_le = Vec::new();
        let text = str::from_utf8(&bytes).map_err(|_| "it is not text".to_owned());
        let line = match text.and_then(|text| tokens::parse(text, &mut tokens_le)) {
            Ok(()) => Line::Asked,
            Err(error) => Line::Bad(error),
        };
        let asked = matches!(line, Line::Asked);
        let request = v1::MatchStreamRequest { id, request: Some(args.request(tokens_le)) };
        // Either end is gone once the answers have failed, which is told there.
        if lines.blocking_send(line).is_err() || asked && requests.blocking_send(request).is_err() {
            break;
        }
    }
    Ok(())
}

/// The next answer.
async fn next(
    args: &Args,
    answers: &mut Streaming<v1::MatchStreamResponse>,
    number: u64,
) -> Result<Result<Answer, Refusal>, Failure> {
    let answer = answers.message().await.map_err(|status| args.server.refused(&status))?;
    let answer = answer.ok_or_else(|| Failure::Failed(format!("the server ended before it answered line {number}")))?;
    Ok(match answer.result {
        Some(StreamResult::Response(response)) => Ok(Answer::new(response)),
        Some(StreamResult::Failure(failure)) => {
            Err(Refusal { code: Code::from(failure.code), message: failure.message })
        }
        None => {
            let message = "the server answered nothing that this version knows".to_owned();
            Err(Refusal { code: Code::Unknown, message })
        }
    })
}

/// One line out. It is flushed at once: whoever pipes queries in may wait for it.
fn print(args: &Args, number: u64, answer: Result<Answer, Refusal>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match (answer, args.json) {
        (Ok(answer), true) => json(&mut out, &answer)?,
        (Ok(answer), false) => answer.line(number, &mut out)?,
        (Err(Refusal { code, message }), true) => {
            let code = format!("{code:?}");
            json(&mut out, &serde_json::json!({ "line": number, "error": { "code": code, "message": message } }))?;
        }
        (Err(Refusal { message, .. }), false) => writeln!(out, "{number}: no answer: {message}")?,
    }
    out.flush()
}
