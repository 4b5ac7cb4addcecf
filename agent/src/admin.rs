//! The control socket: a line with a request in, one JSON document out, end.

pub mod client;

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, os::unix::net::UnixStream as StdStream};

use serde::Serialize;
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::debug;

use crate::rule_use::Answer;
use crate::status::Status;

/// The request for a [`Status`].
const STATUS_REQUEST: &str = "status";
/// The request for an [`Answer`].
const RULES_REQUEST: &str = "rules";
/// What the socket's name ends in until it is ready.
pub(crate) const NEW_SUFFIX: &str = ".new";
/// Longest request.
const REQUEST_MAX: u64 = 64;
/// How long a client may take, and waits.
const PATIENCE: Duration = Duration::from_secs(5);

/// The control socket cannot be made.
#[derive(Debug, Error)]
pub enum AdminError {
    /// Another agent answers there.
    #[error(
        "--socket {}: another agent is listening there; end it, or choose another socket",
        .0.display()
    )]
    Taken(PathBuf),
    /// Something else is there.
    #[error("--socket {}: there is a file that is no socket; choose another path", .0.display())]
    NoSocket(PathBuf),
    /// The system refuses.
    #[error("--socket {}: cannot be created", .0.display())]
    Io(PathBuf, #[source] io::Error),
}

/// A control socket that is being served; dropping it ends that and removes it.
#[derive(Debug)]
pub struct Admin {
    path: PathBuf,
    inode: u64,
    task: JoinHandle<()>,
}

impl Admin {
    /// Create the socket, for its owner only, and answer requests with what `status` and `rules` return. A
    /// socket left behind by an agent that was killed is replaced. Needs a tokio runtime.
    ///
    /// # Errors
    /// See [`AdminError`].
    pub fn serve<S, R>(path: &Path, status: S, rules: R) -> Result<Self, AdminError>
    where
        S: Fn() -> Status + Send + Sync + 'static,
        R: Fn() -> Answer + Send + Sync + 'static,
    {
        if StdStream::connect(path).is_ok() {
            return Err(AdminError::Taken(path.to_owned()));
        }
        if fs::symlink_metadata(path).is_ok_and(|m| !m.file_type().is_socket()) {
            return Err(AdminError::NoSocket(path.to_owned()));
        }
        let (listener, inode) =
            listen(path).map_err(|error| AdminError::Io(path.to_owned(), error))?;
        let task = tokio::spawn(accept(listener, Arc::new((status, rules))));
        Ok(Self { path: path.to_owned(), inode, task })
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.task.abort();
        // Another agent may have put its own there since.
        if fs::symlink_metadata(&self.path).is_ok_and(|m| m.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A listening socket that appears with its final permissions.
fn listen(path: &Path) -> io::Result<(UnixListener, u64)> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let mut new = path.as_os_str().to_owned();
    new.push(NEW_SUFFIX);
    let _ = fs::remove_file(&new);
    let listener = UnixListener::bind(&new)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600))?;
    let inode = fs::symlink_metadata(&new)?.ino();
    fs::rename(&new, path)?;
    Ok((listener, inode))
}

async fn accept<S, R>(listener: UnixListener, answers: Arc<(S, R)>)
where
    S: Fn() -> Status + Send + Sync + 'static,
    R: Fn() -> Answer + Send + Sync + 'static,
{
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let answers = Arc::clone(&answers);
                tokio::spawn(async move {
                    let answered = answer(stream, answers);
                    match tokio::time::timeout(PATIENCE, answered).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => debug!("control connection: {error}"),
                        Err(_) => debug!("control connection: the client takes too long"),
                    }
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: give the others time to end.
                debug!("control socket: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer<S, R>(mut stream: UnixStream, answers: Arc<(S, R)>) -> io::Result<()>
where
    S: Fn() -> Status + Send + Sync + 'static,
    R: Fn() -> Answer + Send + Sync + 'static,
{
    let (reader, mut writer) = stream.split();
    let mut request = String::new();
    BufReader::new(reader.take(REQUEST_MAX)).read_line(&mut request).await?;
    let mut json = match request.trim_end() {
        STATUS_REQUEST => {
            // It waits for the engine, which may be writing; packets' events must not wait with it.
            let status = spawn_blocking(move || answers.0()).await.map_err(io::Error::other)?;
            serde_json::to_vec(&status)?
        }
        RULES_REQUEST => {
            let rules = spawn_blocking(move || answers.1()).await.map_err(io::Error::other)?;
            serde_json::to_vec(&rules)?
        }
        other => serde_json::to_vec(&Refusal { error: format!("{other:?} is no request") })?,
    };
    json.push(b'\n');
    writer.write_all(&json).await?;
    writer.shutdown().await
}

#[derive(Serialize)]
struct Refusal {
    error: String,
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use tempfile::TempDir;

    use super::*;

    fn ask(path: &Path, request: &str) -> String {
        let mut stream = StdStream::connect(path).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn status() -> Status {
        Status { node: "n".into(), ..Status::default() }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn answers_and_cleans_up() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("sub/netpold.sock");
        let admin = Admin::serve(&path, status, Answer::default).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let read: Status = serde_json::from_str(&ask(&path, "status\n")).unwrap();
        assert_eq!(read, status());
        let rules: Answer = serde_json::from_str(&ask(&path, "rules\n")).unwrap();
        assert_eq!(rules, Answer::default());
        assert_eq!(ask(&path, "please\n"), "{\"error\":\"\\\"please\\\" is no request\"}\n");
        let error = Admin::serve(&path, status, Answer::default).unwrap_err();
        assert!(matches!(error, AdminError::Taken(_)), "{error}");
        drop(admin);
        assert!(!path.exists());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn replaces_what_a_killed_agent_left_but_nothing_else() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("netpold.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let admin = Admin::serve(&path, status, Answer::default).unwrap();
        assert!(ask(&path, "status\n").contains("\"node\":\"n\""));
        drop(admin);
        fs::write(&path, "precious").unwrap();
        assert!(matches!(
            Admin::serve(&path, status, Answer::default),
            Err(AdminError::NoSocket(_))
        ));
    }
}
