//! Name servers of a cluster: Services with a DNS port, and their backends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netpold_core::model::{Key, Labels, Pod, Protocol};

use crate::objects::{GroupedObjects, PodGroup};

const PORT: u16 = 53;
/// Names of name server Services in clusters that do not label them.
const NAMES: [(&str, &str); 4] = [
    ("kube-system", "kube-dns"),
    ("kube-system", "coredns"),
    ("kube-system", "rke2-coredns-rke2-coredns"),
    ("openshift-dns", "dns-default"),
];
/// Namespace and label of a cluster's name server pods.
const NAMESPACE: &str = "kube-system";
const LABEL: (&str, &str) = ("k8s-app", "kube-dns");
/// Label of the pods of a node-local cache, and prefix of their names.
const NODE_LOCAL: (&str, &str) = ("k8s-app", "node-local-dns");
const NODE_LOCAL_NAME: &str = "node-local-dns";

/// Name server, or several behind one Service.
pub(crate) struct Server<'o> {
    /// Service; `None` for pods without a known Service.
    service: Option<&'o Key>,
    /// Whether pods ask this server by default.
    pub(crate) is_of_cluster: bool,
    /// Protocol, address and port of each backend.
    pub(crate) backends: BTreeSet<(Protocol, IpAddr, u16)>,
    /// Whether the server is only assumed to be the cluster's, because there is no other.
    pub(crate) is_guess: bool,
    pods: Vec<&'o Pod>,
    keys: BTreeSet<&'o Key>,
}

impl<'o> Server<'o> {
    fn new(
        objects: &GroupedObjects<'o>,
        service: Option<&'o Key>,
        backends: BTreeSet<(Protocol, IpAddr, u16)>,
    ) -> Self {
        let pods = backends.iter().filter_map(|(_, address, _)| objects.cluster.owner(*address));
        let pods: Vec<&Pod> = pods.map(|pod| &**pod).collect();
        let keys = pods.iter().map(|pod| &pod.key).collect();
        let is_of_cluster = service.is_none_or(|key| is_cluster_dns(objects, key));
        Self { service, is_of_cluster, is_guess: false, backends, pods, keys }
    }

    /// Returns the backends to ask: those by UDP, if there are any.
    pub(crate) fn questions(&self) -> impl Iterator<Item = &(Protocol, IpAddr, u16)> {
        let is_udp = |it: &&(Protocol, IpAddr, u16)| it.0 == Protocol::Udp;
        let has_udp = self.backends.iter().any(|it| is_udp(&it));
        self.backends.iter().filter(move |it| !has_udp || is_udp(it))
    }

    /// Returns whether a group of pods contains the server.
    pub(crate) fn is(&self, group: &PodGroup<'_>) -> bool {
        group.pods.iter().any(|pod| self.keys.contains(&pod.key))
    }

    pub(super) fn text(&self) -> String {
        match (self.service, self.pods.first()) {
            (Some(key), _) => format!("Service {key}"),
            (None, Some(pod)) => format!("Pod {}", pod.key),
            (None, None) => String::new(),
        }
    }

    /// Builds an egress rule for the askers' policy, on one line.
    pub(super) fn egress_rule(&self, objects: &GroupedObjects<'_>) -> String {
        let ports = self.ports();
        let Some(pod) = self.pods.first() else {
            let addresses: BTreeSet<IpAddr> = self.backends.iter().map(|(_, it, _)| *it).collect();
            let block = |it: &IpAddr| format!("{{ipBlock: {{cidr: {}}}}}", ipnet::IpNet::from(*it));
            let blocks: Vec<String> = addresses.iter().take(8).map(block).collect();
            return format!("- {{to: [{}], ports: [{ports}]}}", blocks.join(", "));
        };
        let namespace = scalar(&pod.key.namespace);
        let labels = selector(&self.labels(objects));
        format!(
            "- {{to: [{{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {namespace}}}}}, \
             podSelector: {labels}}}], ports: [{ports}]}}"
        )
    }

    /// Builds an ingress rule for the policy of the server's pods, on one line: from every pod, or from everywhere, as
    /// node-local caches need it.
    pub(super) fn ingress_rule(&self, has_caches: bool) -> String {
        let from = if has_caches { "" } else { "from: [{namespaceSelector: {}}], " };
        format!("- {{{from}ports: [{}]}}", self.ports())
    }

