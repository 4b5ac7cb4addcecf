//! Flags of `netpold observe`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use netpold_api::events::{AUDIT, TrafficVerdict};
use netpold_api::filter::{EventFilter, NamePattern, ObserveRequest, PeerPattern};
use netpold_api::socket::DEFAULT_SOCKET;
use netpold_client::arguments::time;
use netpold_client::live::ClusterArgs;
use netpold_client::output::Output;
use netpold_core::model::Direction;
use netpold_core::probe::IpProtocol;
use netpold_ebpf::reason::Reason;

/// Flags of `netpold observe`.
#[derive(Clone, Debug, Args)]
pub struct ObserveArgs {
    /// Control socket of the agent
    #[arg(long, value_name = "PATH", env = "NETPOLD_SOCKET", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Continue with new events, until interrupted
    #[arg(short, long, env = "NETPOLD_FOLLOW")]
    pub follow: bool,
    /// Start with the kept events of this time, as in 1h, 30m or 60s [default: all kept events, or
    /// none with --follow]
    #[arg(long, value_name = "TIME", env = "NETPOLD_SINCE", value_parser = time)]
    pub since: Option<Duration>,
    /// Events to observe.
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Cluster to ask.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Format: text lines, or one JSON object per line
    #[arg(short, long, value_name = "FORMAT", env = "NETPOLD_OUTPUT", default_value = "text")]
    pub output: Output,
}

/// Filter flags; an event must match all of them.
#[derive(Clone, Debug, Args)]
pub struct FilterArgs {
    /// Show only pods of this namespace
    #[arg(short, long, value_name = "NAME", env = "NETPOLD_NAMESPACE")]
    pub namespace: Option<String>,
    /// Show only this pod: a name or namespace/name, in which `*` stands for any characters
    #[arg(long, value_name = "POD", env = "NETPOLD_POD")]
    pub pod: Option<NamePattern>,
    /// Show only this remote side: a pod as with --pod, svc/namespace/name, node/name, outside, an address or
    /// a CIDR
    #[arg(long, value_name = "WHO", env = "NETPOLD_PEER")]
    pub peer: Option<PeerPattern>,
    /// Show only this direction from the pod's view: ingress or egress
    #[arg(long, value_name = "DIRECTION", env = "NETPOLD_DIRECTION", value_parser = direction)]
    pub direction: Option<Direction>,
    /// Verdicts to show, comma-separated [default: deny,audit]
    #[arg(long, value_name = "VERDICT", env = "NETPOLD_VERDICT", value_delimiter = ',',
        value_parser = verdict())]
    pub verdict: Vec<TrafficVerdict>,
    /// Also show new flows that passed (--verdict allow)
    #[arg(long, env = "NETPOLD_NEW_FLOWS")]
    pub new_flows: bool,
    /// Show only these destination ports, comma-separated
    #[arg(long, value_name = "PORT", env = "NETPOLD_PORT", value_delimiter = ',')]
    pub port: Vec<u16>,
    /// Show only this protocol: TCP, UDP, SCTP, ICMP (and ICMPv6) or an IP protocol number
    #[arg(long, value_name = "PROTOCOL", env = "NETPOLD_PROTOCOL")]
    pub protocol: Option<IpProtocol>,
    /// Show only these reasons, as in the metrics, comma-separated
    #[arg(long, value_name = "REASON", env = "NETPOLD_REASON", value_delimiter = ',')]
    pub reason: Vec<String>,
}

/// Returns the parser of verdicts.
fn verdict() -> impl TypedValueParser<Value = TrafficVerdict> {
    let help = |outcome| match outcome {
        TrafficVerdict::Deny => "The packet was dropped",
        TrafficVerdict::Audit => "The flow passed, but audited policies would deny it",
        TrafficVerdict::Allow => "A new flow passed",
    };
    let value = |outcome: TrafficVerdict| PossibleValue::new(outcome.as_str()).help(help(outcome));
    PossibleValuesParser::new(TrafficVerdict::ALL.map(value)).try_map(|name| {
        let named = TrafficVerdict::ALL.into_iter().find(|outcome| outcome.as_str() == name);
        named.ok_or("there is no such verdict")
    })
}

fn direction(text: &str) -> Result<Direction, String> {
    let named = Direction::BOTH.into_iter().find(|direction| direction.to_string() == text);
    named.ok_or_else(|| "give ingress or egress".to_owned())
}

impl FilterArgs {
    /// Builds the filter.
    ///
    /// # Errors
    /// A reason is unknown.
    pub fn filter(&self) -> Result<EventFilter> {
        let drops = Reason::ALL.into_iter().filter(|reason| reason.is_drop());
        let all = drops.chain([Reason::Allowed, Reason::Node]).map(Reason::as_str);
        let all: Vec<&str> = all.chain([AUDIT]).collect();
        if let Some(other) = self.reason.iter().find(|reason| !all.contains(&reason.as_str())) {
            bail!("--reason {other:?}: unknown reason; known reasons: {}", all.join(", "));
        }
        let mut verdicts = self.verdict.clone();
        if self.new_flows && verdicts.is_empty() {
            verdicts.extend([TrafficVerdict::Deny, TrafficVerdict::Audit]);
        }
        if self.new_flows && !verdicts.contains(&TrafficVerdict::Allow) {
            verdicts.push(TrafficVerdict::Allow);
        }
        Ok(EventFilter {
            verdicts,
            namespace: self.namespace.clone(),
            pod: self.pod.clone(),
            peer: self.peer.clone(),
            direction: self.direction,
            ports: self.port.clone(),
            protocol: self.protocol,
            reasons: self.reason.clone(),
        })
    }
}

/// Returns the command line for an agent's pod.
pub(crate) fn arguments(request: &ObserveRequest) -> Vec<String> {
    let EventFilter { verdicts, namespace, pod, peer, direction, ports, protocol, reasons } =
        &request.filter;
    let verdict = |it: &TrafficVerdict| it.as_str().to_owned();
    let join = |list: Vec<String>| (!list.is_empty()).then(|| list.join(","));
    // Milliseconds round up to whole seconds.
    let seconds = |millis: u64| format!("{}s", millis.div_ceil(1000));
    let flags = [
        ("--verdict", join(verdicts.iter().map(verdict).collect())),
        ("--namespace", namespace.clone()),
        ("--pod", pod.clone().map(Into::into)),
        ("--peer", peer.clone().map(Into::into)),
        ("--direction", direction.map(|it| it.to_string())),
        ("--port", join(ports.iter().map(ToString::to_string).collect())),
        ("--protocol", protocol.map(|it| it.to_string())),
        ("--reason", join(reasons.clone())),
        ("--since", request.since.map(seconds)),
    ];
    let flags = flags.into_iter().filter_map(|(flag, value)| Some(format!("{flag}={}", value?)));
    let command = ["observe", "--output=json"].map(str::to_owned).into_iter();
    command.chain(flags).chain(request.follow.then(|| "--follow".to_owned())).collect()
}

impl ObserveArgs {
    /// Builds the request.
    ///
    /// # Errors
    /// See [`FilterArgs::filter`].
    pub fn request(&self) -> Result<ObserveRequest> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let all = (!self.follow).then_some(u64::MAX);
        let since = self.since.map(millis).or(all);
        Ok(ObserveRequest { since, follow: self.follow, filter: self.filter.filter()? })
    }
}
