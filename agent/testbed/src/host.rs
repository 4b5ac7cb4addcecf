//! The common part of a node and a pod: a namespace with a name, servers and probes.

use std::ffi::OsStr;
use std::process::Command;
use std::sync::Arc;

use anyhow::Result;

use crate::ProbeProtocol;
use crate::frame;
use crate::netns::Netns;
use crate::server::Servers;

/// A network namespace that serves and probes. Its servers end before the namespace.
#[derive(Debug)]
pub struct Host {
    name: String,
    servers: Servers,
    netns: Arc<Netns>,
}

impl Host {
    pub(crate) fn new(name: String, label: &str) -> Result<Self> {
        let netns = Arc::new(Netns::create(label)?);
        netns.sysctls(SETTINGS)?;
        for (key, value) in OPTIONAL_SETTINGS {
            let _ = netns.sysctl(key, value);
        }
        Ok(Self { servers: Servers::new(&name), name, netns })
    }

    /// Node name, or `namespace/name` of a pod; its servers answer with it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The network namespace.
    #[must_use]
    pub fn netns(&self) -> &Arc<Netns> {
        &self.netns
    }

    /// Runs a closure inside, see [`Netns::run`].
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> Result<T> {
        self.netns.run(body)
    }

    /// A command to run inside, see [`Netns::command`].
    ///
    /// # Errors
    /// When out of file descriptors.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        self.netns.command(program)
    }

    /// Serves a port on every address of both families until the host is dropped. TCP and UDP answer each request line
    /// or datagram with `<name> <request>`. SCTP answers an INIT with an INIT ACK, or with an ABORT at a port that is
    /// not served.
    ///
    /// # Errors
    /// When the port is taken, and for ICMP, which only the kernel answers.
    pub fn serve(&self, protocol: ProbeProtocol, port: u16) -> Result<()> {
        self.servers.serve(&self.netns, protocol, port)
    }

    /// Sends one Ethernet frame unchanged out of an interface (`eth0` of a pod).
    ///
    /// # Errors
    /// When there is no such interface or the frame is longer than its MTU allows.
    pub fn send_frame(&self, interface: &str, frame: &[u8]) -> Result<()> {
        self.run(|| frame::send(interface, frame))?
    }

    /// Index of an interface in this namespace, `None` if there is none of that name.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn ifindex(&self, interface: &str) -> Result<Option<u32>> {
        self.run(|| nix::net::if_::if_nametoindex(interface).ok())
    }
}

/// Without duplicate address detection an IPv6 address works at once; without rate limits refused probes can always be
/// told from dropped ones.
const SETTINGS: &[(&str, &str)] = &[
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
    ("ipv4/icmp_ratelimit", "0"),
    ("ipv6/icmp/ratelimit", "0"),
    ("ipv6/conf/all/disable_ipv6", "0"),
    ("ipv6/conf/default/disable_ipv6", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/dad_transmits", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
    ("ipv6/conf/default/router_solicitations", "0"),
];

/// Settings of newer kernels: limits per namespace (6.12), and retransmissions at least once a second (6.15), so that a
/// flow that is allowed again resumes soon.
const OPTIONAL_SETTINGS: &[(&str, &str)] = &[
    ("ipv4/icmp_msgs_per_sec", "1000000"),
    ("ipv4/icmp_msgs_burst", "1000000"),
    ("ipv4/tcp_rto_max_ms", "1000"),
];
