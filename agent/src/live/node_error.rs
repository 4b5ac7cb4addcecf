//! Why a node's agent gives no answer.

use std::collections::BTreeMap;
use std::time::Duration;

use thiserror::Error;

use crate::printable::{cut, printable};

/// Most nodes that are named for one reason.
const NAMED: usize = 20;
/// Longest reason that is shown, in bytes.
const REASON_MAX: usize = 1024;

/// Why a node's agent gives no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NodeError {
    /// The node has no pod of an agent.
    #[error(
        "there is no agent: `kubectl -n {namespace} describe ds netpold` says why no pod is made there"
    )]
    NoAgent {
        /// Where agents are looked for.
        namespace: String,
    },
    /// The agent's container does not run.
    #[error("the agent does not run: {why}")]
    NotRunning {
        /// In the API's words.
        why: String,
    },
    /// RBAC does not allow it.
    #[error(
        "not allowed: {words}; the verbs get and create of pods/exec in namespace {namespace} are needed \
         (deploy/access.yaml)"
    )]
    Forbidden {
        /// Of the API server.
        words: String,
        /// Where the agents' pods are.
        namespace: String,
    },
    /// The API server or the kubelet does not carry it out.
    #[error("{words}")]
    Refused {
        /// What was tried, and what the server says.
        words: String,
    },
    /// Nothing came in time.
    #[error("no answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// More came than is taken.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
    /// Its lines are not followed.
    #[error("no more than {0} agents are followed at once")]
    TooMany(usize),
    /// The connection ended before the command did.
    #[error("the connection broke off before the answer was complete")]
    BrokenOff,
    /// The command failed.
    #[error("the command failed{}: {text}", .code.map(|code| format!(" with status {code}")).unwrap_or_default())]
    Failed {
        /// Its exit status, where it ran.
        code: Option<i32>,
        /// What it wrote on standard error, the beginning.
        text: String,
    },
    /// The answer is not what was asked for.
    #[error("its answer is not understood; is the agent of another version? {0}")]
    NotUnderstood(String),
}

/// Says on standard error which nodes gave no answer, those of one reason together.
pub fn report(failures: &[(String, NodeError)]) {
    let mut reasons: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (node, error) in failures {
        reasons.entry(cut(error.to_string(), REASON_MAX)).or_default().push(node);
    }
    for (reason, nodes) in reasons {
        anstream::eprintln!("netpold: {}: {}", printable(&named(&nodes)), printable(&reason));
    }
}

fn named(nodes: &[&str]) -> String {
    let first = &nodes[..nodes.len().min(NAMED)];
    let word = if nodes.len() == 1 { "node" } else { "nodes" };
    match nodes.len() - first.len() {
        0 => format!("{word} {}", first.join(", ")),
        more => format!("{word} {} and {more} more", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_nodes_are_counted() {
        let names: Vec<String> = (0..25).map(|n| format!("n{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(named(&names[..1]), "node n0");
        assert_eq!(named(&names[..2]), "nodes n0, n1");
        assert!(named(&names).ends_with("n19 and 5 more"), "{}", named(&names));
    }
}
