//! Commands in a container, by the API server's `exec`.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::Api;
use kube::api::{AttachParams, AttachedProcess};
use netpold_kube::cluster::failure::Failure;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::node_error::NodeError;

/// Path of the binary in the agent's image.
const BINARY: &str = "/netpold";
/// Name of the agent's container.
pub(super) const CONTAINER: &str = "netpold";
/// Timeout of a whole answer, and of the start of an answer in lines.
const PATIENCE: Duration = Duration::from_secs(20);
/// Most bytes of an answer.
const ANSWER_MAX: usize = 64 << 20;
/// Most bytes of a line of an answer in lines.
const LINE_MAX: usize = 1 << 20;
/// Most bytes kept of standard error.
const ERROR_MAX: usize = 4096;
/// Bytes of the buffer for standard output.
const BUFFER: usize = 1 << 16;

/// Container that runs commands.
pub(super) struct ExecTarget<'t> {
    pub(super) pods: Api<Pod>,
    pub(super) namespace: &'t str,
    pub(super) pod: &'t str,
    pub(super) container: &'t str,
    pub(super) server: &'t str,
    /// Purpose in error messages, as in "cannot ask the agent".
    pub(super) purpose: &'t str,
}

/// Builds the command line that asks an agent from inside its container.
fn of_agent<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [&[BINARY], arguments, &["--local"]].concat()
}

impl ExecTarget<'_> {
    /// Returns the answer of the container's agent.
    pub(super) async fn request_answer(&self, arguments: &[&str]) -> Result<Vec<u8>, NodeError> {
        self.output(&of_agent(arguments), ANSWER_MAX).await
    }

    /// Returns the whole standard output of a command, at most `most` bytes. A failed command counts as answered if it
    /// wrote to standard output.
    pub(super) async fn output(&self, command: &[&str], most: usize) -> Result<Vec<u8>, NodeError> {
        let whole = async {
            let mut process = self.start(command, false).await?;
            let status = process.take_status();
            let output = bounded(process.stdout(), most);
            let error = beginning(process.stderr());
            let reading = async { tokio::try_join!(output, error) };
            let ((output, error), status) = to_the_end(reading, status).await?;
            match outcome(status, &error) {
                Err(NodeError::Failed { code: Some(_), .. }) if !output.is_empty() => Ok(output),
                outcome => outcome.map(|()| output),
            }
        };
        timeout(PATIENCE, whole).await.unwrap_or(Err(NodeError::Silent(PATIENCE)))
    }

    /// Starts the container's agent for an answer in lines.
    pub(super) async fn start_lines(&self, arguments: &[&str]) -> Result<CommandLines, NodeError> {
        let command = of_agent(arguments);
        let started = timeout(PATIENCE, self.start(&command, true)).await;
        Ok(CommandLines(started.unwrap_or(Err(NodeError::Silent(PATIENCE)))?))
    }

    async fn start(&self, command: &[&str], input: bool) -> Result<AttachedProcess, NodeError> {
        let params = AttachParams::default()
            .container(self.container)
            .stdin(input)
            .max_stdout_buf_size(BUFFER)
            .max_stderr_buf_size(ERROR_MAX);
        let started = self.pods.exec(self.pod, command.iter().copied(), &params).await;
        started.map_err(|error| {
            let failure = Failure::from_error(error);
            let Failure::Forbidden(words) = failure else {
                return NodeError::Refused { words: failure.text(self.purpose, self.server) };
            };
            // `pods "NAME" is forbidden: User …`
            let who = words.split_once(" is forbidden: ").map(|(_, who)| who.to_owned());
            NodeError::Forbidden {
                words: who.unwrap_or(words),
                namespace: self.namespace.to_owned(),
            }
        })
    }
}

/// Running command that writes lines.
pub(super) struct CommandLines(AttachedProcess);

impl CommandLines {
    /// Sends each line, with the node's name, until the command ends or the receiver is dropped.
    pub(super) async fn send(
        mut self,
        node: &str,
        lines: &mpsc::Sender<(String, Result<String, NodeError>)>,
    ) -> Result<(), NodeError> {
        let status = self.0.take_status();
        // Standard input stays open: its end makes the command exit.
        let _input = self.0.stdin();
        let output = self.0.stdout();
        let reading = async {
            let Some(output) = output else { return Ok(()) };
            let mut output = BufReader::new(output);
            while let Some(line) = next_line(&mut output).await? {
                let sent = lines.send((node.to_owned(), Ok(line))).await;
                sent.map_err(|_| NodeError::BrokenOff)?;
            }
            Ok(())
        };
        let error = beginning(self.0.stderr());
        let (((), error), status) =
            to_the_end(async { tokio::try_join!(reading, error) }, status).await?;
        outcome(status, &error)
    }
}

