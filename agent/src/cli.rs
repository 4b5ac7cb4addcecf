//! Command line. The environment twin of a flag is `NETPOLD_` and the flag's name.

mod values;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use ipnet::IpNet;
use netpold_api::socket::{DEFAULT_BPFFS, DEFAULT_SOCKET};
use netpold_client::arguments::time;
use netpold_controller::WebhookSettings;
use netpold_controller::listen::ListenAddress;
use netpold_core::cluster::PRIVATE_RANGES;
use netpold_export::CollectorAddress;
use netpold_kube::cluster::Access;

use netpold_engine::interfaces::NodeDevices;

pub use values::{
    CheckSource, ClusterNetworkPolicies, Denial, DnsTransports, ExportedLogs, LogFormat, NewPods,
    ObserveFlows, PeersFrom, PodEgressHook, SecondaryInterfaces, UplinkDrops, WatchNodes,
    WritePeerSlices,
};

/// Default file of the last good state. The state must survive a reboot, so the file is not below /run.
const DEFAULT_STATE: &str = "/var/lib/netpold/state";
/// Default directory of libcni's cached CNI results.
const DEFAULT_CNI_RESULTS: &str = "/var/lib/cni/results";
/// Default directory of the kubelet's static pods.
const DEFAULT_STATIC_PODS: &str = "/etc/kubernetes/manifests";

/// Kubernetes NetworkPolicy enforced in eBPF at every pod's veth
#[derive(Debug, Parser)]
#[command(name = "netpold", version, about, max_term_width = 100)]
pub struct Cli {
    /// Subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands of `netpold`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Client commands, also of `kubectl netpold`.
    #[command(flatten)]
    Ask(netpold_cli::Command),
    /// Enforce NetworkPolicy on this node's pods
    #[command(
        after_help = "Exit status: 0 ended by a signal, 1 failed, 2 the flags make no sense."
    )]
    Run(Box<RunArgs>),
    /// Close new pods while no agent runs on the node (second container of the agent's pod)
    #[command(after_help = "Exit status: 0 ended by a signal, 1 failed.")]
    Standby(StandbyArgs),
    /// Report which policies are in force, and add the readiness gate to new pods
    #[command(after_help = "Exit status: 0 ended by a signal, 1 failed.")]
    Controller(ControllerArgs),
    /// Remove every program and pin from this node; its pods are no longer under policy
    #[command(after_help = "Exit status: 0 done, 1 failed.")]
    Uninstall(UninstallArgs),
}

