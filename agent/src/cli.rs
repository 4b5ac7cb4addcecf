//! The command line. Every flag has an environment twin, `NETPOLD_` and its name.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
use netpold_core::cluster::PRIVATE_RANGES;
use netpold_core::probe::IpProtocol;

use crate::arguments::{Who, time};
use crate::completion::CompletionArgs;
use crate::dataplane::bpffs::DEFAULT_BPFFS;
use crate::diff::DiffArgs;
use crate::doctor::DoctorArgs;
use crate::engine::interfaces::NodeDevices;
use crate::flows::FlowsArgs;
use crate::learn::LearnArgs;
use crate::listen::ListenAddress;
use crate::live::ClusterArgs;
use crate::observe::ObserveArgs;
pub use crate::output::Output;
use crate::socket::DEFAULT_SOCKET;
use crate::top::TopArgs;
use crate::trace::TraceArgs;

/// Where the last good state is kept unless told otherwise: it must survive a reboot, so not /run.
const DEFAULT_STATE: &str = "/var/lib/netpold/state";
/// Where libcni keeps what CNI plugins answered unless told otherwise.
const DEFAULT_CNI_RESULTS: &str = "/var/lib/cni/results";
/// Where the kubelet's static pods are unless told otherwise.
const DEFAULT_STATIC_PODS: &str = "/etc/kubernetes/manifests";

/// Kubernetes NetworkPolicy enforced in eBPF at every pod's veth
#[derive(Debug, Parser)]
#[command(name = "netpold", version, about, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Enforce NetworkPolicy on this node's pods
    #[command(
        after_help = "Exit status: 0 ended by a signal, 1 failed, 2 the flags make no sense."
    )]
    Run(RunArgs),
    /// Say whether policy allows some traffic, and why
    #[command(after_help = "Exit status: 0 allowed, 1 denied, 2 cannot tell (why is on stderr).\n\
        With --socket or --nodes: 2 also if objects, tables and kernel differ.\n\
        With --probes: 0 every line answered, 2 some line is not.")]
    Explain(ExplainArgs),
    /// Say which connections a change of manifests cuts or opens
    #[command(
        after_help = "Exit status: 0 nothing of the kind of --fail-on, 1 something, 2 cannot tell, or not everything \
        could be compared."
    )]
    Diff(DiffArgs),
    /// Check that connections are allowed or denied as a file expects
    #[command(after_help = "Exit status: 0 every assertion holds, 1 some does not, 2 cannot tell.")]
    Test(TestArgs),
    /// Show what a running agent enforces, drops and has problems with, or all agents of a cluster
    #[command(after_help = "Exit status: 0 every agent answered, 1 some did not.")]
    Status(StatusArgs),
    /// List the rules that isolate this node's or a cluster's pods, when each was last used and by how
    /// many flows
    #[command(after_help = "Exit status: 0 every agent answered, 1 some did not.")]
    Rules(RulesArgs),
    /// List the flows of this node's or a cluster's pods, and how policy judged them last
    #[command(after_help = "Exit status: 0 every agent answered, 1 some did not.")]
    Flows(FlowsArgs),
    /// Find what keeps policy from working, on this node, in manifests or in a cluster, and how to put it
    /// right
    #[command(
        after_help = "Exit status: 0 nothing, 1 errors or warnings were found, 2 none were, but not \
        everything could be looked at."
    )]
    Doctor(DoctorArgs),
    /// Show drops, flows that policies on trial would deny, and new flows, each with policy and rule
    #[command(after_help = "Exit status: 0 all was shown, 1 an agent did not answer or ended.")]
    Observe(ObserveArgs),
    /// Show each step of the judgement of a pod's packets, for some time
    #[command(
        after_help = "Exit status: 0 the time is over, 1 the agent did not answer, refused or ended."
    )]
    Trace(TraceArgs),
    /// Show the busiest drops, flows, pods and policies on a terminal
    #[command(after_help = "Exit status: 0 ended by a key or a signal, 1 failed.")]
    Top(TopArgs),
    /// Write NetworkPolicies of least privilege from the flows that were seen
    #[command(
        after_help = "Exit status: 0 what was seen stays allowed, 1 some of it would be denied (named on \
            stderr), 2 cannot tell."
    )]
    Learn(LearnArgs),
    /// Write which policies are in force, and add the readiness gate to new pods
    #[command(after_help = "Exit status: 0 ended by a signal, 1 failed.")]
    Controller(ControllerArgs),
    /// Close new pods while no agent runs on the node: for a second container beside the agent's
    #[command(after_help = "Exit status: 0 ended by a signal, 1 failed.")]
    Standby(StandbyArgs),
    /// Take every program and pin off this node; its pods are not under policy any more
    #[command(after_help = "Exit status: 0 done, 1 failed.")]
    Uninstall(UninstallArgs),
    /// Write a script with which a shell completes commands and flags
    #[command(after_help = "Exit status: 0 done, 1 failed.")]
    Completion(CompletionArgs),
}