/// Reads the output of a command until the command ends, and returns output and status. The status arrives before the
/// streams end. If the connection breaks off there is no status, and the streams report no error (kube 5.0).
async fn to_the_end<T>(
    reading: impl Future<Output = Result<T, NodeError>>,
    status: Option<impl Future<Output = Option<Status>>>,
) -> Result<(T, Status), NodeError> {
    let ending = async {
        match status {
            Some(status) => status.await.ok_or(NodeError::BrokenOff),
            None => Err(NodeError::BrokenOff),
        }
    };
    tokio::try_join!(reading, ending)
}

/// Reads the whole stream; a stream of more than `most` bytes is an error.
async fn bounded(
    stream: Option<impl AsyncRead + Unpin>,
    most: usize,
) -> Result<Vec<u8>, NodeError> {
    let mut bytes = Vec::new();
    let Some(stream) = stream else { return Ok(bytes) };
    let read = stream.take(most as u64 + 1).read_to_end(&mut bytes).await;
    read.map_err(|_| NodeError::BrokenOff)?;
    if bytes.len() > most { Err(NodeError::TooLong(most)) } else { Ok(bytes) }
}

/// Reads the first [`ERROR_MAX`] bytes, and discards the rest so that the writer does not block.
async fn beginning(stream: Option<impl AsyncRead + Unpin>) -> Result<Vec<u8>, NodeError> {
    let (mut kept, mut chunk) = (Vec::new(), [0; 1024]);
    let Some(mut stream) = stream else { return Ok(kept) };
    loop {
        let read = stream.read(&mut chunk).await.map_err(|_| NodeError::BrokenOff)?;
        if read == 0 {
            return Ok(kept);
        }
        let room = ERROR_MAX - kept.len();
        kept.extend_from_slice(&chunk[..read.min(room)]);
    }
}

async fn next_line(stream: &mut (impl AsyncBufRead + Unpin)) -> Result<Option<String>, NodeError> {
    let mut line = Vec::new();
    let read = stream.take(LINE_MAX as u64 + 1).read_until(b'\n', &mut line).await;
    read.map_err(|_| NodeError::BrokenOff)?;
    if line.len() > LINE_MAX {
        return Err(NodeError::TooLong(LINE_MAX));
    }
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    Ok(Some(String::from_utf8_lossy(&line).into_owned()))
}

/// Parses the end of a command from the kubelet's `metav1.Status` on the error channel.
fn outcome(status: Status, error: &[u8]) -> Result<(), NodeError> {
    if status.status.as_deref() == Some("Success") {
        return Ok(());
    }
    let causes = status.details.and_then(|details| details.causes).unwrap_or_default();
    let code = causes.iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    let code = code.and_then(|cause| cause.message.as_deref()?.parse().ok());
    let told = String::from_utf8_lossy(error);
    let text = match told.trim() {
        "" => status.message.unwrap_or_default(),
        told => told.trim_start_matches("netpold: ").to_owned(),
    };
    Err(NodeError::Failed { code, text })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn ended(status: Value, error: &str) -> Result<(), NodeError> {
        outcome(serde_json::from_value(status).unwrap(), error.as_bytes())
    }

    #[test]
    fn an_exit_status_is_told_with_what_was_said() {
        let cause = json!({ "reason": "ExitCode", "message": "3" });
        let failure = json!({ "status": "Failure", "reason": "NonZeroExitCode",
            "message": "command terminated", "details": { "causes": [cause] } });
        let failed = |text: &str| Err(NodeError::Failed { code: Some(3), text: text.into() });
        assert_eq!(ended(failure.clone(), "netpold: no agent\n"), failed("no agent"));
        assert_eq!(ended(failure, ""), failed("command terminated"));
        assert_eq!(ended(json!({ "status": "Success" }), "words"), Ok(()));
    }

    #[tokio::test]
    async fn what_is_read_is_bounded() {
        assert_eq!(bounded(Some(&b"abc"[..]), 3).await.unwrap(), b"abc");
        assert_eq!(bounded(Some(&b"abcd"[..]), 3).await, Err(NodeError::TooLong(3)));
        let long = vec![b'x'; ERROR_MAX * 3];
        assert_eq!(beginning(Some(&long[..])).await.unwrap().len(), ERROR_MAX);
        let long = vec![b'x'; LINE_MAX + 1];
        assert_eq!(next_line(&mut &long[..]).await, Err(NodeError::TooLong(LINE_MAX)));
        let mut lines = &b"a\n\nb"[..];
        let mut read = Vec::new();
        while let Some(line) = next_line(&mut lines).await.unwrap() {
            read.push(line);
        }
        assert_eq!(read, ["a", "", "b"]);
    }
}
