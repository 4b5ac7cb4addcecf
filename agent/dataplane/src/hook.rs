//! Hooks of an interface, and attachments there.

use netpold_core::model::Direction;

use crate::bpf::sys::{self, LinkAt};

/// `BPF_TCX_INGRESS` and `BPF_TCX_EGRESS` of `enum bpf_attach_type`.
const BPF_TCX_INGRESS: u32 = 46;
const BPF_TCX_EGRESS: u32 = 47;

/// One hook of one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hook {
    /// Interface index.
    pub ifindex: u32,
    /// Direction, as the pod sees it.
    pub direction: Direction,
}

impl Hook {
    /// Attach type of bpf(2) links at the hook.
    pub(super) fn tcx_type(self) -> u32 {
        match self.direction {
            Direction::Egress => BPF_TCX_INGRESS,
            Direction::Ingress => BPF_TCX_EGRESS,
        }
    }

    /// Whether a link is at this hook, and not at a former interface with this index.
    pub(super) fn has(self, link: LinkAt) -> bool {
        (link.ifindex, link.attach_type) == (self.ifindex, self.tcx_type())
    }

    /// Pin name of the hook's link.
    pub(super) fn file_name(self) -> String {
        format!("{}-{}", self.ifindex, self.direction)
    }

    /// Hook of a pin name.
    pub(super) fn from_file_name(name: &str) -> Option<Self> {
        let (ifindex, direction) = name.split_once('-')?;
        let direction = Direction::BOTH.into_iter().find(|d| d.to_string() == direction)?;
        let hook = Self { ifindex: ifindex.parse().ok()?, direction };
        (hook.file_name() == name).then_some(hook)
    }
}

/// Mode of attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMode {
    /// Links at the TCX hooks.
    Tcx,
    /// Filters below a clsact qdisc.
    Clsact,
}

impl AttachMode {
    /// The best mode of this kernel, probed instead of derived from its version.
    #[must_use]
    pub fn probe() -> Self {
        // Every namespace has a loopback interface with index 1.
        match sys::programs(1, BPF_TCX_INGRESS) {
            Ok(_) => Self::Tcx,
            Err(_) => Self::Clsact,
        }
    }
}

impl std::fmt::Display for AttachMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tcx => "tcx",
            Self::Clsact => "clsact",
        })
    }
}

/// An attachment found at a hook.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attached {
    /// Hook of the attachment.
    pub hook: Hook,
    /// Identifier of the attached program.
    pub program: u32,
    /// Identifiers of the programs that run before it; 0: a filter without program.
    pub ahead: Vec<u32>,
}
