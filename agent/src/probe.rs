//! What a node says of a question about traffic, from three sides: the objects, the tables compiled of them, and the
//! kernel's programs with the tables that they have. Where any two differ, something is wrong.
//!
//! The programs are asked with a packet, by `BPF_PROG_TEST_RUN`: it goes nowhere, and comes from port 0, which no
//! connection has. What it may leave, is taken away again: a flow of UDP or of a protocol without ports is
//! removed (TCP, SCTP and ICMP are asked about with packets that begin none), a drop is left out of the counters that
//! the agent shows, and its event is not told. The counters in the kernel keep it, so the next agent shows it.

pub mod packet;
pub mod tables;

use std::net::IpAddr;

use netpold_core::explain::Verdict;
use netpold_core::model::{Direction, Key};
use serde::{Deserialize, Serialize};

/// The name of a request for a [`NodeAnswer`] on the control socket, with a probe as JSON.
pub const EXPLAIN_REQUEST: &str = "explain";

/// A verdict of one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Said {
    /// It passes.
    Allow,
    /// It is dropped.
    Deny,
    /// It cannot be told.
    #[default]
    Unknown,
}

impl From<Verdict> for Said {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Allow => Self::Allow,
            Verdict::Deny => Self::Deny,
            Verdict::Unknown => Self::Unknown,
        }
    }
}

impl Said {
    /// Of whether it passes.
    #[must_use]
    pub const fn of(passes: bool) -> Self {
        if passes { Self::Allow } else { Self::Deny }
    }

    /// What it does.
    #[must_use]
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Unknown => "cannot tell",
        }
    }
}

/// What a node says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAnswer {
    /// Name of the node.
    pub node: String,
    /// What the objects say is in force; else the tables may be behind them.
    pub in_force: bool,
    /// What the objects say of the whole way.
    pub verdict: Said,
    /// Why it cannot be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The objects' answer, in words.
    pub lines: Vec<String>,
    /// The interfaces of this node's pods on the way.
    pub ends: Vec<End>,
    /// Backends that were not asked about.
    #[serde(default)]
    pub left_out: usize,
}

/// One direction at one pod of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The pod.
    pub pod: Key,
    /// As the pod sees it.
    pub direction: Direction,
    /// The other side.
    pub remote: IpAddr,
    /// Destination port; 0 where the protocol has none.
    pub port: u16,
    /// What the objects say.
    pub objects: Said,
    /// What the compiled tables say.
    pub tables: Said,
    /// Why they do, as `netpold_ebpf::reason::Reason::as_str`.
    #[serde(default)]
    pub tables_reason: String,
    /// What the kernel's program says.
    pub kernel: Said,
    /// Why that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl End {
    /// Whether two of the three say different things.
    #[must_use]
    pub fn differs(&self) -> bool {
        let all = [self.objects, self.tables, self.kernel];
        all.contains(&Said::Allow) && all.contains(&Said::Deny)
    }

    /// In one line.
    #[must_use]
    pub fn line(&self) -> String {
        let Self { pod, direction, remote, objects, tables, tables_reason, kernel, .. } = self;
        let preposition = match direction {
            Direction::Ingress => "from",
            Direction::Egress => "to",
        };
        let port = if self.port == 0 { String::new() } else { format!(" port {}", self.port) };
        let problem = self.problem.as_ref().map(|problem| format!(": {problem}"));
        format!(
            "{direction} of {pod} {preposition} {remote}{port}: objects {}, tables {} ({tables_reason}), \
             kernel {}{}",
            objects.verb(),
            tables.verb(),
            kernel.verb(),
            problem.unwrap_or_default()
        )
    }
}

impl NodeAnswer {
    /// Where two sides say different things.
    pub fn differences(&self) -> impl Iterator<Item = &End> {
        self.ends.iter().filter(|end| end.differs())
    }
}
