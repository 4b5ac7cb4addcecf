//! Records kept in files for the next agent: the last good state, the use of rules, recorded flows.

use std::path::Path;
use std::sync::Mutex;

use netpold_core::lock::lock;
use netpold_kube::state::SnapshotWriter;
use tokio::task::block_in_place;

use netpold_engine::Engine;
use netpold_engine::kept::{self, RecordKeeper};
use netpold_engine::learn;
use netpold_engine::rule_use::{self, RuleUse};

/// Writers of the kept records.
pub(super) struct RecordWriters {
    node: String,
    state: SnapshotWriter,
    rule_use: RecordKeeper,
    flows: RecordKeeper,
}

impl RecordWriters {
    /// Resumes the records of an earlier agent of this node; `state` is the path of the last good state.
    pub(super) fn resume(state: &Path, node: &str, rule_use: &mut RuleUse) -> Self {
        if let Some(saved) = kept::read(state, rule_use::FILE, node) {
            rule_use.resume(saved);
        }
        if let Some(saved) = kept::read(state, learn::FILE, node) {
            rule_use.resume_flows(saved);
        }
        Self {
            node: node.to_owned(),
            state: SnapshotWriter::new(state.to_owned(), node.to_owned()),
            rule_use: RecordKeeper::new(state, rule_use::FILE, node.to_owned()),
            flows: RecordKeeper::new(state, learn::FILE, node.to_owned()),
        }
    }

    /// Writes the use of rules and the flows, if due.
    pub(super) fn write_counted(&mut self, rule_use: &RuleUse) {
        if self.rule_use.is_due() {
            self.rule_use.write(rule_use.saved());
        }
        if self.flows.is_due() {
            self.flows.write(rule_use.kept_flows(&self.node));
        }
    }

    /// Writes the last good state if due, unless the enforced state is the last good one (`restored`).
    pub(super) async fn write_state(&mut self, engine: &Mutex<Engine>, restored: bool) {
        let problem = self.state.collect_result().await;
        if restored {
            return;
        }
        let due = {
            let mut engine = lock(engine);
            engine.state_problem(problem);
            block_in_place(|| engine.last_good(|revision| self.state.is_due(revision)))
        };
        if let Some((revision, objects)) = due {
            self.state.write(revision, objects);
        }
    }

    /// Writes the use of rules and the flows at the agent's end.
    pub(super) async fn finish(self, engine: &Mutex<Engine>) {
        let (rule_use, flows) = {
            let engine = lock(engine);
            (engine.rule_use().saved(), engine.rule_use().kept_flows(&self.node))
        };
        self.rule_use.finish(rule_use).await;
        self.flows.finish(flows).await;
    }
}
