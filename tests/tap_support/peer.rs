//! A Python process that obeys lines of its standard input and answers each with a line of JSON.

use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::{PATIENCE, python};

/// One of the scripts in `tests/peers`; killed on drop.
pub struct Peer {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    script: String,
}

impl Peer {
    /// Starts a script.
    pub async fn start(script: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(python::interpreter())
            .arg(python::script(script))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the interpreter starts");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child, input, output, script: script.to_owned() }
    }

    /// The next line that it prints.
    pub async fn line(&mut self) -> Value {
        let line = timeout(PATIENCE, self.output.next_line()).await;
        let line = line.unwrap_or_else(|_| panic!("{} says nothing", self.script)).expect("its output");
        let line = line.unwrap_or_else(|| panic!("{} has ended; its error is above", self.script));
        serde_json::from_str(&line).expect("a line of JSON")
    }

    /// Gives a command and waits for the answer.
    pub async fn ask(&mut self, command: &str) -> Value {
        self.tell(command).await;
        let answer = self.line().await;
        assert!(answer.get("error").is_none(), "{}: {command}: {answer}", self.script);
        answer
    }

    /// Gives a command that is not answered by itself.
    pub async fn tell(&mut self, command: &str) {
        self.input.write_all(format!("{command}\n").as_bytes()).await.expect("the peer listens");
    }

    /// [`Peer::ask`], of a peer that is asked in JSON.
    pub async fn ask_json(&mut self, query: &Value) -> Value {
        self.ask(&query.to_string()).await
    }

    /// Asks many queries at once; the answers in their order.
    pub async fn ask_all(&mut self, queries: impl Iterator<Item = Value>) -> Vec<Value> {
        let queries: Vec<String> = queries.map(|query| format!("{query}\n")).collect();
        let (input, output) = (&mut self.input, &mut self.output);
        let write = async {
            for query in &queries {
                input.write_all(query.as_bytes()).await.expect("the peer listens");
            }
        };
        let read = async {
            let mut answers = Vec::with_capacity(queries.len());
            for _ in &queries {
                let line = timeout(PATIENCE, output.next_line()).await.expect("an answer").expect("its output");
                answers.push(serde_json::from_str(&line.expect("the peer lives")).expect("a line of JSON"));
            }
            answers
        };
        tokio::join!(write, read).1
    }

    /// Ends it without a goodbye.
    pub async fn kill(mut self) {
        self.child.kill().await.expect("the peer can be killed");
    }
}
