//! Kinds of policies of other APIs, which netpold does not enforce.

use super::manifest::FileLine;

/// Kind of policy of another API.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForeignKind {
    /// API group.
    pub group: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// Plural name of the resource.
    pub plural: &'static str,
    /// Whether the objects are namespaced.
    pub namespaced: bool,
    /// Enforcers of the kind, by their names in the table of enforcers.
    pub enforcers: &'static [&'static str],
}

const fn kind(
    group: &'static str,
    (kind, plural): (&'static str, &'static str),
    namespaced: bool,
    enforcers: &'static [&'static str],
) -> ForeignKind {
    ForeignKind { group, kind, plural, namespaced, enforcers }
}

const NETWORK: (&str, &str) = ("NetworkPolicy", "networkpolicies");
const GLOBAL: (&str, &str) = ("GlobalNetworkPolicy", "globalnetworkpolicies");
const CLUSTER: (&str, &str) = ("ClusterNetworkPolicy", "clusternetworkpolicies");
const ADMIN: (&str, &str) = ("AdminNetworkPolicy", "adminnetworkpolicies");
const BASELINE: (&str, &str) = ("BaselineAdminNetworkPolicy", "baselineadminnetworkpolicies");
const ANTREA: &[&str] = &["Antrea"];
const CALICO: &[&str] = &["Calico"];
const CILIUM: &[&str] = &["Cilium"];
/// Enforcers of the APIs that preceded ClusterNetworkPolicy.
const OF_TIERS: &[&str] =
    &["Antrea", "Calico", "Cilium", "Kube-OVN", "OVN-Kubernetes", "kube-network-policies"];

/// Known kinds. A kind name may occur in several groups.
pub(super) static FOREIGN_KINDS: [ForeignKind; 23] = [
    kind("cilium.io", ("CiliumNetworkPolicy", "ciliumnetworkpolicies"), true, CILIUM),
    kind(
        "cilium.io",
        ("CiliumClusterwideNetworkPolicy", "ciliumclusterwidenetworkpolicies"),
        false,
        CILIUM,
    ),
    kind("crd.projectcalico.org", NETWORK, true, CALICO),
    kind("crd.projectcalico.org", GLOBAL, false, CALICO),
    kind("projectcalico.org", NETWORK, true, CALICO),
    kind("projectcalico.org", GLOBAL, false, CALICO),
    kind("policy.networking.k8s.io", ADMIN, false, OF_TIERS),
    kind("policy.networking.k8s.io", BASELINE, false, OF_TIERS),
    kind("crd.antrea.io", NETWORK, true, ANTREA),
    kind("crd.antrea.io", CLUSTER, false, ANTREA),
    kind("crd.antrea.tanzu.vmware.com", NETWORK, true, ANTREA),
    kind("crd.antrea.tanzu.vmware.com", CLUSTER, false, ANTREA),
    kind("security.antrea.tanzu.vmware.com", NETWORK, true, ANTREA),
    kind("security.antrea.tanzu.vmware.com", CLUSTER, false, ANTREA),
    kind(
        "networking.k8s.aws",
        ("ApplicationNetworkPolicy", "applicationnetworkpolicies"),
        true,
        AWS,
    ),
    kind("networking.k8s.aws", CLUSTER, false, AWS),
    kind("networking.gke.io", ("FQDNNetworkPolicy", "fqdnnetworkpolicies"), true, CILIUM),
    kind("k8s.cni.cncf.io", ("MultiNetworkPolicy", "multi-networkpolicies"), true, &[MULTI]),
    kind("k8s.ovn.org", ("EgressFirewall", "egressfirewalls"), true, OVN),
    kind("network.openshift.io", ("EgressNetworkPolicy", "egressnetworkpolicies"), true, SDN),
    kind("kubeovn.io", ("SecurityGroup", "security-groups"), false, &["Kube-OVN"]),
    kind("nsx.vmware.com", ("SecurityPolicy", "securitypolicies"), true, NSX),
    kind("crd.nsx.vmware.com", ("SecurityPolicy", "securitypolicies"), true, NSX),
];
/// Kinds of policies in groups that no known API has.
static UNKNOWN: [ForeignKind; 2] = [kind("", NETWORK, true, &[]), kind("", CLUSTER, false, &[])];
const AWS: &[&str] = &["AWS network policy agent"];
const OVN: &[&str] = &["OVN-Kubernetes"];
const SDN: &[&str] = &["OpenShift SDN"];
const NSX: &[&str] = &["NSX"];
const MULTI: &str = "multi-networkpolicy";

impl ForeignKind {
    /// Returns the kind of an API group, if it is that of a policy.
    pub(super) fn of(group: &str, kind: &str) -> Option<&'static Self> {
        let known = FOREIGN_KINDS.iter().find(|it| (it.group, it.kind) == (group, kind));
        // The reader takes other groups for slips.
        let is_unknown = group.contains('.') && !group.ends_with("k8s.io");
        let others = || UNKNOWN.iter().find(|it| is_unknown && it.kind == kind);
        known.or_else(others)
    }

    /// Returns the kind's name, with the group if the name is ambiguous.
    #[must_use]
    pub fn name(&self) -> String {
        match self.kind {
            kind if self.group.is_empty() => format!("{kind} of an unknown API group"),
            "NetworkPolicy" | "ClusterNetworkPolicy" | "SecurityGroup" | "SecurityPolicy" => {
                format!("{} of {}", self.kind, self.group)
            }
            kind => kind.to_owned(),
        }
    }
}

/// Most objects kept per kind; the others are counted.
const KEPT: usize = 1000;

/// Policies of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignPolicies {
    /// The first of them.
    pub objects: Vec<ForeignPolicy>,
    /// Number of all.
    pub count: usize,
}

/// Policy of another API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignPolicy {
    /// Namespace; `None` for a cluster-scoped policy.
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
    /// File and line; `None` for an object of the API server.
    pub source: Option<FileLine>,
}

impl ForeignPolicies {
    pub(super) fn add(
        &mut self,
        namespace: Option<String>,
        name: String,
        source: Option<FileLine>,
    ) {
        self.count += 1;
        if self.objects.len() < KEPT {
            let name = netpold_core::printable::cut(name, 253);
            self.objects.push(ForeignPolicy { namespace, name, source });
        }
    }
}

impl std::fmt::Display for ForeignPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}
