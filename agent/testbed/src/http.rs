//! One HTTP request: over an open connection, or to a port on loopback.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

/// Time for an answer of [`send`]; a failure takes this long.
const PATIENCE: Duration = Duration::from_mins(1);

/// Answer of [`send`].
#[derive(Debug)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Headers, in lower case.
    pub head: String,
    /// Body.
    pub body: Vec<u8>,
}

impl Reply {
    /// Returns the body.
    ///
    /// # Panics
    /// The body is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// Sends the text of a request to a port on loopback and reads the answer until its end.
///
/// # Panics
/// Nobody listens, or the answer is not HTTP.
#[must_use]
pub fn send(port: u16, request: &str) -> Reply {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
    }
    let head = head.to_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let mut body = Vec::new();
    match length {
        Some(length) => {
            body.resize(length.trim().parse().unwrap(), 0);
            reader.read_exact(&mut body).unwrap();
        }
        None => _ = reader.read_to_end(&mut body).unwrap(),
    }
    Reply { status, head, body }
}

/// Sends a request with a body of this media type; returns status code and body of the answer.
///
/// # Errors
/// When the connection breaks, or the answer is not HTTP.
pub(crate) fn exchange(
    mut stream: impl Read + Write,
    (method, path): (&str, &str),
    (media, body): (&str, &str),
) -> Result<(u16, String)> {
    // With HTTP 1.0, the answer is not chunked and ends with the connection.
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: {media}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8(answer).context("the answer is no text")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP in the answer")?;
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok((code.context("no status in the answer")?, body.to_owned()))
}
