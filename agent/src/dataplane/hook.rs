//! The hooks of an interface, and what is found attached there.

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
    /// As the pod sees it.
    pub direction: Direction,
}

impl Hook {
    /// Attach type of `bpf(2)` links there.
    pub(super) fn tcx_type(self) -> u32 {
        match self.direction {
            Direction::Egress => BPF_TCX_INGRESS,
            Direction::Ingress => BPF_TCX_EGRESS,
        }
    }

    /// Whether a link is there, and not at a former interface with this index.
    pub(super) fn has(self, link: LinkAt) -> bool {
        (link.ifindex, link.attach_type) == (self.ifindex, self.tcx_type())
    }

    /// The name of its link's pin.
    pub(super) fn file_name(self) -> String {
        format!("{}-{}", self.ifindex, self.direction)
    }

    /// The hook that a pin's name says.
    pub(super) fn from_file_name(name: &str) -> Option<Self> {
        let (ifindex, direction) = name.split_once('-')?;
        let direction = Direction::BOTH.into_iter().find(|d| d.to_string() == direction)?;
        let hook = Self { ifindex: ifindex.parse().ok()?, direction };
        (hook.file_name() == name).then_some(hook)
    }
}

/// How programs are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Links at the TCX hooks.
    Tcx,
    /// Filters below a clsact qdisc.
    Clsact,
}

impl Mode {
    /// The better one of those the kernel has: asked, not guessed from its version.
    #[must_use]
    pub fn probe() -> Self {
        // Every namespace has a loopback interface with index 1.
        match sys::programs(1, BPF_TCX_INGRESS) {
            Ok(_) => Self::Tcx,
            Err(_) => Self::Clsact,
        }
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tcx => "tcx",
            Self::Clsact => "clsact",
        })
    }
}

/// An attachment that was found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attached {
    /// Where.
    pub hook: Hook,
    /// Identifier of the program that runs there.
    pub program: u32,
    /// Identifiers of the programs that packets meet before it; 0: of a filter without program.
    pub ahead: Vec<u32>,
}
