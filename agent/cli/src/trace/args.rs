//! Flags of `netpold trace`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use ipnet::IpNet;
use netpold_api::socket::DEFAULT_SOCKET;
use netpold_api::trace::{LONGEST, TracePeer, TraceRequest};
use netpold_client::arguments::{PartyArg, time};
use netpold_client::live::{self, ClusterArgs};
use netpold_client::output::Output;
use netpold_core::pattern::block;
use netpold_core::probe::IpProtocol;

/// Flags of `netpold trace`.
#[derive(Clone, Debug, Args)]
pub struct TraceArgs {
    /// Control socket of the agent on the pod's node
    #[arg(long, value_name = "PATH", env = "NETPOLD_SOCKET", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Pod to trace: namespace/name, or its name alone
    #[arg(long, value_name = "POD", env = "NETPOLD_POD")]
    pub pod: PartyArg,
    /// Show only connections from this peer, in both directions: a pod as with --pod, svc/namespace/name, an address or
    /// a CIDR [default: all]
    #[arg(long, value_name = "WHO", env = "NETPOLD_FROM")]
    pub from: Option<PeerArg>,
    /// Show only connections to this peer, as --from; with both, connections from or to either
    #[arg(long, value_name = "WHO", env = "NETPOLD_TO")]
    pub to: Option<PeerArg>,
    /// Namespace of pods named without one [default: the context's; without a cluster: default]
    #[arg(short, long, value_name = "NAME", env = "NETPOLD_NAMESPACE")]
    pub namespace: Option<String>,
    /// Show only connections to this port, and of this protocol if given, as in 53 or 53/UDP
    #[arg(long, value_name = "PORT[/PROTOCOL]", env = "NETPOLD_PORT")]
    pub port: Option<PortArg>,
    /// Duration of the trace, as in 30s or 10m (the longest)
    #[arg(long = "for", value_name = "TIME", env = "NETPOLD_FOR", default_value = "60s", value_parser = time)]
    pub duration: Duration,
    /// Cluster to ask.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Format: text lines, or one JSON object per line
    #[arg(short, long, value_name = "FORMAT", env = "NETPOLD_OUTPUT", default_value = "text")]
    pub output: Output,
}

/// Port with an optional protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortArg {
    number: u16,
    protocol: Option<IpProtocol>,
}

impl std::str::FromStr for PortArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, protocol) = match text.split_once('/') {
            Some((number, protocol)) => (number, Some(protocol)),
            None => (text, None),
        };
        let number = number.parse().ok().filter(|number| *number > 0);
        let number = number.ok_or("give a port from 1 to 65535, as in 53 or 53/UDP")?;
        let parse = |text: &str| text.parse::<IpProtocol>().map_err(|error| error.to_string());
        let protocol = protocol.map(parse).transpose()?;
        match protocol.filter(|protocol| !protocol.has_ports()) {
            Some(protocol) => Err(format!("{protocol} has no ports")),
            None => Ok(Self { number, protocol }),
        }
    }
}

/// Peer as typed on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerArg {
    /// CIDR or address, which needs no namespace.
    Block(IpNet),
    /// Pod, with or without its namespace, or Service.
    Who(PartyArg),
}

impl std::str::FromStr for PeerArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(block) = block(text) {
            return Ok(Self::Block(block.trunc()));
        }
        let who = text.parse().map(Self::Who);
        who.map_err(|error| format!("{error}, nor a block of addresses"))
    }
}

impl PeerArg {
    fn lacks_namespace(&self) -> bool {
        match self {
            Self::Block(_) => false,
            Self::Who(who) => who.lacks_namespace(),
        }
    }

    fn in_namespace(self, namespace: &str) -> TracePeer {
        match self {
            Self::Block(block) => TracePeer::Block(block),
            Self::Who(who) => TracePeer::Party(who.in_namespace(namespace)),
        }
    }
}

impl TraceArgs {
    /// Returns the namespace of names without one; empty, and not looked up, if all names have one.
    fn namespace(&self) -> Result<String> {
        let others = self.from.iter().chain(&self.to);
        if self.pod.lacks_namespace() || others.into_iter().any(PeerArg::lacks_namespace) {
            return live::namespace(None, &self.cluster, self.namespace.as_deref());
        }
        Ok(String::new())
    }

    /// Builds the request.
    ///
    /// # Errors
    /// The pod is not given by name, the time is out of range, or the namespace is unknown.
    pub fn request(&self) -> Result<TraceRequest> {
        let seconds = self.duration.as_secs();
        if !(1..=LONGEST).contains(&seconds) {
            bail!("--for: give 1s to {}m", LONGEST / 60);
        }
        let namespace = self.namespace()?;
        let other = |other: &PeerArg| other.clone().in_namespace(&namespace);
        let request = TraceRequest {
            pod: self.pod.clone().in_namespace(&namespace),
            from: self.from.as_ref().map(other),
            to: self.to.as_ref().map(other),
            port: self.port.map(|port| port.number),
            protocol: self.port.and_then(|port| port.protocol),
            seconds,
        };
        if let Err(error) = request.pod() {
            bail!("--pod: {error}");
        }
        Ok(request)
    }
}

/// Returns the arguments of the command that an agent's pod runs for the request.
pub(super) fn arguments(request: &TraceRequest) -> Vec<String> {
    let port = request.port.map(|port| match request.protocol {
        Some(protocol) => format!("{port}/{protocol}"),
        None => port.to_string(),
    });
    let flags = [
        ("--pod", Some(request.pod.to_string())),
        ("--from", request.from.clone().map(String::from)),
        ("--to", request.to.clone().map(String::from)),
        ("--port", port),
        ("--for", Some(format!("{}s", request.seconds))),
    ];
    let flags = flags.into_iter().filter_map(|(flag, value)| Some(format!("{flag}={}", value?)));
    ["trace", "--output=json"].map(str::to_owned).into_iter().chain(flags).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        trace: TraceArgs,
    }

    fn arguments(words: &[&str]) -> Vec<String> {
        let words = ["trace"].iter().chain(words);
        super::arguments(&Words::try_parse_from(words).unwrap().trace.request().unwrap())
    }

    #[test]
    fn a_name_alone_is_of_the_namespace_that_is_given() {
        let words = ["--pod=web", "--from=cart", "--to=10.0.0.7/8", "-n", "shop"];
        let named = arguments(&words);
        for flag in ["--pod=shop/web", "--from=shop/cart", "--to=10.0.0.0/8"] {
            assert!(named.iter().any(|it| it == flag), "{flag}: {named:?}");
        }
        let named = arguments(&["--pod=a/web", "--from=svc/b/db", "--to=cart"]);
        for flag in ["--pod=a/web", "--from=svc/b/db", "--to=default/cart"] {
            assert!(named.iter().any(|it| it == flag), "{flag}: {named:?}");
        }
        for refused in ["--from=A", "--from=a/b/c/d"] {
            let words = ["trace", "--pod=a/web", refused];
            assert!(Words::try_parse_from(words).is_err(), "{refused}");
        }
    }
}
