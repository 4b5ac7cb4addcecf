//! Settings of `netpold run`, validated.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use netpold_api::events::TrafficVerdict;
use netpold_controller::listen::ListenAddress;
use netpold_core::cluster::SecondaryNetworks;
use netpold_core::options::{Options, SourceExempt};
use netpold_core::pattern::block;
use netpold_dataplane::Rejections;
use netpold_dataplane::bpffs::TakesFrom;
use netpold_dataplane::uplink_xdp::DesiredUplinks;
use netpold_engine::interfaces::NodeDevices;
use netpold_kube::cluster;
use netpold_kube::opened::SourceOrigin;
use tracing_subscriber::EnvFilter;

use crate::cli::{
    ClusterNetworkPolicies, DnsTransports, ExportedLogs, LogFormat, OtlpArgs, PodEgressHook,
    RunArgs,
};
use crate::logging::{log_filter, start_log};

/// Longest path of a control socket: `sun_path` without its final zero and the suffix at creation.
const SOCKET_PATH_MAX: usize = 107 - netpold_engine::admin::NEW_SUFFIX.len();

/// Settings of `netpold run`.
#[derive(Debug)]
pub struct RunConfig {
    /// Source of the objects.
    pub origin: SourceOrigin,
    /// Name of this node.
    pub node: String,
    /// Type of the readiness gate and condition of pods.
    pub readiness_gate: String,
    /// Files and directories.
    pub files: Files,
    /// Address of metrics and health, if any.
    pub listen: Option<ListenAddress>,
    /// Maximum number of series of denied traffic by workload; 0: none.
    pub denied_series: u16,
    /// Export to an OpenTelemetry collector, if any.
    pub export: Option<netpold_export::ExportSettings>,
    /// Options of the compiler, without those that depend on pinned state.
    pub options: Options,
    /// Devices and hooks at which to judge packets.
    pub hooks: HookSettings,
    /// Whether to exit when another agent claims the pin root.
    pub give_way: bool,
    /// Agents from which to take over the pin root.
    pub takes_from: TakesFrom,
    /// Duration of one comparison of all kernel state with the desired state.
    pub readback: Duration,
    /// Format of the log.
    log_format: LogFormat,
    /// Filter of the log.
    log: EnvFilter,
}

/// Files and directories of the agent.
#[derive(Debug)]
pub struct Files {
    /// Directory to pin maps and links in.
    pub bpffs: PathBuf,
    /// Control socket to create.
    pub socket: PathBuf,
    /// File of the last good state.
    pub state: PathBuf,
    /// Directory of CNI results.
    pub cni_results: PathBuf,
    /// Directory of the kubelet's static pods.
    pub static_pods: PathBuf,
}

/// Hooks besides those at the pods' interfaces, and the mark of judged packets.
#[derive(Debug)]
pub struct HookSettings {
    /// Node devices at which to judge packets.
    pub node_devices: NodeDevices,
    /// Devices that lead to another network namespace and still belong to the node.
    pub trusted_devices: NodeDevices,
    /// Bit of `skb->mark` in judged packets, 0 to 31.
    pub mark_bit: u8,
    /// Devices at which XDP drops packets, if any.
    pub uplinks: Option<DesiredUplinks>,
    /// Whether XDP at the pods' interfaces drops packets that the pods may not send.
    pub pod_xdp: bool,
    /// Limits of the answers to denied packets.
    pub rejections: Rejections,
}

impl TryFrom<RunArgs> for RunConfig {
    type Error = anyhow::Error;

    fn try_from(args: RunArgs) -> Result<Self> {
        check_node_name(&args.node_name)?;
        check_condition(&args.readiness_gate)?;
        ensure!(
            args.socket.as_os_str().len() <= SOCKET_PATH_MAX,
            "--socket {}: {} bytes, a socket's path may have {SOCKET_PATH_MAX}; choose a shorter one",
            args.socket.display(),
            args.socket.as_os_str().len()
        );
        let settings = cluster::WatchSettings {
            access: cluster::Access {
                kubeconfig: args.kubeconfig,
                as_kubectl: false,
                context: args.context,
                timeout: Duration::from_secs(args.api_timeout.into()),
            },
            node: args.node_name.clone(),
            nodes: args.watch_nodes.into(),
            secondary_networks: secondary_networks(&args.second_networks)?,
            peers: args.peers.into(),
            cluster_policies: args.cluster_network_policies == ClusterNetworkPolicies::Auto,
        };
        let log = log_filter(&args.log)?;
        let export = export(args.otlp, &args.node_name)?;
        Ok(Self {
            origin: origin(args.manifests, settings),
            readiness_gate: args.readiness_gate,
            files: Files {
                bpffs: args.bpffs,
                socket: args.socket,
                state: args.state,
                cni_results: args.cni_results,
                static_pods: args.static_pods,
            },
            listen: args.listen,
            denied_series: args.denied_series,
            export,
            options: Options {
                node: args.node_name.clone(),
                check_source: args.check_source.into(),
                source_exempt: source_exempt(&args.source_check_exempt)?,
                new_pods: args.new_pods.into(),
                secondary_interfaces: args.second_interfaces.into(),
                observe_flows: args.observe_flows.into(),
                secondary_networks: secondary_networks(&args.second_networks)?,
                denial: args.deny.into(),
                resolvers: args.dns_servers.into_iter().collect(),
                names_over_tcp: args.dns_transports == DnsTransports::UdpTcp,
                ..Options::default()
            },
            node: args.node_name,
            hooks: HookSettings {
                node_devices: args.node_devices,
                trusted_devices: args.trusted_devices,
                mark_bit: args.mark_bit,
                uplinks: (!args.xdp_uplink.is_empty()).then_some(DesiredUplinks {
                    names: args.xdp_uplink,
                    scope: args.xdp_uplink_drops.into(),
                }),
                pod_xdp: args.pod_egress_hook == PodEgressHook::Xdp,
                rejections: Rejections { pod: args.reject_rate, node: args.reject_node_rate },
            },
            give_way: args.give_way,
            takes_from: if args.take_over { TakesFrom::Predecessor } else { TakesFrom::GivesWay },
            readback: Duration::from_secs(args.readback.into()),
            log_format: args.log_format,
            log,
        })
    }
}

