//! Signs of other enforcers of NetworkPolicy.

use netpold_core::model::Key;

use super::finding::{Check, Findings, Severity};

/// An enforcer, and how it shows. Names of chains, tables and devices end in what may follow.
pub(super) struct Enforcer {
    pub(super) name: &'static str,
    /// Beginnings of iptables and nftables chains' names.
    chains: &'static [&'static str],
    /// nftables tables.
    tables: &'static [&'static str],
    /// Pins, below the BPF file system's root.
    pub(super) pins: &'static [&'static str],
    /// Devices.
    devices: &'static [&'static str],
    /// Names of DaemonSets, and parts of their images' names.
    daemon_sets: &'static [&'static str],
    images: &'static [&'static str],
    /// How to switch it off.
    fix: &'static str,
}

/// Those that are known. An entry of two that share a sign comes first.
pub(super) const ENFORCERS: [Enforcer; 7] = [
    Enforcer {
        name: "Calico",
        chains: &["cali-FORWARD", "cali-fw-", "cali-tw-", "filter-cali-FORWARD"],
        tables: &["calico"],
        pins: &["calico", "tc/globals/cali_v4_ct", "tc/globals/cali_v6_ct"],
        devices: &[],
        daemon_sets: &["calico-node", "canal"],
        images: &["calico/node"],
        fix: "remove it where it only enforces policy (Canal: `kubectl -n kube-system delete ds canal` and \
              run Flannel alone); where it is the CNI, do not run netpold. What it leaves goes with a reboot",
    },
    Enforcer {
        name: "kube-router",
        chains: &["KUBE-ROUTER-FORWARD", "KUBE-POD-FW-", "KUBE-NWPLCY-"],
        tables: &[],
        pins: &[],
        devices: &[],
        daemon_sets: &["kube-router"],
        images: &["kube-router"],
        fix: "k3s: `--disable-network-policy`; else `--run-firewall=false`. Then reboot the node, or \
              `kube-router --cleanup-config`",
    },
    Enforcer {
        name: "Cilium",
        chains: &["CILIUM_FORWARD"],
        tables: &[],
        pins: &["cilium", "tc/globals/cilium_policy", "tc/globals/cilium_ct4_global"],
        devices: &["cilium_host", "cilium_net"],
        daemon_sets: &["cilium", "anetd"],
        images: &["cilium/cilium:", "cilium/cilium@"],
        fix: "Cilium's own datapath judges its pods: do not run netpold beside it, or move to another CNI",
    },
    Enforcer {
        name: "AWS network policy agent",
        chains: &[],
        tables: &[],
        pins: &["globals/aws/programs"],
        devices: &[],
        daemon_sets: &[],
        images: &["aws-network-policy-agent"],
        fix: "in the ConfigMap kube-system/amazon-vpc-cni set enable-network-policy-controller: \"false\", \
              then replace the nodes",
    },
    Enforcer {
        name: "kindnet",
        chains: &[],
        tables: &["kindnet-network-policies"],
        pins: &[],
        devices: &[],
        daemon_sets: &["kindnet"],
        images: &["kindnetd"],
        fix: "kind: disableDefaultCNI: true, and a CNI without policy (deploy/kind/cni.sh)",
    },
    Enforcer {
        name: "kube-network-policies",
        chains: &[],
        tables: &["kube-network-policies"],
        pins: &[],
        devices: &[],
        daemon_sets: &["kube-network-policies"],
        images: &["kube-network-policies"],
        fix: "`kubectl -n kube-system delete ds kube-network-policies`, then on each node `nft delete table \
              inet kube-network-policies`",
    },
    Enforcer {
        name: "Antrea",
        chains: &["ANTREA-FORWARD"],
        tables: &["antrea"],
        pins: &[],
        devices: &["antrea-gw0"],
        daemon_sets: &["antrea-agent"],
        images: &["antrea/antrea-agent", "antrea/antrea-ubuntu"],
        fix: "featureGates: {AntreaPolicy: false} leaves NetworkPolicy on: do not run netpold beside it",
    },
];

const ON_THE_NODE: Check = Check {
    name: "other-enforcer",
    severity: Severity::Error,
    problem: "{} enforces NetworkPolicy on this node, or did: a packet must be allowed by both",
    fix: "",
};
const IN_THE_CLUSTER: Check = Check {
    name: "other-enforcer-deployed",
    severity: Severity::Warning,
    problem: "{} is in the cluster: if it enforces NetworkPolicy, a packet must be allowed by both",
    fix: "",
};

impl Enforcer {
    /// A trace of it on this node.
    pub(super) fn found(&self, sign: String, findings: &mut Findings) {
        let check = Check { fix: self.fix, ..ON_THE_NODE };
        findings.add_of(&check, self.name, sign);
    }
}

/// A chain of iptables or nftables.
pub(super) fn chain(table: &str, chain: &str, findings: &mut Findings) {
    for enforcer in &ENFORCERS {
        if enforcer.chains.iter().any(|begin| chain.starts_with(begin)) {
            enforcer.found(format!("chain {chain} of {table}"), findings);
        }
    }
}

/// A table of nftables.
pub(super) fn table(family: &str, table: &str, findings: &mut Findings) {
    if let Some(enforcer) = ENFORCERS.iter().find(|enforcer| enforcer.tables.contains(&table)) {
        enforcer.found(format!("nftables table {family} {table}"), findings);
    }
}

/// A device.
pub(super) fn device(name: &str, findings: &mut Findings) {
    if let Some(enforcer) = ENFORCERS.iter().find(|enforcer| enforcer.devices.contains(&name)) {
        enforcer.found(format!("device {name}"), findings);
    }
}

/// A DaemonSet, by its name and images.
pub(super) fn daemon_set(key: &Key, images: &[String], findings: &mut Findings) {
    for enforcer in &ENFORCERS {
        let name = enforcer.daemon_sets.contains(&key.name.as_str());
        let image = images.iter().find(|image| enforcer.images.iter().any(|it| image.contains(it)));
        if name || image.is_some() {
            let check = Check { fix: enforcer.fix, ..IN_THE_CLUSTER };
            let image = image.map_or_else(String::new, |image| format!(" (image {image})"));
            findings.add_of(&check, enforcer.name, format!("DaemonSet {key}{image}"));
        }
    }
}
