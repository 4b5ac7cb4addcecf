//! `netpold explain --nodes`: verdicts of the agents of the pods' nodes, beside the cluster's objects.

use std::collections::BTreeSet;

use anyhow::Result;
use netpold_api::probe::{EndVerdict, NodeAnswer, SourceVerdict};
use netpold_client::live::{self, AgentAnswers, Agents, ClusterArgs};
use netpold_client::printable_document::printable_document;
use netpold_core::cluster::Cluster;
use netpold_core::explain::{Explanation, Verdict};
use netpold_core::model::{Direction, Key, Pod};
use netpold_core::probe::{Party, Probe};
use serde_json::{Map, Value, json};

use super::node;

/// Answers of the nodes' agents.
pub(super) struct NodeAnswers {
    /// Verdict of the cluster's objects.
    objects: SourceVerdict,
    said: AgentAnswers<NodeAnswer>,
}

/// Asks the agents of the pods' nodes. Agents that do not answer are reported on standard error.
///
/// # Errors
/// No agent can be asked.
pub(super) fn request_answers(
    args: &ClusterArgs,
    cluster: &Cluster,
    probe: &Probe,
    answer: &Explanation,
) -> Result<NodeAnswers> {
    let nodes = nodes(cluster, probe, answer);
    let (from, to) = (probe.from.to_string(), probe.to.to_string());
    let (protocol, port) = (probe.protocol.to_string(), probe.port.to_string());
    let question = ["explain", "-o", "json", "--from", &from, "--to", &to, "--protocol", &protocol];
    let port: &[&str] = if probe.protocol.has_ports() { &["--port", &port] } else { &[] };
    let question = [&question, port].concat();
    let said = live::block_on(async {
        let agents = Agents::find(args).await?.on_nodes(&nodes);
        Ok(agents.answers(&question).await)
    })?;
    live::report(&said.failures);
    Ok(NodeAnswers { objects: answer.verdict.into(), said })
}

/// Returns the nodes of the pods that send or receive the traffic.
fn nodes(cluster: &Cluster, probe: &Probe, answer: &Explanation) -> BTreeSet<String> {
    let named = |key: &Key| cluster.pods().get(key).map(|pod| &**pod);
    let party = |party: &Party| match party {
        Party::Pod(key) => named(key),
        Party::Address(address) => cluster.owner(*address).map(|pod| &**pod),
        Party::Service(_) => None,
    };
    let backends = answer.backends.iter().filter_map(|backend| named(backend.pod.as_ref()?));
    let pods = [&probe.from, &probe.to].into_iter().filter_map(party).chain(backends);
    let node = |pod: &Pod| pod.node.as_str().to_owned();
    pods.map(node).filter(|node| !node.is_empty()).collect()
}

impl NodeAnswers {
    fn answers(&self) -> impl Iterator<Item = &NodeAnswer> {
        self.said.answers.iter().map(|(_, answer)| answer)
    }

    /// Returns the nodes with the opposite verdict: their agents have other objects.
    fn others(&self) -> impl Iterator<Item = &NodeAnswer> {
        let opposite = |said| {
            matches!(
                (self.objects, said),
                (SourceVerdict::Allow, SourceVerdict::Deny)
                    | (SourceVerdict::Deny, SourceVerdict::Allow)
            )
        };
        self.answers().filter(move |answer| opposite(answer.verdict))
    }

    /// Returns whether any two sources disagree.
    pub(super) fn differ(&self) -> bool {
        self.others().next().is_some()
            || self.answers().any(|answer| answer.differences().next().is_some())
    }

    /// Returns the answer of the sender's node, if the cluster's objects do not decide and that node does.
    pub(super) fn deciding(&self, sender: Option<&Key>) -> Option<(Verdict, &NodeAnswer)> {
        let sends = |answer: &&NodeAnswer| {
            let egress =
                |end: &EndVerdict| end.direction == Direction::Egress && Some(&end.pod) == sender;
            answer.ends.iter().any(egress)
        };
        let answer =
            self.answers().filter(|_| self.objects == SourceVerdict::Unknown).find(sends)?;
        let verdict = match answer.verdict {
            SourceVerdict::Allow => Verdict::Allow,
            SourceVerdict::Deny => Verdict::Deny,
            SourceVerdict::Unknown => return None,
        };
        Some((verdict, answer))
    }

    pub(super) fn print_differences(&self) {
        for answer in self.others() {
            node::print_difference(&format!(
                "node {}: the agent's objects {}, the cluster's objects {}",
                answer.node,
                answer.verdict.verb(),
                self.objects.verb()
            ));
        }
        self.answers().for_each(node::print_differences);
    }

    pub(super) fn print_others(&self) {
        self.answers().for_each(node::print_others);
    }

    /// Adds the agents' answers to a JSON document.
    pub(super) fn describe(&self, document: &mut Map<String, Value>) -> Result<()> {
        let answers: Vec<_> = self.answers().collect();
        document.insert("nodes".to_owned(), printable_document(&answers)?);
        document.insert("unanswered".to_owned(), json!(self.said.unanswered()));
        document.insert("differs".to_owned(), json!(self.differ()));
        Ok(())
    }
}
