//! Reasons why a node's agent gives no answer.

use std::collections::BTreeMap;
use std::time::Duration;

use thiserror::Error;

use netpold_core::first_names::first_names;
use netpold_core::printable::{cut, printable};

/// Most nodes named per reason.
const NAMED: usize = 20;
/// Longest shown reason, in bytes.
const REASON_MAX: usize = 1024;

/// Reason why a node's agent gives no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NodeError {
    /// The node has no agent's pod.
    #[error(
        "no agent: `kubectl -n {namespace} describe ds netpold` shows why its pod was not created"
    )]
    NoAgent {
        /// Namespace that was searched.
        namespace: String,
    },
    /// The agent's container does not run.
    #[error("the agent does not run: {why}")]
    NotRunning {
        /// Reason as the API reports it.
        why: String,
    },
    /// RBAC forbids the exec.
    #[error(
        "not allowed: {words}; get and create on pods/exec in namespace {namespace} are required (deploy/access.yaml)"
    )]
    Forbidden {
        /// Message of the API server.
        words: String,
        /// Namespace of the agents' pods.
        namespace: String,
    },
    /// The API server or the kubelet does not run the command.
    #[error("{words}")]
    Refused {
        /// Attempted action, and the server's message.
        words: String,
    },
    /// No answer within the timeout.
    #[error("no answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// The answer exceeds the limit.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
    /// More agents than the limit of followed ones.
    #[error("at most {0} agents are followed at once")]
    TooMany(usize),
    /// The connection ended before the command did.
    #[error("the connection ended before the answer was complete")]
    BrokenOff,
    /// The command failed.
    #[error("the command failed{}: {text}", .code.map(|code| format!(" with status {code}")).unwrap_or_default())]
    Failed {
        /// Exit status, if the command ran.
        code: Option<i32>,
        /// Beginning of standard error.
        text: String,
    },
    /// The answer cannot be parsed.
    #[error("cannot parse the answer; is the agent of another version? {0}")]
    NotUnderstood(String),
}

/// Reports on standard error the nodes that gave no answer, grouped by reason.
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
    let word = if nodes.len() == 1 { "node" } else { "nodes" };
    format!("{word} {}", first_names(nodes.iter(), NAMED))
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
