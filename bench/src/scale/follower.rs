//! An agent without a kernel: the agent's own source and compiler, with tables in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use netpold_api::source::SourceStatus;
use netpold_core::compile::Compiler;
use netpold_core::model::{Change, Interface, Key, Pod};
use netpold_core::ops::{Capacity, TableWriter};
use netpold_core::options::Options;
use netpold_kube::cluster::{Settings, watch};
use netpold_testkit::memory::MemoryTables;
use tokio::runtime::Runtime;
use tokio::sync::watch::Receiver;

/// Label by which policies of the simulated cluster select peers.
const LABEL: &str = "tier";

/// State of an object in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InForce {
    /// Value of the pod's label `tier`.
    Pod(String),
    /// Whether the policy has an ingress rule with a peer.
    Policy(bool),
}

/// Times from which on states of objects have been in force.
type Times = HashMap<Key, (InForce, Instant)>;

/// An agent that compiles all objects for its node.
pub(super) struct Follower {
    pub(super) status: Receiver<SourceStatus>,
    times: Arc<Mutex<Times>>,
}

impl Follower {
    /// Starts an agent.
    pub(super) fn start(runtime: &Runtime, settings: Settings) -> Result<Self> {
        let node = settings.node.clone();
        let (mut source, events) = runtime.block_on(watch(settings))?;
        let (status, times) = (source.status.clone(), Arc::new(Mutex::new(Times::new())));
        let seen = Arc::clone(&times);
        std::thread::spawn(move || {
            let _events = events;
            let mut tables = Tables::new(node);
            while let Some(batch) = source.batches.blocking_recv() {
                let changed: Vec<(Key, InForce)> = batch.changes.iter().filter_map(state).collect();
                if let Err(error) = tables.enforce(batch.changes, batch.in_sync) {
                    crate::figures::say(&format!("NOT MEASURED: {error:#}"));
                    return;
                }
                let now = Instant::now();
                let mut times = seen.lock().unwrap_or_else(PoisonError::into_inner);
                for (key, state) in changed {
                    // A repetition of a state is not its beginning.
                    if times.get(&key).is_none_or(|(before, _)| *before != state) {
                        times.insert(key, (state, now));
                    }
                }
            }
        });
        Ok(Self { status, times })
    }

    /// Returns the time from which on an object's state has been in force.
    fn time(&self, key: &Key, state: &InForce) -> Option<Instant> {
        let times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.get(key).filter(|(it, _)| it == state).map(|(_, at)| *at)
    }

    /// Returns the time from `since` until the object's state is in force.
    pub(super) fn wait(
        &self,
        (key, state): (&Key, &InForce),
        since: Instant,
        patience: Duration,
    ) -> Result<Duration> {
        loop {
            if let Some(at) = self.time(key, state) {
                return Ok(at.saturating_duration_since(since));
            }
            ensure!(since.elapsed() < patience, "{key} is not in force after {patience:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Returns the measured part of an object's state.
#[expect(clippy::wildcard_enum_match_arm, reason = "of the many changes, the ones this is about")]
fn state(change: &Change) -> Option<(Key, InForce)> {
    match change {
        Change::Pod(pod) => {
            let tier = pod.labels.get(LABEL).map(|tier| tier.to_string()).unwrap_or_default();
            Some((pod.key.clone(), InForce::Pod(tier)))
        }
        Change::Policy(policy) => {
            let has_peer = policy.ingress.iter().flatten().any(|rule| rule.peers.is_some());
            Some((policy.key.clone(), InForce::Policy(has_peer)))
        }
        _ => None,
    }
}

/// Compiled tables of a node.
struct Tables {
    node: String,
    compiler: Compiler,
    tables: MemoryTables,
    interfaces: u32,
}

impl Tables {
    fn new(node: String) -> Self {
        let capacity = Capacity {
            bitmaps: 1 << 15,
            row_blocks: 1 << 16,
            rows: 1 << 11,
            trie_blocks: 1 << 18,
            hosts6: 1 << 17,
            cidrs6: 1 << 16,
            names: 1 << 14,
        };
        let options = Options { node: node.clone().into(), capacity, ..Options::default() };
        let compiler = Compiler::new(options);
        Self { node, compiler, tables: MemoryTables::new(), interfaces: 0 }
    }

    /// Puts changes into force, once everything is known.
    fn enforce(&mut self, changes: Vec<Change>, is_in_sync: bool) -> Result<()> {
        for change in changes {
            if let Change::Pod(Pod { node, addresses, .. }) = &change
                && **node == *self.node
                && !is_in_sync
            {
                self.interfaces += 1;
                let (index, addresses) = (self.interfaces, addresses.clone());
                let interface =
                    Interface { index, incarnation: 1, addresses, ..Interface::default() };
                self.compiler.ingest(Change::Interface(interface));
            }
            self.compiler.ingest(change);
        }
        if is_in_sync {
            for op in self.compiler.update()? {
                self.tables.write(&op)?;
            }
            self.compiler.grace_passed();
        }
        Ok(())
    }
}