/// Flags of `netpold run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Directory of Kubernetes objects: *.yaml, *.yml and *.json; changes are followed. Without it
    /// the objects come from the cluster's API server
    #[arg(long, value_name = "DIR", env = "NETPOLD_MANIFESTS",
        conflicts_with_all = ["kubeconfig", "context"])]
    pub manifests: Option<PathBuf>,
    /// Kubeconfig of the API server [default: the pod's service account]
    #[arg(long, value_name = "FILE", env = "NETPOLD_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig, instead of its current one
    #[arg(long, value_name = "NAME", env = "NETPOLD_CONTEXT", requires = "kubeconfig")]
    pub context: Option<String>,
    /// Node objects to watch. `auto`: this node's, and all nodes' once policy needs the addresses of other nodes
    #[arg(long, value_name = "WHICH", env = "NETPOLD_WATCH_NODES", default_value = "auto")]
    pub watch_nodes: WatchNodes,
    /// Origin of the pods of other nodes
    #[arg(long, value_name = "WHICH", env = "NETPOLD_PEERS", default_value = "pods")]
    pub peers: PeersFrom,
    /// Whether to follow ClusterNetworkPolicies on the API server; manifests always include them
    #[arg(
        long,
        value_name = "WHICH",
        env = "NETPOLD_CLUSTER_NETWORK_POLICIES",
        default_value = "auto"
    )]
    pub cluster_network_policies: ClusterNetworkPolicies,
    /// Seconds of silence after which a connection to the API server is closed
    #[arg(long, value_name = "SECONDS", env = "NETPOLD_API_TIMEOUT", default_value = "100",
        value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub api_timeout: u16,
    /// Readiness gate, and its pod condition: a pod with the gate becomes ready once policy judges
    /// its packets
    #[arg(long, value_name = "TYPE", env = "NETPOLD_READINESS_GATE",
        default_value = netpold_engine::publish::READINESS_GATE)]
    pub readiness_gate: String,
    /// Name of this node, as in the pods' spec.nodeName
    #[arg(long, value_name = "NAME", env = "NETPOLD_NODE_NAME")]
    pub node_name: String,
    /// Directory on a BPF filesystem to pin maps and links in; one for each agent
    #[arg(long, value_name = "DIR", env = "NETPOLD_BPFFS", default_value = DEFAULT_BPFFS)]
    pub bpffs: PathBuf,
    /// Control socket to create, for `netpold status`
    #[arg(long, value_name = "PATH", env = "NETPOLD_SOCKET", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Address to serve /metrics, /livez and /readyz on; :PORT for every address [default: none]
    #[arg(long, value_name = "ADDRESS:PORT", env = "NETPOLD_LISTEN")]
    pub listen: Option<ListenAddress>,
    /// Maximum number of series of the metrics of denied traffic by workload; 0: none
    #[arg(long, value_name = "N", env = "NETPOLD_DENIED_SERIES", default_value_t = 500,
        value_parser = clap::value_parser!(u16).range(..=10_000))]
    pub denied_series: u16,
    /// Arguments of the export.
    #[command(flatten)]
    pub otlp: OtlpArgs,
    /// Drop packets of a pod with a source address that is not the pod's, ARP and ND included
    #[arg(long, value_name = "WHICH", env = "NETPOLD_CHECK_SOURCE", default_value = "all")]
    pub check_source: CheckSource,
    /// Exempt from the source check: comma-separated namespaces, in which pods opt out with the annotation
    /// netpold.io/check-source: off, or CIDRs, for pods with an address in one of them
    /// [default: none]
    #[arg(
        long,
        value_name = "NAMESPACE|CIDR",
        env = "NETPOLD_SOURCE_CHECK_EXEMPT",
        value_delimiter = ','
    )]
    pub source_check_exempt: Vec<String>,
    /// Seconds within which foreign changes to maps, programs and pins are repaired
    #[arg(long, value_name = "SECONDS", env = "NETPOLD_READBACK", default_value = "10",
          value_parser = clap::value_parser!(u16).range(1..))]
    pub readback: u16,
    /// Treatment of an interface until its pod is identified
    #[arg(long, value_name = "WHAT", env = "NETPOLD_NEW_PODS", default_value = "allow")]
    pub new_pods: NewPods,
    /// Secondary interfaces of pods (Multus) that are under policy
    #[arg(
        long,
        value_name = "WHICH",
        env = "NETPOLD_SECOND_INTERFACES",
        default_value = "enforce"
    )]
    pub second_interfaces: SecondaryInterfaces,
    /// Pods with records of their flows while no policy selects them, for `netpold observe --new-flows`
    #[arg(long, value_name = "WHICH", env = "NETPOLD_OBSERVE_FLOWS", default_value = "labelled")]
    pub observe_flows: ObserveFlows,
    /// CIDRs in which pods' addresses of secondary networks (from annotations) count; or none
    #[arg(long, value_name = "CIDR", env = "NETPOLD_SECOND_NETWORKS", value_delimiter = ',',
        default_values_t = PRIVATE_RANGES.map(|range| range.to_string()))]
    pub second_networks: Vec<String>,
    /// Addresses of resolvers whose answers to pods count for domainNames, besides the Service kube-system/kube-dns
    /// and its backends, such as NodeLocal DNS [default: none]
    #[arg(long, value_name = "ADDRESS", env = "NETPOLD_DNS_SERVERS", value_delimiter = ',')]
    pub dns_servers: Vec<IpAddr>,
    /// Transports of answers that count for domainNames
    #[arg(long, value_name = "WHICH", env = "NETPOLD_DNS_TRANSPORTS", default_value = "udp-tcp")]
    pub dns_transports: DnsTransports,
    /// Directory of the container runtime's cached CNI results: they list a pod's addresses before the
    /// pod's status does. It need not exist
    #[arg(long, value_name = "DIR", env = "NETPOLD_CNI_RESULTS",
        default_value = DEFAULT_CNI_RESULTS)]
    pub cni_results: PathBuf,
    /// Directory of the kubelet's static pods: the source of their labels until the API server has listed them.
    /// It need not exist
    #[arg(long, value_name = "DIR", env = "NETPOLD_STATIC_PODS",
        default_value = DEFAULT_STATIC_PODS)]
    pub static_pods: PathBuf,
    /// File of the last good state, used at a boot without API server or manifests
    #[arg(long, value_name = "FILE", env = "NETPOLD_STATE", default_value = DEFAULT_STATE)]
    pub state: PathBuf,
    /// Exit once another agent on the same pin root is in sync; enforcement stays in place: for a unit that
    /// protects the node from boot until the DaemonSet's agent runs
    #[arg(long, env = "NETPOLD_GIVE_WAY")]
    pub give_way: bool,
    /// Take over from an agent with this flag on the same pin root once this agent is in sync, and hand over in the
    /// same way: for a DaemonSet with maxSurge, where a new pod starts before the old one ends
    #[arg(long, env = "NETPOLD_TAKE_OVER", conflicts_with = "give_way")]
    pub take_over: bool,
    /// Devices of the node where packets to Services are judged after translation: auto, none, or
    /// comma-separated names, each of which may end in `*`
    #[arg(long, value_name = "DEVICES", env = "NETPOLD_NODE_DEVICES", default_value = "auto")]
    pub node_devices: NodeDevices,
    /// Devices that lead into another network namespace but belong to the node (a macvlan, VLAN or tunnel on a link
    /// there): packets from any other such device reach no pod and do not leave the node. none, auto (all), or names
    /// as for --node-devices
    #[arg(long, value_name = "DEVICES", env = "NETPOLD_TRUSTED_DEVICES", default_value = "none")]
    pub trusted_devices: NodeDevices,
    /// Bit of the packet mark (`skb->mark`) set on packets judged at their pod's interface; no other
    /// program on the node may use it
    #[arg(long, value_name = "BIT", env = "NETPOLD_MARK_BIT",
          default_value_t = netpold_ebpf::judge::proof::DEFAULT_BIT,
          value_parser = clap::value_parser!(u8).range(0..32))]
    pub mark_bit: u8,
    /// Devices at which XDP drops packets that policy denies to local pods, before the kernel allocates
    /// an skb: comma-separated names, in which `*` stands for any characters [default: none]
    #[arg(long, value_name = "NAME", env = "NETPOLD_XDP_UPLINK", value_delimiter = ',')]
    pub xdp_uplink: Vec<String>,
    /// Packets that XDP drops at these devices
    #[arg(long, value_name = "WHAT", env = "NETPOLD_XDP_UPLINK_DROPS", default_value = "openings")]
    pub xdp_uplink_drops: UplinkDrops,
    /// First hook that judges packets of a pod: TC at its veth, or XDP in front of TC
    #[arg(long, value_name = "HOOK", env = "NETPOLD_POD_EGRESS_HOOK", default_value = "tc")]
    pub pod_egress_hook: PodEgressHook,
    /// Packets that policy denies, where neither the policies nor the namespace have the annotation netpold.io/deny:
    /// they disappear, or the kernel answers them with a TCP reset or an ICMP error
    #[arg(long, value_name = "WHAT", env = "NETPOLD_DENY", default_value = "drop")]
    pub deny: Denial,
    /// Maximum number of answers to denied packets in a second at each pod, in each direction
    #[arg(long, value_name = "NUMBER", env = "NETPOLD_REJECT_RATE", default_value = "100",
        value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub reject_rate: u32,
    /// Maximum number of answers to denied packets in a second at all pods of the node together, without the first five
    /// at each pod in each direction
    #[arg(long, value_name = "NUMBER", env = "NETPOLD_REJECT_NODE_RATE", default_value = "2000",
        value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub reject_node_rate: u32,
    /// Format of the log
    #[arg(long, value_name = "FORMAT", env = "NETPOLD_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Log filter: a level, or targets with levels as in `info,netpold_kube=debug`
    #[arg(long, value_name = "FILTER", env = "NETPOLD_LOG", default_value = "info")]
    pub log: String,
}