/// Flags of `netpold run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Directory of Kubernetes objects: *.yaml, *.yml and *.json; changes are followed. Without it
    /// they come from the cluster's API server
    #[arg(long, value_name = "DIR", env = "NETPOLD_MANIFESTS",
        conflicts_with_all = ["kubeconfig", "context"])]
    pub manifests: Option<PathBuf>,
    /// How to reach the API server; by default as every pod in a cluster does
    #[arg(long, value_name = "FILE", env = "NETPOLD_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig, instead of its current one
    #[arg(long, value_name = "NAME", env = "NETPOLD_CONTEXT", requires = "kubeconfig")]
    pub context: Option<String>,
    /// Which Node objects to watch: those of other nodes are needed for their node ports
    #[arg(long, value_name = "WHICH", env = "NETPOLD_WATCH_NODES", default_value = "all")]
    pub watch_nodes: WatchNodes,
    /// Whether to follow ClusterNetworkPolicies on the API server; manifests are read with them always
    #[arg(
        long,
        value_name = "WHICH",
        env = "NETPOLD_CLUSTER_NETWORK_POLICIES",
        default_value = "auto"
    )]
    pub cluster_network_policies: ClusterNetworkPolicies,
    /// Seconds without a word after which a connection to the API server is given up
    #[arg(long, value_name = "SECONDS", env = "NETPOLD_API_TIMEOUT", default_value = "100",
        value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub api_timeout: u16,
    /// Readiness gate of pods that are ready no sooner than policy judges their packets, and their
    /// condition that says so
    #[arg(long, value_name = "TYPE", env = "NETPOLD_READINESS_GATE",
        default_value = crate::publish::READINESS_GATE)]
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
    /// Serve /metrics, /livez and /readyz there; :PORT for every address [default: nowhere]
    #[arg(long, value_name = "ADDRESS:PORT", env = "NETPOLD_LISTEN")]
    pub listen: Option<ListenAddress>,
    /// Drop what a pod sends from an address that is not its own, or in another's name
    #[arg(long, value_name = "WHICH", env = "NETPOLD_CHECK_SOURCE", default_value = "all")]
    pub check_source: CheckSource,
    /// Whose source is not checked, with commas between them: namespaces, where it is not of pods with
    /// the annotation netpold.io/check-source: off; blocks, for pods with an address in them
    /// [default: nobody's]
    #[arg(
        long,
        value_name = "NAMESPACE|CIDR",
        env = "NETPOLD_SOURCE_CHECK_EXEMPT",
        value_delimiter = ','
    )]
    pub source_check_exempt: Vec<String>,
    /// Seconds within which changes that others make to maps, programs and pins are put right
    #[arg(long, value_name = "SECONDS", env = "NETPOLD_READBACK", default_value = "10",
          value_parser = clap::value_parser!(u16).range(1..))]
    pub readback: u16,
    /// What an interface gets that appears before its pod is known
    #[arg(long, value_name = "WHAT", env = "NETPOLD_NEW_PODS", default_value = "allow")]
    pub new_pods: NewPods,
    /// Which further interfaces of pods (Multus) are under policy
    #[arg(
        long,
        value_name = "WHICH",
        env = "NETPOLD_SECOND_INTERFACES",
        default_value = "enforce"
    )]
    pub second_interfaces: SecondInterfaces,
    /// Blocks in which addresses of further networks, as pods' annotations have them, count for their pods; or none
    #[arg(long, value_name = "CIDR", env = "NETPOLD_SECOND_NETWORKS", value_delimiter = ',',
        default_values_t = PRIVATE_RANGES.map(|range| range.to_string()))]
    pub second_networks: Vec<String>,
    /// Directory in which the container runtime keeps what CNI plugins answered: a pod's addresses
    /// are known from there before its status has them. It need not exist
    #[arg(long, value_name = "DIR", env = "NETPOLD_CNI_RESULTS",
        default_value = DEFAULT_CNI_RESULTS)]
    pub cni_results: PathBuf,
    /// Directory of the kubelet's static pods: their labels while the API server has not listed them.
    /// It need not exist
    #[arg(long, value_name = "DIR", env = "NETPOLD_STATIC_PODS",
        default_value = DEFAULT_STATIC_PODS)]
    pub static_pods: PathBuf,
    /// File to keep the last good state in, for a boot without the source
    #[arg(long, value_name = "FILE", env = "NETPOLD_STATE", default_value = DEFAULT_STATE)]
    pub state: PathBuf,
    /// End when another agent starts on the same pin root and knows everything there is, and leave it
    /// what is enforced: for a unit that keeps the node from the boot until the DaemonSet's agent does
    #[arg(long, env = "NETPOLD_GIVE_WAY")]
    pub give_way: bool,
    /// Take over from an agent with this flag on the same pin root once all objects are known here, and hand
    /// over in the same way: for a DaemonSet whose new pods start before the old ones end (maxSurge)
    #[arg(long, env = "NETPOLD_TAKE_OVER", conflicts_with = "give_way")]
    pub take_over: bool,
    /// At which of the node's devices packets to Services are judged behind their translation: auto,
    /// none, or names with commas between them, each of which may end in `*`
    #[arg(long, value_name = "DEVICES", env = "NETPOLD_NODE_DEVICES", default_value = "auto")]
    pub node_devices: NodeDevices,
    /// Devices of the node that lead into another network namespace and are the node's own all the same (a macvlan, VLAN
    /// or tunnel on top of a link there): what comes by any other such device reaches no pod and does not leave the node.
    /// none, auto (all), or names as above
    #[arg(long, value_name = "DEVICES", env = "NETPOLD_TRUSTED_DEVICES", default_value = "none")]
    pub trusted_devices: NodeDevices,
    /// Bit of the packet mark (`skb->mark`) that says that a packet was judged at its pod's interface: one
    /// that nothing else on the node uses
    #[arg(long, value_name = "BIT", env = "NETPOLD_MARK_BIT",
          default_value_t = netpold_ebpf::judge::proof::DEFAULT_BIT,
          value_parser = clap::value_parser!(u8).range(0..32))]
    pub mark_bit: u8,
    /// Devices at which XDP drops what policy denies to local pods, before the kernel makes a packet
    /// of it: names, in which `*` stands for any characters, with commas between [default: none]
    #[arg(long, value_name = "NAME", env = "NETPOLD_XDP_UPLINK", value_delimiter = ',')]
    pub xdp_uplink: Vec<String>,
    /// What XDP drops there
    #[arg(long, value_name = "WHAT", env = "NETPOLD_XDP_UPLINK_DROPS", default_value = "openings")]
    pub xdp_uplink_drops: UplinkDrops,
    /// Where what a pod sends is judged first: by TC at its veth, or also by XDP in front of that
    #[arg(long, value_name = "HOOK", env = "NETPOLD_POD_EGRESS_HOOK", default_value = "tc")]
    pub pod_egress_hook: PodEgressHook,
    /// Format of the log
    #[arg(long, value_name = "FORMAT", env = "NETPOLD_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// What to log: a level, or targets with levels as in `info,netpold::source=debug`
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
    /// Log level, or targets with levels as in `info,netpold::standby=debug`
    #[arg(long, value_name = "FILTER", env = "NETPOLD_LOG", default_value = "info")]
    pub log: String,
}

