//! Nodes and pods as network namespaces, with real servers and probes.
//!
//! ```text
//! Node (namespace, forwarding)          Node
//!  ├─ veth ── Pod (namespace)            ├─ cni0 ─┬─ veth ── Pod
//!  ├─ veth ── Pod                        │        └─ veth ── Pod
//!  └─ link ──────────────────────────────┘
//!    Cni::Ptp: host routes                 Cni::Bridge
//! ```
//!
//! All traffic stays in namespaces without external links, which the process creates itself. They are removed when
//! their owner is dropped, also on panic, and [`sweep()`] removes those of a killed process. The crate uses no part of
//! netpold, so the observations of tests do not depend on the code under test.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use netpold_testbed::{Cni, PodSpec, ProbeProtocol, TestNode, link_nodes};
//! use std::time::Duration;
//!
//! let a = TestNode::new("a", Cni::Ptp, "10.1.1.0/24", "fd00:1:1::/64")?;
//! let b = TestNode::new("b", Cni::Bridge, "10.1.2.0/24", "fd00:1:2::/64")?;
//! link_nodes(&a, &b)?;
//! let client = a.add_pod(&PodSpec::new("shop", "client"))?;
//! let server = b.add_pod(&PodSpec::new("shop", "server").label("app", "server"))?;
//! server.serve(ProbeProtocol::Tcp, 80)?;
//! for address in server.addresses() {
//!     let result = client.probe(ProbeProtocol::Tcp, *address, 80, Duration::from_millis(500));
//!     assert!(result.connected(), "{address}: {result}");
//! }
//! # Ok(())
//! # }
//! ```

mod agent;
pub mod apiserver;
pub mod axe;
pub mod browser;
mod child;
pub mod cluster;
mod conntrack;
mod flow;
mod frame;
mod host;
pub mod http;
mod icmp;
#[cfg(feature = "kubelet")]
mod kubelet;
mod manifests;
mod message;
mod netns;
mod node;
pub mod other_layout;
pub mod otlp;
pub mod packet;
mod pod;
mod probe;
mod processor;
mod sctp;
mod server;
pub mod services;
mod signals;
mod skb_marker;
mod sweep;
mod translation;
mod unmount;
mod wire;

use std::path::{Path, PathBuf};

pub use agent::{Agent, AgentOptions, GRACE, SLOWNESS, slowness, without_twins};
pub use apiserver::{ApiServer, Credential, ask_kubectl, require_apiserver};
pub use child::KillOnDrop;
pub use flow::TestFlow;
pub use frame::ethernet;
pub use host::Host;
#[cfg(feature = "kubelet")]
pub use kubelet::{Container, Kubelet};
pub use manifests::{Manifests, marker, namespace};
pub use netns::Netns;
pub use node::{Cni, TestNode, link_nodes};
pub use packet::udp_frame;
pub use pod::{PodSpec, TestPod};
pub use probe::{ProbeResult, ReachProbe, probe_all};
pub use processor::{backlog_drops, processor_time};
pub use signals::{catch_interrupts, interrupted};
pub use skb_marker::SkbMarker;
pub use sweep::sweep;
pub use translation::{Proxy, TranslatedPort};
pub use unmount::Unmount;
pub use wire::{Offload, RawSocket};

/// Protocol of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeProtocol {
    /// A connection, a request and its answer.
    Tcp,
    /// A request and its answer.
    Udp,
    /// An INIT chunk and its INIT ACK, over raw sockets (this works on kernels without SCTP).
    Sctp,
    /// An echo request and its reply; the port has no meaning.
    Icmp,
}

impl ProbeProtocol {
    /// The three protocols of NetworkPolicy ports.
    pub const WITH_PORTS: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];
}

impl std::fmt::Display for ProbeProtocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
            Self::Icmp => "ICMP",
        })
    }
}

/// Whether this process may make network namespaces.
#[must_use]
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Whether the test may run: true as root, after a [`sweep()`]. Otherwise it is skipped, see [`skip`].
#[must_use]
pub fn require_root(test: &str) -> bool {
    let root = is_root();
    if root {
        sweep();
    } else {
        skip(test, "needs root (network namespaces)");
    }
    root
}

/// Skips the enclosing test unless [it may run](fn@require_root).
#[macro_export]
macro_rules! require_root {
    () => {
        if !$crate::require_root($crate::function_of(&|| ())) {
            return;
        }
    };
}

/// Name of the function that contains a closure.
#[doc(hidden)]
#[must_use]
pub fn function_of<T>(_closure: &T) -> &'static str {
    let path = std::any::type_name::<T>().trim_end_matches("::{{closure}}");
    path.rsplit("::").next().unwrap_or(path)
}

/// Reports a skipped test on standard error.
///
/// # Panics
/// Under CI, where no test may be skipped.
#[expect(clippy::print_stderr, reason = "reports to the user who runs the tests")]
pub fn skip(test: &str, why: impl std::fmt::Display) {
    let skipped = format!("SKIPPED {test}: {why:#}");
    let is_ci = std::env::var("CI").is_ok_and(|v| v == "true");
    assert!(!is_ci, "{skipped}, and CI=true allows no skipping");
    eprintln!("{skipped}");
}

/// Reports a skipped test on standard error, for lack of a feature that Linux has since a version (major, minor).
///
/// # Panics
/// Unless this kernel is known to be older: a feature missing on a newer kernel is a failure.
#[expect(clippy::print_stderr, reason = "reports to the user who runs the tests")]
pub fn skip_before(since: (u32, u32), test: &str, why: impl std::fmt::Display) {
    let (major, minor) = since;
    let skipped = format!("SKIPPED {test}: {why:#}");
    let is_older = kernel_version().is_some_and(|version| version < since);
    assert!(is_older, "{skipped}, which Linux {major}.{minor} has");
    eprintln!("{skipped}");
}

/// Path of a file or folder in the user's cache; `None` if neither `XDG_CACHE_HOME` nor `HOME` is set.
#[must_use]
pub fn cached(path: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|folder| !folder.is_empty());
    let home = || Some(Path::new(&std::env::var_os("HOME")?).join(".cache"));
    Some(cache.map(PathBuf::from).or_else(home)?.join(path))
}

/// Major and minor version of the running kernel, `None` if unreadable.
#[must_use]
pub fn kernel_version() -> Option<(u32, u32)> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let mut numbers = release.split(['.', '-', '\n']).map_while(|n| n.parse().ok());
    numbers.next().zip(numbers.next())
}

#[test]
fn a_feature_of_this_kernel_is_not_skipped() {
    let now = kernel_version().unwrap();
    skip_before((now.0 + 1, 0), "a_feature_of_this_kernel_is_not_skipped", "this is no skip");
    let failed = std::panic::catch_unwind(|| skip_before(now, "here", "absent"));
    assert!(failed.is_err());
}

#[test]
fn a_test_knows_its_name() {
    assert_eq!(function_of(&|| ()), "a_test_knows_its_name");
}
