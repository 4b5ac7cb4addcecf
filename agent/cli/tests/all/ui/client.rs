//! A server of `netpold ui`, and requests to it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use netpold_testbed::http::{Reply, send};
use serde_json::Value;

/// A running server; it ends with this value.
pub(crate) struct Ui {
    child: Child,
    /// Address of the page with the token.
    pub(crate) address: String,
    pub(crate) port: u16,
    pub(crate) token: String,
}

impl Ui {
    /// Starts a server for the manifests of a directory.
    pub(crate) fn start(manifests: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-netpold"));
        command.arg("ui").arg("--manifests").arg(manifests).env_clear().stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split_whitespace().last().unwrap().to_owned();
        let (origin, token) = address.split_once("/#").unwrap();
        let port = origin.rsplit(':').next().unwrap().parse().unwrap();
        let token = token.to_owned();
        Self { child, address, port, token }
    }

    /// Sends a request with exactly these header lines.
    pub(crate) fn send(&self, request: &str, headers: &[String], body: &str) -> Reply {
        let head: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let length = body.len();
        send(
            self.port,
            &format!(
                "{request} HTTP/1.1\r\n{head}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            ),
        )
    }

    /// Returns the headers that the page sends.
    pub(crate) fn headers(&self) -> Vec<String> {
        let (port, token) = (self.port, &self.token);
        vec![
            format!("Host: 127.0.0.1:{port}"),
            format!("Origin: http://127.0.0.1:{port}"),
            format!("Authorization: Bearer {token}"),
            "Content-Type: application/json".to_owned(),
        ]
    }

    /// Ends the server as Ctrl-C does. Returns its exit status.
    pub(crate) fn interrupt(&mut self) -> Option<i32> {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }

    /// Asks as the page does.
    pub(crate) fn ask(&self, path: &str, question: &Value) -> Reply {
        self.send(&format!("POST /api/{path}"), &self.headers(), &question.to_string())
    }
}

impl Drop for Ui {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