    /// Builds an egress rule for the askers' ClusterNetworkPolicy, on one line.
    pub(super) fn accept_from(&self, objects: &GroupedObjects<'_>) -> String {
        let to = match self.pods.first() {
            None => {
                let addresses: BTreeSet<IpAddr> =
                    self.backends.iter().map(|(_, it, _)| *it).collect();
                let block = |it: &IpAddr| format!("{:?}", ipnet::IpNet::from(*it).to_string());
                let blocks: Vec<String> = addresses.iter().take(8).map(block).collect();
                format!("{{networks: [{}]}}", blocks.join(", "))
            }
            Some(pod) => format!(
                "{{pods: {{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {}}}}}, \
                 podSelector: {}}}}}",
                scalar(&pod.key.namespace),
                selector(&self.labels(objects))
            ),
        };
        format!("- {{action: Accept, to: [{to}], protocols: [{}]}}", self.protocols())
    }

    /// Builds an ingress rule for the ClusterNetworkPolicy of the server's pods, on one line.
    pub(super) fn accept_pods(&self) -> String {
        let protocols = self.protocols();
        format!("- {{action: Accept, from: [{{namespaces: {{}}}}], protocols: [{protocols}]}}")
    }

    fn ports(&self) -> String {
        let text = |(protocol, port)| format!("{{protocol: {protocol}, port: {port}}}");
        self.numbers().into_iter().map(text).collect::<Vec<_>>().join(", ")
    }

    /// Returns the ports as a ClusterNetworkPolicy has them.
    fn protocols(&self) -> String {
        let text = |(protocol, port): (Protocol, u16)| {
            let key = protocol.to_string().to_lowercase();
            format!("{{{key}: {{destinationPort: {{number: {port}}}}}}}")
        };
        self.numbers().into_iter().map(text).collect::<Vec<_>>().join(", ")
    }

    fn numbers(&self) -> Vec<(Protocol, u16)> {
        let mut ports: BTreeSet<(Protocol, u16)> =
            self.backends.iter().map(|(protocol, _, port)| (*protocol, *port)).collect();
        // Large answers use TCP, even if no object mentions it.
        if let Some((_, port)) = ports.first().copied()
            && !ports.iter().any(|(protocol, _)| *protocol == Protocol::Tcp)
        {
            ports.insert((Protocol::Tcp, port));
        }
        let mut ports: Vec<_> = ports.into_iter().collect();
        ports.sort_by_key(|(protocol, port)| (*protocol != Protocol::Udp, *port));
        ports
    }

    /// Returns labels that select the server's pods: the Service's selector, else their common labels.
    fn labels(&self, objects: &GroupedObjects<'_>) -> BTreeMap<String, String> {
        let service = self.service.and_then(|key| objects.details.services.get(key));
        if let Some(service) = service.filter(|service| !service.selector.is_empty()) {
            return service.selector.clone();
        }
        let (label, value) = LABEL;
        if self.pods.iter().all(|pod| has(&pod.labels, LABEL)) {
            return BTreeMap::from([(label.to_owned(), value.to_owned())]);
        }
        let own = self.pods.first().map(|pod| &pod.labels);
        let own = own.into_iter().flat_map(|labels| labels.iter());
        let common = own.filter(|(key, value)| {
            let is_hash = key.ends_with("hash") || key.ends_with("generation");
            !is_hash && self.pods.iter().all(|pod| pod.labels.get(*key) == Some(*value))
        });
        common.map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}

/// Returns whether a Service is the cluster's name server, by its name or a label.
fn is_cluster_dns(objects: &GroupedObjects<'_>, key: &Key) -> bool {
    let details = objects.details.services.get(key);
    NAMES.contains(&(&key.namespace, &key.name)) || details.is_some_and(|it| it.is_dns)
}

/// Returns whether a Service has no selector: its endpoints are written by hand, and are no pods of this cluster.
fn is_by_hand(objects: &GroupedObjects<'_>, key: &Key) -> bool {
    objects.details.services.get(key).is_none_or(|service| service.selector.is_empty())
}

/// Returns the name servers with a pod or node among the objects, and the cluster's with endpoints written by hand; those that pods ask by default come first.
pub(crate) fn servers<'o>(objects: &GroupedObjects<'o>) -> Vec<Server<'o>> {
    let mut by_service: BTreeMap<&Key, BTreeSet<(Protocol, IpAddr, u16)>> = BTreeMap::new();
    for led in objects.leads.all() {
        let (key, port) = (&led.service.key, led.port);
        let is_dns =
            port.port == PORT || matches!(port.name.as_str(), "dns" | "dns-tcp" | "dns-udp");
        if is_dns && port.protocol != Protocol::Sctp {
            let is_counted = |address| {
                objects.is_known(address)
                    || is_cluster_dns(objects, key) && is_by_hand(objects, key)
            };
            let backends = led.backends.iter().filter(|(address, _)| is_counted(*address));
            let backends = backends.map(|(address, number)| (port.protocol, *address, *number));
            by_service.entry(key).or_default().extend(backends);
        }
    }
    let mut servers: Vec<Server<'_>> = by_service
        .into_iter()
        .filter(|(_, backends)| !backends.is_empty())
        .map(|(key, backends)| Server::new(objects, Some(key), backends))
        .collect();
    if !servers.iter().any(|server| server.is_of_cluster) {
        let pods = without_service(objects);
        if !pods.is_empty() {
            servers.push(Server::new(objects, None, pods));
        } else if let [only] = &mut servers[..] {
            (only.is_of_cluster, only.is_guess) = (true, true);
        }
    }
    servers.sort_by_key(|server| !server.is_of_cluster);
    servers
}

