//! Streams of JSON lines to clients.

use std::io;

use serde::Serialize;
use tokio::sync::mpsc;

/// Sending side of a stream.
#[derive(Debug)]
pub struct LineSender(mpsc::Sender<Vec<u8>>);

impl LineSender {
    /// Creates a stream; the receiver yields each text in turn.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<Vec<u8>>) {
        let (sender, receiver) = mpsc::channel(1);
        (Self(sender), receiver)
    }

    /// Sends lines, if any, at the client's pace.
    ///
    /// # Errors
    /// The client has disconnected.
    pub async fn send(&self, lines: Vec<u8>) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        self.0.send(lines).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Waits until the client disconnects.
    pub async fn closed(&self) {
        self.0.closed().await;
    }
}

/// Returns a value as a line of JSON.
///
/// # Errors
/// The value has no JSON form.
pub fn line<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    let mut json = serde_json::to_vec(value)?;
    json.push(b'\n');
    Ok(json)
}
