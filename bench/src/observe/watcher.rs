//! `netpold observe --follow` as a process, and its output.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use netpold_api::observe::ObserveLine;
use netpold_client::socket::parse_answer;
use netpold_core::lock::lock;
use netpold_testbed::without_twins;

/// Name of the pod that sends single packets.
pub(super) const SINGLE: &str = "single";

/// Counters of the output so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WatcherCounts {
    pub(super) events: u64,
    /// Drops without an event.
    pub(super) lost: u64,
    /// Events without policy and rule.
    pub(super) unattributed: u64,
}

#[derive(Debug, Default)]
struct WatcherOutput {
    seen: WatcherCounts,
    /// Times at which packets of the pod with single packets were shown, by destination port.
    shown: BTreeMap<u16, Instant>,
}

/// The running command; killed on drop.
pub(super) struct Watcher {
    child: Child,
    said: Arc<Mutex<WatcherOutput>>,
}

impl Watcher {
    /// Starts the command for an agent.
    ///
    /// # Errors
    /// The binary cannot be run.
    pub(super) fn new(binary: &Path, socket: &Path) -> Result<Self> {
        let mut command = Command::new(binary);
        without_twins(&mut command).args(["observe", "--follow", "-o", "json", "--socket"]);
        let command = command.arg(socket).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| binary.display().to_string())?;
        let output = child.stdout.take().context("the command has no output")?;
        let said = Arc::<Mutex<WatcherOutput>>::default();
        let to = Arc::clone(&said);
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                take_in(&line, &to);
            }
        });
        Ok(Self { child, said })
    }

    /// Process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Counters of the output so far.
    pub(super) fn seen(&self) -> WatcherCounts {
        lock(&self.said).seen
    }

    /// Times at which packets of the pod with single packets were shown, by destination port.
    pub(super) fn shown(&self) -> BTreeMap<u16, Instant> {
        lock(&self.said).shown.clone()
    }
}

fn take_in(line: &str, said: &Mutex<WatcherOutput>) {
    let Ok(line) = parse_answer(line) else { return };
    let mut said = lock(said);
    match line {
        ObserveLine::Event(event) => {
            said.seen.events += 1;
            let is_single = event.pod.as_ref().is_some_and(|pod| pod.name == SINGLE);
            if let (true, Some(port)) = (is_single, event.port) {
                said.shown.insert(port, Instant::now());
            }
        }
        ObserveLine::Lost { lost, .. } => {
            said.seen.lost += lost.kernel + lost.slow;
            said.seen.unattributed += lost.unattributed;
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
