//! The control socket: HTTP/1 on a Unix socket, one request per connection. A request's body is JSON or empty; the
//! answer is one JSON document, or a stream of JSON lines until one side ends it. A status other than 200 comes with
//! the reason as text.

mod requests;
mod routes;

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, os::unix::net::UnixStream as StdStream};

use axum::Router;
use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use thiserror::Error;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tracing::debug;

use netpold_api::socket::PATIENCE;

pub use requests::requests;
pub use routes::{answer, stream};

/// Suffix of the socket's name until it is ready.
pub const NEW_SUFFIX: &str = ".new";

/// Failure to create the control socket.
#[derive(Debug, Error)]
pub enum AdminError {
    /// The socket at the path belongs to another running agent.
    #[error(
        "--socket {}: another agent is listening there; stop it, or choose another socket",
        .0.display()
    )]
    Taken(PathBuf),
    /// The file at the path is not a socket.
    #[error("--socket {}: the file exists and is not a socket; choose another path", .0.display())]
    NoSocket(PathBuf),
    /// The system refuses to create the socket.
    #[error("--socket {}: cannot create the socket", .0.display())]
    Io(PathBuf, #[source] io::Error),
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
    pub fn serve(path: &Path, router: Router) -> Result<Self, AdminError> {
        if StdStream::connect(path).is_ok() {
            return Err(AdminError::Taken(path.to_owned()));
        }
        if fs::symlink_metadata(path).is_ok_and(|m| !m.file_type().is_socket()) {
            return Err(AdminError::NoSocket(path.to_owned()));
        }
        let (listener, inode) =
            listen(path).map_err(|error| AdminError::Io(path.to_owned(), error))?;
        let task = tokio::spawn(accept(listener, router.fallback(unknown)));
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

async fn unknown(uri: Uri) -> impl IntoResponse {
    (StatusCode::NOT_FOUND, format!("unknown request {:?}", uri.path()))
}

async fn accept(listener: UnixListener, router: Router) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(serve(stream, router.clone()))),
            Err(error) => {
                // Most likely out of file descriptors: give other connections time to end.
                debug!("control socket: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve(stream: UnixStream, router: Router) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = served.await {
        debug!("control connection: {error}");
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use netpold_api::status::{AgentStatus, STATUS_REQUEST};
    use tempfile::TempDir;

    use super::routes::{REQUEST_MAX, answer, stream};
    use super::*;
    use crate::lines::{LineSender, line};

    /// Returns the status and the body of the answer.
    fn ask(path: &Path, request: &str, body: &str) -> (String, String) {
        let mut stream = StdStream::connect(path).unwrap();
        let length = body.len();
        write!(stream, "POST {request} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().to_owned(), body.to_owned())
    }

    fn answered(path: &Path, request: &str, body: &str) -> String {
        let (status, text) = ask(path, request, body);
        assert_eq!(status, "200", "{text}");
        text
    }

    fn status() -> AgentStatus {
        AgentStatus { node: "n".into(), ..AgentStatus::default() }
    }

    fn router() -> Router {
        let lines = stream(async |number: u8, lines: LineSender| match number {
            0 => Err("none wanted".to_owned()),
            _ => Ok(async move {
                for number in 0..number {
                    lines.send(line(&number)?).await?;
                }
                Ok(())
            }),
        });
        Router::new()
            .route(STATUS_REQUEST, answer(|()| status()))
            .route("/echo", answer(|text: String| text))
            .route("/lines", lines)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn answers_and_cleans_up() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("sub/netpold.sock");
        let admin = Admin::serve(&path, router()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let read: AgentStatus = serde_json::from_str(&answered(&path, STATUS_REQUEST, "")).unwrap();
        assert_eq!(read, status());
        assert_eq!(answered(&path, "/echo", "\"this\""), "\"this\"\n");
        assert_eq!(answered(&path, "/lines", "3"), "0\n1\n2\n");
        let refusals = [("/lines", "0", "409"), ("/echo", "1", "400"), ("/please", "", "404")];
        for (request, body, status) in refusals {
            assert_eq!(ask(&path, request, body).0, status, "{request} {body}");
        }
        let long = format!("\"{}\"", "a".repeat(REQUEST_MAX));
        assert_eq!(ask(&path, "/echo", &long).0, "413");
        let error = Admin::serve(&path, router()).unwrap_err();
        assert!(matches!(error, AdminError::Taken(_)), "{error}");
        drop(admin);
        assert!(!path.exists());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn replaces_what_a_killed_agent_left_but_nothing_else() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("netpold.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let admin = Admin::serve(&path, router()).unwrap();
        assert!(answered(&path, STATUS_REQUEST, "").contains("\"node\":\"n\""));
        drop(admin);
        fs::write(&path, "precious").unwrap();
        assert!(matches!(Admin::serve(&path, router()), Err(AdminError::NoSocket(_))));
    }
}