/// Returns the settings of the export; `None` without an endpoint, and if nothing is to be exported.
fn export(args: OtlpArgs, node: &str) -> Result<Option<netpold_export::ExportSettings>> {
    let Some(mut endpoint) = args.otlp_endpoint else { return Ok(None) };
    endpoint.headers = args.otlp_headers_file;
    endpoint.authorities = args.otlp_ca_file;
    let is_none = args.otlp_logs.contains(&ExportedLogs::None);
    ensure!(!is_none || args.otlp_logs.len() == 1, "--otlp-logs: none stands alone");
    let verdict = |logs: &ExportedLogs| match logs {
        ExportedLogs::Deny => Some(TrafficVerdict::Deny),
        ExportedLogs::Audit => Some(TrafficVerdict::Audit),
        ExportedLogs::Allow => Some(TrafficVerdict::Allow),
        ExportedLogs::None => None,
    };
    let verdicts = args.otlp_logs.iter().filter_map(verdict).collect();
    let seconds = args.otlp_metrics_interval;
    let metrics = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
    Ok(Some(netpold_export::ExportSettings { endpoint, node: node.to_owned(), verdicts, metrics }))
}

fn origin(manifests: Option<PathBuf>, cluster: cluster::WatchSettings) -> SourceOrigin {
    manifests.map_or(SourceOrigin::Cluster(cluster), SourceOrigin::Manifests)
}

impl RunConfig {
    /// Starts logging to standard error with these settings; may be called once per process.
    ///
    /// # Errors
    /// The process has a logger already.
    pub fn start_log(&mut self) -> Result<()> {
        start_log(self.log_format, std::mem::take(&mut self.log))
    }
}

/// Parses CIDR blocks, which must be given without host bits.
fn secondary_networks(given: &[String]) -> Result<SecondaryNetworks> {
    if given == ["none"] {
        return Ok(SecondaryNetworks(Vec::new()));
    }
    let blocks = given.iter().map(|item| {
        let Some(block) = block(item) else { bail!("--second-networks {item:?} is not a CIDR") };
        let whole = block.trunc();
        ensure!(block == whole, "--second-networks {item}: did you mean {whole}?");
        Ok(block)
    });
    blocks.collect::<Result<_>>().map(SecondaryNetworks)
}

/// Parses namespaces and CIDR blocks. Namespaces are RFC 1123 labels, so no text is both.
fn source_exempt(given: &[String]) -> Result<SourceExempt> {
    let mut exempt = SourceExempt::default();
    for item in given {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if let Some(block) = block(item) {
            let whole = block.trunc();
            ensure!(block == whole, "--source-check-exempt {item}: did you mean {whole}?");
            exempt.blocks.push(block);
        } else if !item.is_empty() && item.len() <= 63 && item.chars().all(inner) {
            exempt.namespaces.insert(item.clone());
        } else {
            bail!("--source-check-exempt {item:?} is neither a namespace nor a CIDR");
        }
    }
    Ok(exempt)
}

/// Checks that a node's name is an RFC 1123 subdomain; with any other, no pod would count as local.
fn check_node_name(name: &str) -> Result<()> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    if name.is_empty() || name.len() > 253 || !name.chars().all(inner) {
        bail!(
            "--node-name {name:?} cannot be a node's name: lower-case letters, digits, `-` and `.`; \
             see `kubectl get nodes`"
        );
    }
    Ok(())
}

/// Checks that a condition's type is a qualified name; the API server would reject each write with any other.
fn check_condition(name: &str) -> Result<()> {
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    ensure!(
        !name.is_empty() && name.len() <= 316 && name.chars().all(inner),
        "--readiness-gate {name:?} cannot be a condition's type; choose one like {}",
        netpold_engine::publish::READINESS_GATE
    );
    Ok(())
}
