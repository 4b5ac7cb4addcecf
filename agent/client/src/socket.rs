//! The client of an agent's control socket: HTTP/1.0, so that an answer ends with its connection.

use std::io::{self, BufRead, BufReader, Read};
use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use netpold_api::socket::PATIENCE;
use netpold_core::printable::printable;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reason why an answer cannot be parsed.
pub const NOT_UNDERSTOOD: &str = "cannot parse the agent's answer; is it another version?";

/// Connection to an agent.
#[cfg(unix)]
type Stream = std::os::unix::net::UnixStream;
/// Connection to an agent; none is ever opened, since agents need Linux.
#[cfg(not(unix))]
type Stream = std::net::TcpStream;

#[cfg(unix)]
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "an enum of another crate, open to further variants"
)]
fn connect(socket: &Path) -> Result<Stream> {
    use std::io::ErrorKind;

    use anyhow::anyhow;

    let shown = socket.display();
    Stream::connect(socket).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => anyhow!(
            "no agent is listening on {shown}: is `netpold run` running, and with this --socket?"
        ),
        ErrorKind::PermissionDenied => {
            anyhow!(
                "permission denied on {shown}: use the account that the agent runs as, such as root"
            )
        }
        _ => anyhow!(error).context(format!("cannot open {shown}")),
    })
}

#[cfg(not(unix))]
fn connect(_: &Path) -> Result<Stream> {
    bail!("no agent runs on this system: name a cluster with --kubeconfig or --context")
}

/// Returns the answer to a request.
///
/// # Errors
/// No agent listens there, this account may not connect, the agent refuses, or its answer is of another version or takes
/// more than [`PATIENCE`].
pub fn request<A: DeserializeOwned>(
    socket: &Path,
    request: &str,
    question: &impl Serialize,
) -> Result<A> {
    let mut lines = AnswerLines::send_request(socket, request, question, PATIENCE, false)?;
    lines.reader.get_ref().set_read_timeout(Some(PATIENCE))?;
    let mut answer = String::new();
    lines.reader.read_to_string(&mut answer).with_context(|| silent(&lines.socket))?;
    parse_answer(&answer)
}

/// Parses an agent's answer, or a line of it.
///
/// # Errors
/// The text is of another version.
pub fn parse_answer<A: DeserializeOwned>(json: &str) -> Result<A> {
    serde_json::from_str(json).context(NOT_UNDERSTOOD)
}

fn silent(socket: &Path) -> String {
    format!("the agent on {} does not answer", socket.display())
}

/// Lines of an agent's answer.
#[derive(Debug)]
pub struct AnswerLines {
    socket: PathBuf,
    reader: BufReader<Stream>,
}

impl AnswerLines {
    /// Sends a request and waits `patience` for the start of the answer. With `ends_with_input`, the answer ends when
    /// standard input ends: processes in a pod receive no signal, and a lost connection only closes their standard input.
    ///
    /// # Errors
    /// No agent listens there, this account may not connect, or the agent refuses or does not answer in time.
    pub fn send_request(
        socket: &Path,
        request: &str,
        question: &impl Serialize,
        patience: Duration,
        ends_with_input: bool,
    ) -> Result<Self> {
        let body = serde_json::to_string(question)?;
        let mut stream = connect(socket)?;
        let mut send = || {
            stream.set_read_timeout(Some(patience))?;
            let length = body.len();
            let head = format!("POST {request} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n");
            io::Write::write_all(&mut stream, (head + &body).as_bytes())
        };
        send().with_context(|| silent(socket))?;
        if ends_with_input {
            let stream = stream.try_clone()?;
            std::thread::spawn(move || {
                let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
                let _ = stream.shutdown(Shutdown::Both);
            });
        }
        let mut lines = Self { socket: socket.to_owned(), reader: BufReader::new(stream) };
        let mut line =
            || lines.read().with_context(|| silent(socket)).map(Option::unwrap_or_default);
        let first = line()?;
        while !line()?.is_empty() {}
        let mut words = first.split(' ');
        if !words.next().is_some_and(|version| version.starts_with("HTTP/1.")) {
            bail!(NOT_UNDERSTOOD);
        }
        if words.next() != Some("200") {
            let mut reason = String::new();
            lines.reader.read_to_string(&mut reason).with_context(|| silent(socket))?;
            bail!("the agent refuses: {}", printable(&reason));
        }
        // After its start, a stream has a line only when something occurs.
        lines.reader.get_ref().set_read_timeout(None)?;
        Ok(lines)
    }

    /// Returns the next line; `None` if the agent has ended the answer.
    ///
    /// # Errors
    /// The connection failed.
    pub fn read(&mut self) -> io::Result<Option<String>> {
        let mut line = String::new();
        let length = self.reader.read_line(&mut line)?;
        Ok((length > 0).then(|| line.trim_end().to_owned()))
    }
}
