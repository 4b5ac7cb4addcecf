//! Policies as written, with file and line.

use std::sync::Arc;

use netpold_core::model::Direction;
use serde::Deserialize;

use netpold_kube::document::{DocumentNode, Value};

/// Prefix of netpold's annotations, and the annotations of policies.
const PREFIX: &str = "netpold.io/";
const ANNOTATIONS: [&str; 2] = ["deny", "enforcement"];

/// File and line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLine {
    /// Name of the file below the directory.
    pub file: Arc<str>,
    /// Line, from 1.
    pub line: u32,
}

impl std::fmt::Display for FileLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// NetworkPolicy or ClusterNetworkPolicy as written.
#[derive(Clone, Debug, Default)]
pub struct PolicyManifest {
    spec: RawPolicySpec,
    /// File name, and the object in it.
    text: Option<(Arc<str>, DocumentNode)>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RawPolicySpec {
    policy_types: Option<Vec<String>>,
    ingress: Option<Vec<RawRule>>,
    egress: Option<Vec<RawRule>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct RawRule {
    from: Option<Vec<RawPeer>>,
    to: Option<Vec<RawPeer>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawPeer {
    ip_block: Option<RawBlock>,
    /// `networks` of a ClusterNetworkPolicy's peer.
    networks: Option<Vec<String>>,
}

/// `ipBlock` as written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct RawBlock {
    cidr: String,
    except: Option<Vec<String>>,
}

/// Policy object reduced to its `spec`.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawPolicy {
    pub(super) spec: RawPolicySpec,
}

impl PolicyManifest {
    pub(super) fn new(spec: RawPolicySpec, text: Option<(Arc<str>, DocumentNode)>) -> Self {
        Self { spec, text }
    }

    /// Returns file and line of a field, such as `spec.ingress[0]`; `None` for an object of the API server.
    #[must_use]
    pub fn source(&self, path: &str) -> Option<FileLine> {
        let (file, node) = self.text.as_ref()?;
        let line = if path.is_empty() { node.line } else { node.line_of(path) };
        Some(FileLine { file: Arc::clone(file), line })
    }

    /// Returns the paths of netpold's annotations and labels that a policy cannot have.
    pub fn unknown_keys(&self) -> impl Iterator<Item = String> {
        let metadata = self.text.as_ref().and_then(|(_, node)| node.get("metadata"));
        ["annotations", "labels"].into_iter().flat_map(move |field| {
            let entries =
                match metadata.and_then(|metadata| metadata.get(field)).map(|it| &it.value) {
                    Some(Value::Map(entries)) => &entries[..],
                    _ => &[],
                };
            let own = entries.iter().filter(|entry| entry.key.starts_with(PREFIX));
            let unknown = own.filter(move |entry| {
                field != "annotations" || !ANNOTATIONS.contains(&&entry.key[PREFIX.len()..])
            });
            unknown.map(move |entry| format!("metadata.{field}.{}", entry.key))
        })
    }

    /// Counts the rules of a direction that `policyTypes` lacks: zero for an empty list. `None` if there is no such
    /// list, or if the policy isolates the direction.
    #[must_use]
    pub fn void_rules(&self, direction: Direction) -> Option<usize> {
        let (rules, name) = match direction {
            Direction::Ingress => (&self.spec.ingress, "Ingress"),
            Direction::Egress => (&self.spec.egress, "Egress"),
        };
        let rules = rules.as_ref()?.len();
        let types = self.spec.policy_types.as_deref().unwrap_or_default();
        let isolates = match types {
            [] => direction == Direction::Ingress || rules > 0,
            types => types.iter().any(|it| it == name || it != "Ingress" && it != "Egress"),
        };
        (!isolates).then_some(rules)
    }

    /// Returns the paths of empty lists of peers.
    pub fn empty_peers(&self, direction: Direction) -> impl Iterator<Item = String> {
        self.rules(direction).filter_map(move |(number, rule)| {
            let (side, peers) = rule.peers(direction);
            let path = format!("spec.{direction}[{number}].{side}");
            peers.is_some_and(Vec::is_empty).then_some(path)
        })
    }

    fn rules(&self, direction: Direction) -> impl Iterator<Item = (usize, &RawRule)> {
        let rules = match direction {
            Direction::Ingress => &self.spec.ingress,
            Direction::Egress => &self.spec.egress,
        };
        rules.iter().flatten().enumerate()
    }

    /// Returns every CIDR with its path.
    pub fn cidrs(&self) -> impl Iterator<Item = (String, &str)> {
        Direction::BOTH.into_iter().flat_map(|direction| {
            self.rules(direction).flat_map(move |(number, rule)| {
                let (side, peers) = rule.peers(direction);
                let peers = peers.into_iter().flatten().enumerate();
                peers.flat_map(move |(peer, raw)| {
                    let path = format!("spec.{direction}[{number}].{side}[{peer}]");
                    raw.cidrs(&path)
                })
            })
        })
    }
}

impl RawRule {
    /// Returns the name and the content of the list of peers.
    fn peers(&self, direction: Direction) -> (&'static str, Option<&Vec<RawPeer>>) {
        match direction {
            Direction::Ingress => ("from", self.from.as_ref()),
            Direction::Egress => ("to", self.to.as_ref()),
        }
    }
}

impl RawPeer {
    fn cidrs(&self, path: &str) -> Vec<(String, &str)> {
        let mut found = Vec::new();
        if let Some(block) = &self.ip_block {
            found.push((format!("{path}.ipBlock.cidr"), block.cidr.as_str()));
            for (number, except) in block.except.iter().flatten().enumerate() {
                found.push((format!("{path}.ipBlock.except[{number}]"), except.as_str()));
            }
        }
        for (number, network) in self.networks.iter().flatten().enumerate() {
            found.push((format!("{path}.networks[{number}]"), network.as_str()));
        }
        found
    }
}