/// Flags of `netpold controller`.
#[derive(Debug, Args)]
pub struct ControllerArgs {
    /// How to reach the API server; by default as every pod in a cluster does
    #[arg(long, value_name = "FILE", env = "NETPOLD_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig, instead of its current one
    #[arg(long, value_name = "NAME", env = "NETPOLD_CONTEXT", requires = "kubeconfig")]
    pub context: Option<String>,
    /// Seconds without a word after which a connection to the API server is given up
    #[arg(long, value_name = "SECONDS", env = "NETPOLD_API_TIMEOUT", default_value = "100",
        value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub api_timeout: u16,
    /// Namespace of the controller's Lease, Secret and Service
    #[arg(long, value_name = "NAME", env = "NETPOLD_NAMESPACE", default_value = "netpold-system")]
    pub namespace: String,
    /// What this replica is called in the Lease: the pod's name [default: the host's name]
    #[arg(long, value_name = "NAME", env = "NETPOLD_IDENTITY")]
    pub identity: Option<String>,
    /// Serve the webhook there
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        env = "NETPOLD_WEBHOOK_LISTEN",
        default_value = ":8443"
    )]
    pub webhook_listen: ListenAddress,
    /// Addresses that may ask the webhook, with commas between them: those of the API servers, as addresses or CIDRs.
    /// Others are refused [default: everybody may ask, and pods have places of their own]
    #[arg(long, value_name = "CIDR,…", env = "NETPOLD_WEBHOOK_CLIENTS", value_delimiter = ',',
        value_parser = address_block)]
    pub webhook_clients: Vec<IpNet>,
    /// Only clients with a certificate by an authority of this PEM file may ask the webhook: the API server has one by
    /// its `--admission-control-config-file` [default: a certificate is not asked for]
    #[arg(long, value_name = "FILE", env = "NETPOLD_WEBHOOK_CLIENT_CA")]
    pub webhook_client_ca: Option<PathBuf>,
    /// How long the webhook's certificates are good for, as in 90d, 12h, 30m or 60s; they are replaced after
    /// two thirds of it
    #[arg(long, value_name = "TIME", env = "NETPOLD_CERTIFICATE_LIFETIME", default_value = "90d",
        value_parser = lifetime)]
    pub certificate_lifetime: Duration,
    /// Serve /metrics, /livez and /readyz there; :PORT for every address [default: nowhere]
    #[arg(long, value_name = "ADDRESS:PORT", env = "NETPOLD_LISTEN")]
    pub listen: Option<ListenAddress>,
    /// Format of the log
    #[arg(long, value_name = "FORMAT", env = "NETPOLD_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// What to log: a level, or targets with levels as in `info,netpold::source=debug`
    #[arg(long, value_name = "FILTER", env = "NETPOLD_LOG", default_value = "info")]
    pub log: String,
}

