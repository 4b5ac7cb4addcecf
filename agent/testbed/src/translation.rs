//! Service addresses translated to backends, by rules like those of kube-proxy.
//!
//! There are both kinds of kube-proxy: nftables with verdict maps, and iptables with chains of one rule for each
//! choice. A packet to a Service's address gets the address and port of one backend before routing. If its answer could
//! otherwise bypass the node (for a pod that reaches itself, and for packets to a node port or an external address), it
//! also gets an address of the node as source.

mod iptables;
mod nftables;
mod port;

use anyhow::Result;

use crate::host::Host;

pub use port::TranslatedPort;

/// Kind of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxy {
    /// As `kube-proxy --proxy-mode nftables`.
    Nftables,
    /// As `kube-proxy --proxy-mode iptables`.
    Iptables,
}

impl Host {
    /// Replaces all translation of this node, in one step for each family. On a node with bridged pods, also makes the
    /// bridge pass their packets to the rules, as kube-proxy requires.
    ///
    /// # Errors
    /// When `nft` or `iptables-restore` is missing or refuses the rules.
    pub fn translate(&self, proxy: Proxy, services: &[TranslatedPort]) -> Result<()> {
        for key in ["bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"] {
            // The setting does not exist without br_netfilter; then there are no bridges that need it.
            let _ = self.netns().sysctl(key, "1");
        }
        for v6 in [false, true] {
            let services: Vec<TranslatedPort> = services.iter().filter_map(|s| s.of(v6)).collect();
            match proxy {
                Proxy::Nftables => self.netns().nft(&nftables::rules(v6, &services)),
                Proxy::Iptables => {
                    let program = if v6 { "ip6tables-restore" } else { "iptables-restore" };
                    self.netns().feed(program, &[], &iptables::rules(&services))
                }
            }?;
        }
        Ok(())
    }

    /// Masquerades packets from these addresses to all others, as CNI plugins do for pods.
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
        self.netns().nft(&rules)
    }
}
