//! `kubectl proxy`, which passes plain HTTP from a Unix socket to the API server.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::process::{INTERVAL, PATIENCE, Process};
use crate::http::exchange;
use crate::netns::Netns;

/// A running `kubectl proxy`.
#[derive(Debug)]
pub(super) struct KubectlProxy {
    process: Process,
    socket: PathBuf,
}

impl KubectlProxy {
    /// Starts it inside the server's namespace. The kubeconfig and the server's certificate must exist.
    pub(super) fn start(
        kubectl: &Path,
        netns: Option<Arc<Netns>>,
        directory: &Path,
    ) -> Result<Self> {
        let socket = directory.join("proxy.sock");
        let arguments = vec![
            format!("--kubeconfig={}", directory.join("admin.kubeconfig").display()),
            "proxy".to_owned(),
            format!("--unix-socket={}", socket.display()),
        ];
        let process = Process::new(kubectl, netns, arguments, directory.join("proxy.log"))?;
        let mut proxy = Self { process, socket };
        let deadline = Instant::now() + PATIENCE;
        while UnixStream::connect(&proxy.socket).is_err() {
            proxy.process.still_runs()?;
            if Instant::now() > deadline {
                bail!("kubectl proxy does not listen:\n{}", proxy.process.log_end());
            }
            std::thread::sleep(INTERVAL);
        }
        Ok(proxy)
    }

    /// Sends a request; returns status code and body of the answer. The code is 502 while no server listens.
    pub(super) fn ask(
        &self,
        request: (&str, &str),
        body: (&str, &str),
        patience: Duration,
    ) -> Result<(u16, String)> {
        let stream = UnixStream::connect(&self.socket).context("no connection to kubectl proxy")?;
        stream.set_read_timeout(Some(patience))?;
        exchange(stream, request, body)
    }
}
