//! Service addresses translated to backends, by rules laid as kube-proxy lays them.
//!
//! Both of kube-proxy's kinds: nftables with verdict maps, and iptables with chains of one rule for
//! each choice. A packet to a Service's address gets the address and port of one backend before it
//! is routed; what its answer could otherwise go past (a pod that reaches itself, whatever came by a
//! node port or an external address) also gets an address of the node as source.

mod iptables;
mod nftables;

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::Protocol;
use crate::host::Host;

/// What lays the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxy {
    /// As `kube-proxy --proxy-mode nftables`.
    Nftables,
    /// As `kube-proxy --proxy-mode iptables`.
    Iptables,
}

/// One port of a Service.
#[derive(Clone, Debug)]
pub struct Translation {
    /// Its name, unlike every other's.
    pub name: String,
    /// What it speaks: TCP or UDP.
    pub protocol: Protocol,
    /// Addresses inside the cluster.
    pub cluster_ips: Vec<IpAddr>,
    /// External and load balancer addresses.
    pub external_ips: Vec<IpAddr>,
    /// Port at these addresses.
    pub port: u16,
    /// Port at the node's own addresses.
    pub node_port: Option<u16>,
    /// Where packets go; each as likely as the others.
    pub backends: Vec<SocketAddr>,
    /// A client stays with its backend for so many seconds.
    pub affinity: Option<u32>,
}

impl Translation {
    /// A port without addresses and backends.
    #[must_use]
    pub fn new(name: &str, protocol: Protocol, port: u16) -> Self {
        Self {
            name: name.into(),
            protocol,
            cluster_ips: Vec::new(),
            external_ips: Vec::new(),
            port,
            node_port: None,
            backends: Vec::new(),
            affinity: None,
        }
    }

    /// Protocol as in rules.
    fn keyword(&self) -> &'static str {
        if self.protocol == Protocol::Udp { "udp" } else { "tcp" }
    }

    /// The same for one family; `None` where it has no backend there.
    fn of(&self, v6: bool) -> Option<Self> {
        let mut own = self.clone();
        own.cluster_ips.retain(|address| address.is_ipv6() == v6);
        own.external_ips.retain(|address| address.is_ipv6() == v6);
        own.backends.retain(|backend| backend.is_ipv6() == v6);
        (!own.backends.is_empty()).then_some(own)
    }
}

/// Bit of the packet mark that stands for "masquerade", kube-proxy's own default.
const MASQUERADE: &str = "0x4000";

impl Host {
    /// Replaces all translation of this node, in one step for each family. On a node with bridged
    /// pods it also makes the bridge show their packets to the rules, as kube-proxy asks for.
    ///
    /// # Errors
    /// When `nft` or `iptables-restore` is missing or refuses the rules.
    pub fn translate(&self, proxy: Proxy, services: &[Translation]) -> Result<()> {
        for key in ["bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"] {
            // No such setting without br_netfilter; then there are no bridges to set it for.
            let _ = self.netns().sysctl(key, "1");
        }
        for v6 in [false, true] {
            let services: Vec<Translation> = services.iter().filter_map(|s| s.of(v6)).collect();
            match proxy {
                Proxy::Nftables => self.feed("nft", &["-f", "-"], &nftables::rules(v6, &services)),
                Proxy::Iptables => {
                    let program = if v6 { "ip6tables-restore" } else { "iptables-restore" };
                    self.feed(program, &[], &iptables::rules(&services))
                }
            }?;
        }
        Ok(())
    }

    /// Masquerades what leaves from these addresses to any others, as CNI plugins do for pods.
    ///
    /// # Errors
    /// When `nft` is missing or refuses the rules.
    pub fn masquerade(&self, cidrs: &[&str]) -> Result<()> {
        let mut rules = String::new();
        for (family, v6) in [("ip", false), ("ip6", true)] {
            let own = cidrs.iter().filter(|cidr| cidr.contains(':') == v6);
            let own = own.copied().collect::<Vec<_>>().join(", ");
            rules += &format!(
                "table {family} cni {{\n chain postrouting {{\n\
                 type nat hook postrouting priority srcnat; policy accept;\n\
                 {family} saddr {{ {own} }} {family} daddr != {{ {own} }} masquerade\n }}\n}}\n"
            );
        }
        self.feed("nft", &["-f", "-"], &rules)
    }

    fn feed(&self, program: &str, arguments: &[&str], rules: &str) -> Result<()> {
        let mut child = self
            .command(program)?
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| {
                format!("cannot run {program} (Debian packages nftables, iptables)")
            })?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(rules.as_bytes()).with_context(|| format!("cannot feed {program}"))?;
        }
        let output = child.wait_with_output().with_context(|| format!("cannot wait: {program}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{program} of {} refuses: {}\n{rules}", self.name(), said.trim());
        }
        Ok(())
    }
}
