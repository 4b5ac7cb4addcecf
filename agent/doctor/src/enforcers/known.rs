//! Table of known enforcers.

/// Enforcer and its signs. Chains and variables match by prefix, images by suffix, other signs as a whole.
#[derive(Debug)]
pub struct Enforcer {
    /// Name.
    pub name: &'static str,
    /// Prefixes of iptables and nftables chain names.
    pub(super) chains: &'static [&'static str],
    /// nftables tables.
    pub(super) tables: &'static [&'static str],
    /// Pins, relative to the BPF file system's root.
    pub pins: &'static [&'static str],
    /// Device names.
    pub(super) devices: &'static [&'static str],
    /// Names of DaemonSets.
    pub(super) daemon_sets: &'static [&'static str],
    /// Last parts of image repositories, without tags.
    pub(super) images: &'static [&'static str],
    /// Programs in commands and arguments of containers, or the ends of their paths; the longest one counts.
    pub(super) commands: &'static [&'static str],
    /// Names of containers, for vendors with image names that identify nothing.
    pub(super) containers: &'static [&'static str],
    /// Prefixes of environment variable names.
    pub(super) variables: &'static [&'static str],
    /// Arguments that switch enforcement off.
    pub(super) off: &'static [&'static str],
    /// Instructions to switch enforcement off.
    pub(super) fix: &'static str,
}

const NO_SIGNS: Enforcer = Enforcer {
    name: "",
    chains: &[],
    tables: &[],
    pins: &[],
    devices: &[],
    daemon_sets: &[],
    images: &[],
    commands: &[],
    containers: &[],
    variables: &[],
    off: &[],
    fix: "",
};

const OWN_DATAPATH: &str =
    "its own datapath judges its pods: do not run netpold beside it, or move to another CNI";

