//! The control socket. A client sends a line with a request and gets one JSON document; for some requests the answer is
//! a stream of lines, until the client disconnects.

mod requests;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, os::unix::net::UnixStream as StdStream};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde::Serialize;
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::debug;

use netpold_api::socket::PATIENCE;

pub use requests::requests;

/// Suffix of the socket's name until it is ready.
pub const NEW_SUFFIX: &str = ".new";
/// Longest request, in bytes.
const REQUEST_MAX: u64 = 2048;

/// Failure to create the control socket.
#[derive(Debug, Error)]
pub enum AdminError {
    /// Another agent answers at the path.
    #[error(
        "--socket {}: another agent is listening there; stop it, or choose another socket",
        .0.display()
    )]
    Taken(PathBuf),
    /// The file at the path is no socket.
    #[error("--socket {}: the file exists and is not a socket; choose another path", .0.display())]
    NoSocket(PathBuf),
    /// The system refuses to create the socket.
    #[error("--socket {}: cannot create the socket", .0.display())]
    Io(PathBuf, #[source] io::Error),
}

/// Handler of a request. Its argument is the rest of the line after the request's name.
type Answer = Box<dyn Fn(&str) -> serde_json::Result<Vec<u8>> + Send + Sync>;

/// Handler of a streaming request: serves the connection until one side ends it. Gets the rest of the line too.
type Stream = Box<dyn Fn(UnixStream, String) -> BoxFuture<'static, io::Result<()>> + Send + Sync>;

/// Handlers of a control socket's requests, by name.
#[derive(Default)]
pub struct Requests {
    answers: BTreeMap<&'static str, Answer>,
    streams: BTreeMap<&'static str, Stream>,
}

impl Requests {
    /// Adds a request of this name: `answer` returns the document of the answer. It runs on a thread that may block,
    /// for example on the engine.
    #[must_use]
    pub fn on<T: Serialize>(
        mut self,
        name: &'static str,
        answer: impl Fn(&str) -> T + Send + Sync + 'static,
    ) -> Self {
        let json = move |rest: &str| serde_json::to_vec(&answer(rest));
        self.answers.insert(name, Box::new(json));
        self
    }

    /// Adds a streaming request of this name: `serve` gets the connection and the rest of the line.
    #[must_use]
    pub fn on_stream<F: Future<Output = io::Result<()>> + Send + 'static>(
        mut self,
        name: &'static str,
        serve: impl Fn(UnixStream, String) -> F + Send + Sync + 'static,
    ) -> Self {
        let serve = move |stream, rest| serve(stream, rest).boxed();
        self.streams.insert(name, Box::new(serve));
        self
    }

    fn answer(&self, request: &str) -> serde_json::Result<Vec<u8>> {
        let (name, rest) = request.split_once(' ').unwrap_or((request, ""));
        match self.answers.get(name) {
            Some(answer) => answer(rest),
            None => serde_json::to_vec(&Refusal { error: format!("unknown request {request:?}") }),
        }
    }
}

/// A control socket that is being served. Dropping it ends the service and removes the socket.
#[derive(Debug)]
pub struct Admin {
    path: PathBuf,
    inode: u64,
    task: JoinHandle<()>,
}

impl Admin {
    /// Creates the socket, accessible to its owner only, and answers requests. Replaces a socket that a killed agent
    /// left behind. Requires a tokio runtime.
    ///
    /// # Errors
    /// See [`AdminError`].
    pub fn serve(path: &Path, requests: Requests) -> Result<Self, AdminError> {
        if StdStream::connect(path).is_ok() {
            return Err(AdminError::Taken(path.to_owned()));
        }
        if fs::symlink_metadata(path).is_ok_and(|m| !m.file_type().is_socket()) {
            return Err(AdminError::NoSocket(path.to_owned()));
        }
        let (listener, inode) =
            listen(path).map_err(|error| AdminError::Io(path.to_owned(), error))?;
        let task = tokio::spawn(accept(listener, Arc::new(requests)));
        Ok(Self { path: path.to_owned(), inode, task })
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.task.abort();
        // Another agent may have replaced the socket since.
        if fs::symlink_metadata(&self.path).is_ok_and(|m| m.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Creates a listening socket that appears with its final permissions. Returns its inode number too.
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

async fn accept(listener: UnixListener, requests: Arc<Requests>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let requests = Arc::clone(&requests);
                tokio::spawn(async move {
                    if let Err(error) = attend(stream, requests).await {
                        debug!("control connection: {error}");
                    }
                });
            }
            Err(error) => {
                // Most likely out of file descriptors: give other connections time to end.
                debug!("control socket: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn attend(mut stream: UnixStream, requests: Arc<Requests>) -> io::Result<()> {
    let mut request = String::new();
    let mut reader = BufReader::new((&mut stream).take(REQUEST_MAX));
    tokio::time::timeout(PATIENCE, reader.read_line(&mut request)).await??;
    let request = request.trim_end().to_owned();
    let (name, rest) = request.split_once(' ').unwrap_or((&request, ""));
    match requests.streams.get(name) {
        Some(serve) => serve(stream, rest.to_owned()).await,
        None => tokio::time::timeout(PATIENCE, answer(stream, requests, request)).await?,
    }
}

async fn answer(
    mut stream: UnixStream,
    requests: Arc<Requests>,
    request: String,
) -> io::Result<()> {
    // On a blocking thread: the handler waits for the engine, which may be writing; readers of events must not wait.
    let json = spawn_blocking(move || requests.answer(&request));
    let mut json = json.await.map_err(io::Error::other)??;
    json.push(b'\n');
    stream.write_all(&json).await?;
    stream.shutdown().await
}

#[derive(Serialize)]
struct Refusal {
    error: String,
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use netpold_api::rules::{Answer, RULES_REQUEST};
    use netpold_api::status::{STATUS_REQUEST, Status};
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

    fn requests() -> Requests {
        let requests = Requests::default().on(STATUS_REQUEST, |_| status());
        requests.on(RULES_REQUEST, |_| Answer::default()).on("echo", str::to_owned)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn answers_and_cleans_up() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("sub/netpold.sock");
        let admin = Admin::serve(&path, requests()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let read: Status = serde_json::from_str(&ask(&path, "status\n")).unwrap();
        assert_eq!(read, status());
        let rules: Answer = serde_json::from_str(&ask(&path, "rules\n")).unwrap();
        assert_eq!(rules, Answer::default());
        assert_eq!(ask(&path, "echo of this\n"), "\"of this\"\n");
        assert_eq!(ask(&path, "please\n"), "{\"error\":\"unknown request \\\"please\\\"\"}\n");
        let error = Admin::serve(&path, requests()).unwrap_err();
        assert!(matches!(error, AdminError::Taken(_)), "{error}");
        drop(admin);
        assert!(!path.exists());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn replaces_what_a_killed_agent_left_but_nothing_else() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("netpold.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let admin = Admin::serve(&path, requests()).unwrap();
        assert!(ask(&path, "status\n").contains("\"node\":\"n\""));
        drop(admin);
        fs::write(&path, "precious").unwrap();
        assert!(matches!(Admin::serve(&path, requests()), Err(AdminError::NoSocket(_))));
    }
}