/// Flags of `netpold standby`.
#[derive(Debug, Args)]
pub struct StandbyArgs {
    /// Pin root of the agent
    #[arg(long, value_name = "DIR", env = "NETPOLD_BPFFS", default_value = DEFAULT_BPFFS)]
    pub bpffs: PathBuf,
    /// Format of the log
    #[arg(long, value_name = "FORMAT", env = "NETPOLD_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Log filter: a level, or targets with levels as in `info,netpold::standby=debug`
    #[arg(long, value_name = "FILTER", env = "NETPOLD_LOG", default_value = "info")]
    pub log: String,
}

/// Flags of `netpold controller`.
#[derive(Debug, Args)]
pub struct ControllerArgs {
    /// Kubeconfig of the API server [default: the pod's service account]
    #[arg(long, value_name = "FILE", env = "NETPOLD_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig, instead of its current one
    #[arg(long, value_name = "NAME", env = "NETPOLD_CONTEXT", requires = "kubeconfig")]
    pub context: Option<String>,
    /// Seconds of silence after which a connection to the API server is closed
    #[arg(long, value_name = "SECONDS", env = "NETPOLD_API_TIMEOUT", default_value = "100",
        value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub api_timeout: u16,
    /// Namespace of the controller's Lease, Secret and Service
    #[arg(long, value_name = "NAME", env = "NETPOLD_NAMESPACE", default_value = "netpold-system")]
    pub namespace: String,
    /// Name of this replica in the Lease: the pod's name [default: the host's name]
    #[arg(long, value_name = "NAME", env = "NETPOLD_IDENTITY")]
    pub identity: Option<String>,
    /// Address to serve the webhook on
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        env = "NETPOLD_WEBHOOK_LISTEN",
        default_value = ":8443"
    )]
    pub webhook_listen: ListenAddress,
    /// Allowed clients of the webhook: comma-separated addresses or CIDRs of the API servers; other clients are
    /// refused [default: all clients; pods have a connection limit of their own]
    #[arg(long, value_name = "CIDR,…", env = "NETPOLD_WEBHOOK_CLIENTS", value_delimiter = ',',
        value_parser = address_block)]
    pub webhook_clients: Vec<IpNet>,
    /// PEM file of certificate authorities: clients of the webhook need a certificate by one of them. The API server
    /// gets its certificate from its `--admission-control-config-file` [default: no client certificate is required]
    #[arg(long, value_name = "FILE", env = "NETPOLD_WEBHOOK_CLIENT_CA")]
    pub webhook_client_ca: Option<PathBuf>,
    /// Lifetime of the webhook's certificates, as in 90d, 12h, 30m or 60s; they are replaced after two
    /// thirds of it
    #[arg(long, value_name = "TIME", env = "NETPOLD_CERTIFICATE_LIFETIME", default_value = "90d",
        value_parser = lifetime)]
    pub certificate_lifetime: Duration,
    /// Whether to write peer slices, for agents with --peers slices
    #[arg(long, value_name = "WHETHER", env = "NETPOLD_PEER_SLICES", default_value = "off")]
    pub peer_slices: WritePeerSlices,
    /// Address to serve /metrics, /livez and /readyz on; :PORT for every address [default: none]
    #[arg(long, value_name = "ADDRESS:PORT", env = "NETPOLD_LISTEN")]
    pub listen: Option<ListenAddress>,
    /// Format of the log
    #[arg(long, value_name = "FORMAT", env = "NETPOLD_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Log filter: a level, or targets with levels as in `info,netpold_kube=debug`
    #[arg(long, value_name = "FILTER", env = "NETPOLD_LOG", default_value = "info")]
    pub log: String,
}

