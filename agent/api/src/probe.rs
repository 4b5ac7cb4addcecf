//! A node's verdicts on a traffic probe.

use std::net::IpAddr;

use netpold_core::explain::Verdict;
use netpold_core::model::{Direction, Key};
use serde::{Deserialize, Serialize};

/// Path of a probe for a [`NodeAnswer`].
pub const EXPLAIN_REQUEST: &str = "/explain";

/// Verdict of one source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceVerdict {
    /// The packet passes.
    Allow,
    /// The packet is dropped.
    Deny,
    /// The verdict is unknown.
    #[default]
    Unknown,
}

impl From<Verdict> for SourceVerdict {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Allow => Self::Allow,
            Verdict::Deny => Self::Deny,
            Verdict::Unknown => Self::Unknown,
        }
    }
}

impl SourceVerdict {
    /// Returns the verdict for a packet that passes or not.
    #[must_use]
    pub const fn from_passes(passes: bool) -> Self {
        if passes { Self::Allow } else { Self::Deny }
    }

    /// Returns the verb for the verdict.
    #[must_use]
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Unknown => "cannot tell",
        }
    }
}

/// Answer of a node to a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAnswer {
    /// Name of the node.
    pub node: String,
    /// Whether the policy of the objects is in force; else the tables may lag behind the objects.
    pub in_force: bool,
    /// Verdict of the objects for the whole path.
    pub verdict: SourceVerdict,
    /// Reason why the verdict is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Explanation from the objects, in lines.
    pub lines: Vec<String>,
    /// Judgements at this node's pods on the path.
    pub ends: Vec<EndVerdict>,
    /// Number of Service backends without a judgement.
    #[serde(default)]
    pub left_out: usize,
}

/// Judgement of one direction at one pod of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndVerdict {
    /// Pod of the judgement.
    pub pod: Key,
    /// Direction from the pod's view.
    pub direction: Direction,
    /// Local address, if it is on a secondary network of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<IpAddr>,
    /// Remote address.
    pub remote: IpAddr,
    /// Destination port; 0 where the protocol has none.
    pub port: u16,
    /// Verdict of the objects.
    pub objects: SourceVerdict,
    /// Verdict of the compiled tables.
    pub tables: SourceVerdict,
    /// Reason of the tables' verdict, as `netpold_ebpf::reason::Reason::as_str`.
    #[serde(default)]
    pub tables_reason: String,
    /// Verdict of the kernel's program.
    pub kernel: SourceVerdict,
    /// Reason why the kernel's verdict is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl EndVerdict {
    /// Returns whether two of the three verdicts contradict each other.
    #[must_use]
    pub fn differs(&self) -> bool {
        let all = [self.objects, self.tables, self.kernel];
        all.contains(&SourceVerdict::Allow) && all.contains(&SourceVerdict::Deny)
    }

    /// Renders the judgement in one line.
    #[must_use]
    pub fn line(&self) -> String {
        let Self { pod, direction, remote, objects, tables, tables_reason, kernel, .. } = self;
        let preposition = match direction {
            Direction::Ingress => "from",
            Direction::Egress => "to",
        };
        let local = self.local.map(|local| format!(" at {local}")).unwrap_or_default();
        let port = if self.port == 0 { String::new() } else { format!(" port {}", self.port) };
        let problem = self.problem.as_ref().map(|problem| format!(": {problem}"));
        format!(
            "{direction} of {pod}{local} {preposition} {remote}{port}: objects {}, tables {} ({tables_reason}), \
             kernel {}{}",
            objects.verb(),
            tables.verb(),
            kernel.verb(),
            problem.unwrap_or_default()
        )
    }
}

impl NodeAnswer {
    /// Returns the judgements with contradicting verdicts.
    pub fn differences(&self) -> impl Iterator<Item = &EndVerdict> {
        self.ends.iter().filter(|end| end.differs())
    }
}