/// Known enforcers. A table or device of two entries is reported for the first of them.
pub static ENFORCERS: [Enforcer; 18] = [
    Enforcer {
        name: "Calico",
        chains: &["cali-FORWARD", "cali-fw-", "cali-tw-", "filter-cali-FORWARD"],
        tables: &["calico"],
        pins: &["calico", "tc/globals/cali_v4_ct", "tc/globals/cali_v6_ct"],
        daemon_sets: &["calico-node", "canal", "rke2-canal"],
        images: &[
            "calico/node",
            "calico-node",
            "hardened-calico",
            "mirrored-calico-node",
            "calico_node",
            "cnx-node",
            "calico/typha",
            "calico-typha",
            "tigera/operator",
        ],
        commands: &["calico-node", "calico-felix", "calico-typha"],
        containers: &["calico-node"],
        variables: &["FELIX_"],
        fix: "remove it where it only enforces policy (Canal: `kubectl -n kube-system delete ds canal`, RKE2's \
              rke2-canal, and run Flannel alone); where it is the CNI, do not run netpold. A reboot removes its \
              leftovers",
        ..NO_SIGNS
    },
    Enforcer {
        name: "kube-router",
        chains: &["KUBE-ROUTER-FORWARD", "KUBE-POD-FW-", "KUBE-NWPLCY-"],
        daemon_sets: &["kube-router"],
        images: &["kube-router", "hardened-kube-router", "mirrored-kube-router"],
        commands: &["kube-router"],
        off: &["--run-firewall=false"],
        fix: "k3s: `--disable-network-policy`; else `--run-firewall=false`. Then reboot the node, or \
              `kube-router --cleanup-config`",
        ..NO_SIGNS
    },
    Enforcer {
        name: "Cilium",
        chains: &["CILIUM_FORWARD"],
        pins: &["cilium", "tc/globals/cilium_policy", "tc/globals/cilium_ct4_global"],
        devices: &["cilium_host", "cilium_net"],
        daemon_sets: &["cilium", "anetd", "rke2-cilium"],
        images: &[
            "cilium",
            "cilium-ci",
            "cilium-dev",
            "mirrored-cilium-cilium",
            "hardened-cilium",
            "anetd",
        ],
        commands: &["cilium-agent"],
        containers: &["cilium-agent"],
        off: &["--enable-policy=never"],
        fix: "Cilium's own datapath judges its pods: do not run netpold beside it, or move to another CNI",
        ..NO_SIGNS
    },
    Enforcer {
        name: "AWS network policy agent",
        pins: &["globals/aws/programs"],
        images: &["aws-network-policy-agent"],
        commands: &["aws-network-policy-agent"],
        off: &["--enable-network-policy=false"],
        fix: "in the ConfigMap kube-system/amazon-vpc-cni set enable-network-policy-controller: \"false\", \
              then replace the nodes",
        ..NO_SIGNS
    },
    Enforcer {
        name: "kindnet",
        tables: &["kindnet-network-policies"],
        daemon_sets: &["kindnet"],
        images: &["kindnetd"],
        commands: &["kindnetd"],
        off: &["--network-policy=false"],
        fix: "kind: disableDefaultCNI: true, and a CNI without policy (deploy/kind/cni.sh)",
        ..NO_SIGNS
    },
    Enforcer {
        name: "kube-network-policies",
        tables: &["kube-network-policies"],
        daemon_sets: &["kube-network-policies"],
        images: &["kube-network-policies", "kube-netpol"],
        commands: &["kube-network-policies"],
        fix: "`kubectl -n kube-system delete ds kube-network-policies`, then on each node `nft delete table \
              inet kube-network-policies`; of Flannel's chart: netpol.enabled=false",
        ..NO_SIGNS
    },
    Enforcer {
        name: "Antrea",
        chains: &["ANTREA-FORWARD"],
        tables: &["antrea"],
        devices: &["antrea-gw0"],
        daemon_sets: &["antrea-agent"],
        images: &[
            "antrea-agent",
            "antrea-agent-ubuntu",
            "antrea-agent-ubi",
            "antrea-ubuntu",
            "antrea-ubi",
        ],
        commands: &["antrea-agent"],
        containers: &["antrea-agent"],
        fix: "featureGates: {AntreaPolicy: false} leaves NetworkPolicy on: do not run netpold beside it",
        ..NO_SIGNS
    },
    Enforcer {
        name: "Azure NPM",
        chains: &["AZURE-NPM"],
        daemon_sets: &["azure-npm"],
        images: &["azure-npm"],
        commands: &["azure-npm"],
        containers: &["azure-npm"],
        fix: "AKS: `az aks update --network-policy none`; else `kubectl -n kube-system delete ds azure-npm`. Then \
              reimage or reboot the nodes",
        ..NO_SIGNS
    },
    Enforcer {
        name: "Weave Net",
        chains: &["WEAVE-NPC"],
        images: &["weave-npc"],
        commands: &["weave-npc"],
        containers: &["weave-npc"],
        fix: "remove the container weave-npc from DaemonSet kube-system/weave-net, or set EXPECT_NPC=0, then reboot \
              the nodes",
        ..NO_SIGNS
    },
    Enforcer {
        name: "Kube-OVN",
        devices: &["ovn0"],
        daemon_sets: &["kube-ovn-cni", "ovs-ovn"],
        images: &["kube-ovn", "kube-ovn-dpdk"],
        commands: &["kube-ovn-daemon", "start-cniserver.sh", "kube-ovn"],
        fix: "its logical switches judge its pods; `--enable-np=false` of kube-ovn-controller leaves policy to netpold, but \
              its Open vSwitch forwards past the programs' exits: move to another CNI",
        ..NO_SIGNS
    },
    Enforcer {
        name: "OVN-Kubernetes",
        devices: &["ovn-k8s-mp0"],
        daemon_sets: &["ovnkube-node", "ovnkube-node-dpu"],
        images: &[
            "ovn-kube",
            "ovn-kube-f",
            "ovn-kube-u",
            "ovn-kube-ubuntu",
            "ovn-kube-fedora",
            "ovn-kubernetes",
        ],
        commands: &["ovnkube", "ovnkube.sh"],
        containers: &["ovnkube-node", "ovnkube-controller", "ovn-controller"],
        fix: OWN_DATAPATH,
        ..NO_SIGNS
    },
    Enforcer {
        name: "OpenShift SDN",
        images: &["ose-sdn", "openshift-sdn"],
        commands: &["openshift-sdn-node", "openshift-sdn"],
        fix: OWN_DATAPATH,
        ..NO_SIGNS
    },
    Enforcer {
        name: "Romana",
        chains: &["ROMANA-"],
        daemon_sets: &["romana-agent"],
        images: &["romana/agent", "romana-agent"],
        commands: &["romana-agent", "romana_agent"],
        fix: "`kubectl -n kube-system delete ds romana-agent`, then reboot the nodes",
        ..NO_SIGNS
    },
    Enforcer {
        name: "Terway",
        daemon_sets: &["terway", "terway-eni", "terway-eniip"],
        commands: &["policyinit.sh", "terwayd"],
        off: &["--disable_network_policy=true"],
        fix: "set disable_network_policy: \"true\" in ConfigMap kube-system/eni-config, then replace the nodes",
        ..NO_SIGNS
    },
    Enforcer {
        name: "Hybridnet",
        commands: &["hybridnet/policyinit.sh"],
        fix: "remove the container with policyinit.sh from Hybridnet's DaemonSet, then reboot the nodes",
        ..NO_SIGNS
    },
    Enforcer {
        name: "NSX",
        daemon_sets: &["nsx-node-agent"],
        images: &["nsx-ncp-ubi", "nsx-ncp-ubuntu", "nsx-ncp-photon", "nsx-ncp"],
        commands: &["start_node_agent"],
        fix: OWN_DATAPATH,
        ..NO_SIGNS
    },
    Enforcer {
        name: "Cisco ACI",
        daemon_sets: &["aci-containers-host", "aci-containers-openvswitch"],
        images: &["aci-containers-host", "aci-containers-openvswitch", "noiro/opflex"],
        commands: &["opflex_agent", "launch-opflexagent.sh"],
        fix: OWN_DATAPATH,
        ..NO_SIGNS
    },
    Enforcer {
        name: "Contrail",
        images: &["contrail-vrouter-agent"],
        commands: &["contrail-vrouter-agent"],
        fix: OWN_DATAPATH,
        ..NO_SIGNS
    },
];