impl From<ControllerArgs> for netpold_controller::ControllerSettings {
    fn from(args: ControllerArgs) -> Self {
        Self {
            access: Access {
                kubeconfig: args.kubeconfig,
                as_kubectl: false,
                context: args.context,
                timeout: Duration::from_secs(args.api_timeout.into()),
            },
            namespace: args.namespace,
            identity: args.identity,
            webhook: WebhookSettings {
                address: args.webhook_listen,
                clients: args.webhook_clients,
                client_ca: args.webhook_client_ca,
            },
            certificate_lifetime: args.certificate_lifetime,
            peer_slices: args.peer_slices == WritePeerSlices::On,
            listen: args.listen,
        }
    }
}

/// Arguments of the export to an OpenTelemetry collector.
#[derive(Debug, Args)]
pub struct OtlpArgs {
    /// URL of an OpenTelemetry collector, as `http://collector:4318`, which gets logs and metrics by OTLP over HTTP with
    /// protobuf; /v1/logs and /v1/metrics are appended [default: none]
    #[arg(long, value_name = "URL", env = "NETPOLD_OTLP_ENDPOINT")]
    pub otlp_endpoint: Option<CollectorAddress>,
    /// File with headers for the collector, one `name: value` a line; read for each request [default: none]
    #[arg(long, value_name = "FILE", env = "NETPOLD_OTLP_HEADERS_FILE")]
    pub otlp_headers_file: Option<PathBuf>,
    /// PEM file with the certificate authorities of the collector [default: those of the system]
    #[arg(long, value_name = "FILE", env = "NETPOLD_OTLP_CA_FILE")]
    pub otlp_ca_file: Option<PathBuf>,
    /// Events to export as logs: denied packets (deny), flows that audited policies would deny (audit), new flows
    /// (allow), or none
    #[arg(
        long,
        value_name = "VERDICT,…",
        env = "NETPOLD_OTLP_LOGS",
        default_value = "deny,audit",
        value_delimiter = ','
    )]
    pub otlp_logs: Vec<ExportedLogs>,
    /// Seconds between exports of the metrics; 0: none
    #[arg(
        long,
        value_name = "SECONDS",
        env = "NETPOLD_OTLP_METRICS_INTERVAL",
        default_value_t = 60
    )]
    pub otlp_metrics_interval: u16,
}