/// An address, or a block of them.
fn address_block(text: &str) -> Result<IpNet, String> {
    let address = text.parse::<IpAddr>().map(IpNet::from);
    address.or_else(|_| text.parse()).map_err(|_| "give an address or a CIDR".to_owned())
}

/// A time of 15 seconds to 10 years, with its unit.
fn lifetime(text: &str) -> Result<Duration, String> {
    match time(text)?.as_secs() {
        seconds @ 15..=315_360_000 => Ok(Duration::from_secs(seconds)),
        _ => Err("give 15s to 3650d".to_owned()),
    }
}

/// Of which pods the source address is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CheckSource {
    /// None
    Off,
    /// Pods that some policy isolates
    Isolated,
    /// Every pod
    All,
}

/// Which further interfaces of pods are under policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SecondInterfaces {
    /// All; in namespaces with the label netpold.io/second-interfaces: open those whose addresses are known
    Enforce,
    /// The same, and one whose addresses are not known sends nothing
    Strict,
    /// None
    Off,
}

/// What an interface gets that appears before its pod is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NewPods {
    /// Nothing is in its way
    Allow,
    /// Only the node reaches it and is reached by it
    Deny,
}

/// Which Node objects are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WatchNodes {
    /// All of them
    All,
    /// That of this node alone
    Own,
}

