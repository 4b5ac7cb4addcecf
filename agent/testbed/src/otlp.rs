//! A collector for tests: decodes OTLP with the published Python package `opentelemetry-proto`.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::cached;

/// Folder of the Python packages in the user's cache, where `cargo xtask setup` puts them.
pub const CACHED: &str = "netpold/otlp";

const PROGRAM: &str = include_str!("otlp/receiver.py");

/// A running receiver on 127.0.0.1 of its network namespace; stops on drop.
#[derive(Debug)]
pub struct Receiver {
    child: Child,
    port: u16,
    requests: Arc<Mutex<Vec<Value>>>,
}

/// TLS and required header of a receiver.
#[derive(Clone, Copy, Debug, Default)]
pub struct Security<'s> {
    /// PEM files with certificate and key.
    pub tls: Option<[&'s Path; 2]>,
    /// Header that each request must have, in the form `name: value`.
    pub header: Option<&'s str>,
}

impl Receiver {
    /// Returns the folder of the Python packages if they are installed.
    #[must_use]
    pub fn packages() -> Option<PathBuf> {
        cached(CACHED).filter(|folder| folder.join("opentelemetry").is_dir())
    }

    /// Starts a receiver in the calling thread's network namespace. `port`: 0 for any.
    ///
    /// # Errors
    /// Python or its packages are missing, or the port is taken.
    pub fn start(port: u16, security: Security<'_>) -> Result<Self> {
        let packages =
            Self::packages().context("no opentelemetry-proto: run `cargo xtask setup`")?;
        let mut command = Command::new("python3");
        command.arg("-c").arg(PROGRAM).arg(port.to_string()).env("PYTHONPATH", packages);
        let empty = [Path::new(""); 2];
        command.args(security.tls.unwrap_or(empty)).args(security.header);
        let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start python3")?;
        let output = child.stdout.take().context("python3 has no output")?;
        let mut lines = BufReader::new(output).lines();
        let port = lines.next().context("the receiver did not start")??;
        let port = port.parse().context("the receiver prints no port")?;
        let requests = Arc::<Mutex<Vec<Value>>>::default();
        let filled = Arc::clone(&requests);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let request = serde_json::from_str(&line).unwrap_or_default();
                filled.lock().unwrap_or_else(PoisonError::into_inner).push(request);
            }
        });
        Ok(Self { child, port, requests })
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the number of [`Receiver::items`] of a path.
    #[must_use]
    pub fn count(&self, path: &str) -> usize {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let of_path = requests.iter().filter(|request| request["path"] == path);
        of_path.map(|it| it["items"].as_array().map_or(0, Vec::len)).sum()
    }

    /// Returns the log records (`/v1/logs`) or data points (`/v1/metrics`) received so far.
    #[must_use]
    pub fn items(&self, path: &str) -> Vec<Value> {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let of_path = requests.iter().filter(|request| request["path"] == path);
        of_path.flat_map(|it| it["items"].as_array().cloned().unwrap_or_default()).collect()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