/// Parses an address or a CIDR.
fn address_block(text: &str) -> Result<IpNet, String> {
    let address = text.parse::<IpAddr>().map(IpNet::from);
    address.or_else(|_| text.parse()).map_err(|_| "give an address or a CIDR".to_owned())
}

/// Parses a duration of 15 seconds to 10 years, with its unit.
fn lifetime(text: &str) -> Result<Duration, String> {
    match time(text)?.as_secs() {
        seconds @ 15..=315_360_000 => Ok(Duration::from_secs(seconds)),
        _ => Err("give 15s to 3650d".to_owned()),
    }
}

/// Flags of `netpold uninstall`.
#[derive(Debug, Args)]
pub struct UninstallArgs {
    /// Pin root of the agent: the directory of its pinned maps and links
    #[arg(long, value_name = "DIR", env = "NETPOLD_BPFFS", default_value = DEFAULT_BPFFS)]
    pub bpffs: PathBuf,
    /// Name of the Node object, if the machine is a node of a cluster: netpold's condition is removed from it
    #[arg(long, value_name = "NODE", env = "NETPOLD_NODE_NAME")]
    pub node_name: Option<String>,
    /// Kubeconfig of the API server [default: the pod's service account]
    #[arg(long, value_name = "FILE", env = "NETPOLD_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_flag_has_its_environment_twin() {
        let mut command = Cli::command();
        command.build();
        for sub in command.get_subcommands().filter(|c| c.get_name() != "help") {
            for arg in sub.get_arguments() {
                let Some(long) = arg.get_long().filter(|l| *l != "help" && *l != "version") else {
                    continue;
                };
                let twin = format!("NETPOLD_{}", long.to_uppercase().replace('-', "_"));
                assert_eq!(arg.get_env().and_then(|e| e.to_str()), Some(twin.as_str()));
            }
        }
    }
}