/// Returns the pods with the name server's label, for clusters without a Service for them.
fn without_service(objects: &GroupedObjects<'_>) -> BTreeSet<(Protocol, IpAddr, u16)> {
    let groups = objects.groups.iter();
    let groups = groups.filter(|group| group.namespace == NAMESPACE && has(group.labels, LABEL));
    let addresses = groups.flat_map(|group| &group.pods).flat_map(|pod| &pod.addresses);
    addresses.map(|address| (Protocol::Udp, *address, PORT)).collect()
}

/// Returns whether a namespace is one of name servers.
pub(super) fn has_servers(namespace: &str) -> bool {
    NAMES.iter().any(|(it, _)| *it == namespace)
}

/// Returns the pods of node-local caches.
pub(super) fn caches<'o>(objects: &'o GroupedObjects<'_>) -> impl Iterator<Item = &'o Pod> {
    let pods = objects.cluster.pods().values().map(|pod| &**pod);
    pods.filter(|pod| {
        let is_cache = has(&pod.labels, NODE_LOCAL) || pod.key.name.starts_with(NODE_LOCAL_NAME);
        is_cache && pod.host_network && !pod.finished
    })
}

/// Returns whether there are node-local caches whose arguments are not among the objects.
pub(super) fn has_unknown_cache(objects: &GroupedObjects<'_>) -> bool {
    words_of_caches(objects).next().is_none()
}

/// Returns the commands and arguments of node-local caches.
fn words_of_caches<'o>(objects: &'o GroupedObjects<'_>) -> impl Iterator<Item = &'o String> {
    let caches = objects.details.running.iter().filter(|running| {
        let mut words = running.containers.iter().flat_map(|it| &it.words);
        running.key.name.starts_with(NODE_LOCAL_NAME)
            || words.any(|word| word.ends_with("/node-cache"))
    });
    caches.flat_map(|it| &it.containers).flat_map(|it| &it.words)
}

/// Returns whether pods ask a cache on their own node, which policy always lets them reach. If the cache has the
/// Service's own address, the Service decides.
pub(crate) fn is_node_local(objects: &GroupedObjects<'_>) -> bool {
    let mut words = words_of_caches(objects).peekable();
    let is_service = |text: &str| {
        let address = text.trim().parse::<IpAddr>().ok();
        address.is_some_and(|address| objects.cluster.service_at(address).is_some())
    };
    if words.peek().is_some() {
        return !words.any(|word| word.split([',', '=', ' ']).any(is_service));
    }
    caches(objects).next().is_some()
}

fn has(labels: &Labels, (key, value): (&str, &str)) -> bool {
    labels.get(key).is_some_and(|it| it == value)
}

fn selector(labels: &BTreeMap<String, String>) -> String {
    let all: Vec<String> =
        labels.iter().map(|(key, value)| format!("{}: {}", scalar(key), scalar(value))).collect();
    if all.is_empty() {
        "{}".to_owned()
    } else {
        format!("{{matchLabels: {{{}}}}}", all.join(", "))
    }
}

/// Quotes text for YAML in braces, if necessary.
fn scalar(text: &str) -> String {
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._/-".contains(c))
        && !matches!(
            text.to_ascii_lowercase().as_str(),
            "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "y" | "n"
        );
    if is_plain { text.to_owned() } else { format!("{text:?}") }
}