/// Whether ClusterNetworkPolicies are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClusterNetworkPolicies {
    /// Wherever their definition (a CRD) is installed, also later
    Auto,
    /// Never: the API server is not asked for them
    Off,
}

/// What XDP drops at an uplink, of what policy denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UplinkDrops {
    /// What begins a TCP connection or an SCTP association
    Openings,
    /// All that belongs to no known flow: only where the node translates nothing (no kube-proxy)
    All,
}

/// Where what a pod sends is judged first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PodEgressHook {
    /// By TC alone
    Tc,
    /// XDP drops what TC would drop. The pod's TCP loses segmentation offload by it
    Xdp,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// A JSON object a line
    Json,
}

/// Flags of `netpold explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Directory of Kubernetes objects: *.yaml, *.yml and *.json; `-` is standard input; or a cluster, see below
    #[arg(long, value_name = "DIR", env = "NETPOLD_MANIFESTS")]
    pub manifests: Option<PathBuf>,
    /// Where addresses of pods come from that have none, such as pod templates: blocks with commas between them
    /// [default: private addresses]
    #[arg(long, value_name = "CIDR", env = "NETPOLD_POD_CIDRS", value_delimiter = ',')]
    pub pod_cidrs: Vec<IpNet>,
    /// Control socket of an agent, to ask in the place of manifests: it compares what its objects, its
    /// tables and the kernel's programs say
    #[arg(long, value_name = "PATH", env = "NETPOLD_SOCKET")]
    pub socket: Option<PathBuf>,
    /// Who sends: namespace/pod, namespace/workload, a pod or workload of the namespace of -n (also as deployment/web),
    /// or an address
    #[arg(long, value_name = "WHO", env = "NETPOLD_FROM", required_unless_present = "probes")]
    pub from: Option<Who>,
    /// Who receives: the same, or svc/namespace/name
    #[arg(long, value_name = "WHO", env = "NETPOLD_TO", required_unless_present = "probes")]
    pub to: Option<Who>,
    /// Destination port (TCP, UDP and SCTP need one)
    #[arg(long, env = "NETPOLD_PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// TCP, UDP, SCTP, ICMP, ICMPv6 or an IP protocol number
    #[arg(long, env = "NETPOLD_PROTOCOL", default_value = "TCP")]
    pub protocol: IpProtocol,
    /// Answer many at once: JSON lines with from, to, port and protocol in, the same lines with
    /// verdict out; `-` is standard input
    #[arg(long, value_name = "FILE", env = "NETPOLD_PROBES", conflicts_with_all = ["from", "to", "port"])]
    pub probes: Option<PathBuf>,
    /// In a cluster, also ask the agents of the pods' nodes, and compare what their objects, their tables and
    /// the kernel's programs say
    #[arg(long, env = "NETPOLD_NODES", conflicts_with_all = ["probes", "manifests", "local"])]
    pub nodes: bool,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Namespace of pods that are named without one, and, where RBAC forbids to list objects in all namespaces,
    /// the one to see [default: the context's; without a cluster: default]
    #[arg(short, long, value_name = "NAME", env = "NETPOLD_NAMESPACE")]
    pub namespace: Option<String>,
    /// Format of the answer
    #[arg(short, long, value_name = "FORMAT", env = "NETPOLD_OUTPUT", default_value = "text")]
    pub output: Output,
}

