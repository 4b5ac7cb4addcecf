//! The etcd behind an API server, with faults for tests.

use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::process::Process;
use crate::http::exchange;
use crate::netns::Netns;

const PATIENCE: Duration = Duration::from_secs(30);
/// Writes in a transaction: etcd accepts 128, and a request of 1.5 MB.
const TRANSACTION: usize = 50;

/// An etcd of one member, on a loopback.
#[derive(Debug)]
pub struct Etcd {
    process: Process,
    netns: Option<Arc<Netns>>,
    port: u16,
}

impl Etcd {
    pub(super) fn start(
        binary: &Path,
        netns: Option<Arc<Netns>>,
        directory: PathBuf,
        (client, peer): (u16, u16),
    ) -> Result<Self> {
        std::fs::create_dir_all(&directory)?;
        let url = format!("http://127.0.0.1:{client}");
        let peer = format!("http://127.0.0.1:{peer}");
        let arguments = vec![
            format!("--data-dir={}", directory.join("data").display()),
            format!("--listen-client-urls={url}"),
            format!("--advertise-client-urls={url}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            "--logger=zap".into(),
            "--log-level=error".into(),
        ];
        let process = Process::new(binary, netns.clone(), arguments, directory.join("etcd.log"))?;
        let mut etcd = Self { process, netns, port: client };
        etcd.wait()?;
        Ok(etcd)
    }

    /// Compacts all history: a watch that resumes at an earlier revision gets 410 Gone.
    ///
    /// # Errors
    /// When etcd refuses.
    pub fn compact(&self) -> Result<()> {
        let revision = self.revision()?;
        self.ask("/v3/kv/compaction", &json!({ "revision": revision, "physical": true }))?;
        Ok(())
    }

    /// Writes values (`None`: deletes) under keys without the API server, which also reads objects as JSON. Writes
    /// objects of a large cluster within seconds, and changes at any rate.
    ///
    /// # Errors
    /// When etcd refuses.
    pub fn write(&self, entries: &[(String, Option<String>)]) -> Result<()> {
        let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        for entries in entries.chunks(TRANSACTION) {
            let writes = entries.iter().map(|(key, value)| match value {
                Some(value) => {
                    json!({ "requestPut": { "key": encode(key), "value": encode(value) } })
                }
                None => json!({ "requestDeleteRange": { "key": encode(key) } }),
            });
            let writes: Vec<Value> = writes.collect();
            self.ask("/v3/kv/txn", &json!({ "success": writes }))?;
        }
        Ok(())
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Number of values whose keys begin with a prefix, their bytes in all, and the bytes of the longest.
    ///
    /// # Errors
    /// When etcd refuses.
    pub fn contents(&self, prefix: &str) -> Result<[usize; 3]> {
        let engine = base64::engine::general_purpose::STANDARD;
        let mut end = prefix.as_bytes().to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let range = json!({ "key": engine.encode(prefix), "range_end": engine.encode(end) });
        let answer = self.ask("/v3/kv/range", &range)?;
        let values = answer["kvs"].as_array().map_or(&[][..], Vec::as_slice).iter();
        let lengths =
            values.map(|kv| Ok(engine.decode(kv["value"].as_str().unwrap_or_default())?.len()));
        let lengths = lengths.collect::<Result<Vec<usize>>>()?;
        Ok([lengths.len(), lengths.iter().sum(), lengths.iter().max().copied().unwrap_or_default()])
    }

    /// Kills etcd and starts it again, with the same data.
    ///
    /// # Errors
    /// When etcd does not answer again.
    pub fn restart(&mut self) -> Result<()> {
        self.process.restart()?;
        self.wait()
    }

    /// Pauses etcd (SIGSTOP).
    pub fn freeze(&self) {
        self.process.signal(Signal::SIGSTOP);
    }

    /// Resumes etcd (SIGCONT).
    pub fn thaw(&self) {
        self.process.signal(Signal::SIGCONT);
    }

    fn revision(&self) -> Result<String> {
        let status = self.ask("/v3/maintenance/status", &json!({}))?;
        let revision = status["header"]["revision"].as_str().context("etcd names no revision")?;
        Ok(revision.to_owned())
    }

    fn wait(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = self.revision() {
            self.process.still_runs()?;
            if Instant::now() > deadline {
                bail!("etcd does not answer: {error:#}\n{}", self.process.log_end());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Sends a request to etcd's JSON gateway and returns the answer.
    fn ask(&self, path: &str, body: &Value) -> Result<Value> {
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        let connected = match &self.netns {
            Some(netns) => netns.run(connect)?,
            None => connect(),
        };
        let stream = connected.context("no connection to etcd")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let body = body.to_string();
        let (code, answer) = exchange(stream, ("POST", path), ("application/json", &body))?;
        if code != 200 {
            bail!("etcd refuses {path}: {answer}");
        }
        serde_json::from_str(&answer).context("etcd answers no JSON")
    }
}