/// Flags of `netpold test`.
#[derive(Debug, Args)]
pub struct TestArgs {
    /// Files of assertions, with commas between them or each after a -f; `-` is standard input. Kubernetes objects in
    /// them are applied to those of --manifests or of the cluster
    #[arg(
        short,
        long,
        value_name = "FILE",
        env = "NETPOLD_FILE",
        value_delimiter = ',',
        required = true
    )]
    pub file: Vec<PathBuf>,
    /// Also open the connections, from inside of the cluster's pods, with the tools of their images; TCP
    /// alone
    #[arg(long, env = "NETPOLD_PROBE", conflicts_with_all = ["manifests", "local"])]
    pub probe: bool,
    /// Directory of Kubernetes objects: *.yaml, *.yml and *.json; `-` is standard input; or a cluster, see below
    #[arg(long, value_name = "DIR", env = "NETPOLD_MANIFESTS")]
    pub manifests: Option<PathBuf>,
    /// Where addresses of pods come from that have none, such as pod templates: blocks with commas between them
    /// [default: private addresses]
    #[arg(long, value_name = "CIDR", env = "NETPOLD_POD_CIDRS", value_delimiter = ',')]
    pub pod_cidrs: Vec<IpNet>,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Namespace of pods that assertions name without one, and, where RBAC forbids to list objects in all
    /// namespaces, the one to see [default: the context's; without a cluster: default]
    #[arg(short, long, value_name = "NAME", env = "NETPOLD_NAMESPACE")]
    pub namespace: Option<String>,
    /// Format of the answer
    #[arg(short, long, value_name = "FORMAT", env = "NETPOLD_OUTPUT", default_value = "text")]
    pub output: TestOutput,
}

/// Format of outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TestOutput {
    /// For people
    Text,
    /// Test Anything Protocol, version 14
    Tap,
    /// XML for CI servers
    Junit,
}

/// Flags of `netpold status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Control socket of the agent
    #[arg(long, value_name = "PATH", env = "NETPOLD_SOCKET", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Format of the answer
    #[arg(short, long, value_name = "FORMAT", env = "NETPOLD_OUTPUT", default_value = "text")]
    pub output: Output,
    /// Print the reasons why the agent is not ready instead (as /readyz), with exit status 1 if there are
    /// any: for a probe that must not reach another agent of the node
    #[arg(long, env = "NETPOLD_READY", conflicts_with = "output")]
    pub ready: bool,
}

/// Flags of `netpold rules`.
#[derive(Debug, Args)]
pub struct RulesArgs {
    /// Control socket of the agent
    #[arg(long, value_name = "PATH", env = "NETPOLD_SOCKET", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Only rules that were watched and not used for that long, as in 7d, 12h, 30m or 60s
    #[arg(long, value_name = "TIME", env = "NETPOLD_UNUSED", value_parser = time)]
    pub unused: Option<Duration>,
    /// Only rules of policies in that namespace
    #[arg(short, long, value_name = "NAME", env = "NETPOLD_NAMESPACE")]
    pub namespace: Option<String>,
    /// Of policies in all namespaces, which is the default
    #[arg(short = 'A', long, env = "NETPOLD_ALL_NAMESPACES", conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Format of the answer
    #[arg(short, long, value_name = "FORMAT", env = "NETPOLD_OUTPUT", default_value = "text")]
    pub output: Output,
}

/// Flags of `netpold uninstall`.
#[derive(Debug, Args)]
pub struct UninstallArgs {
    /// Directory that maps and links are pinned in
    #[arg(long, value_name = "DIR", env = "NETPOLD_BPFFS", default_value = DEFAULT_BPFFS)]
    pub bpffs: PathBuf,
    /// Name of the Node object, if the machine is a node of a cluster: its condition is removed
    #[arg(long, value_name = "NODE", env = "NETPOLD_NODE_NAME")]
    pub node_name: Option<String>,
    /// How to reach the API server; by default as every pod in a cluster does
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
