//! Flags of `netpold trace`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use netpold_core::probe::{IpProtocol, Party};

use super::request::{Peer, Request};
use super::server::LONGEST;
use crate::arguments::time;
use crate::live::ClusterArgs;
use crate::output::Output;
use crate::socket::DEFAULT_SOCKET;

/// Flags of `netpold trace`.
#[derive(Clone, Debug, Args)]
pub struct TraceArgs {
    /// Control socket of the agent on the pod's node
    #[arg(long, value_name = "PATH", env = "NETPOLD_SOCKET", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// The pod at whose interface packets are traced: namespace/name
    #[arg(long, value_name = "POD", env = "NETPOLD_POD")]
    pub pod: Party,
    /// Only of connections from there, in both directions: namespace/pod, svc/namespace/name, an address or a
    /// block [default: all]
    #[arg(long, value_name = "WHO", env = "NETPOLD_FROM")]
    pub from: Option<Peer>,
    /// Only of connections to there, as --from; with both, of either
    #[arg(long, value_name = "WHO", env = "NETPOLD_TO")]
    pub to: Option<Peer>,
    /// Only of connections to that port, and of that protocol if one is given: as in 53 or 53/UDP
    #[arg(long, value_name = "PORT[/PROTOCOL]", env = "NETPOLD_PORT")]
    pub port: Option<Port>,
    /// For how long, as in 30s or 10m, which is the longest
    #[arg(long = "for", value_name = "TIME", env = "NETPOLD_FOR", default_value = "60s", value_parser = time)]
    pub duration: Duration,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Format: lines for people, or a JSON object a line
    #[arg(short, long, value_name = "FORMAT", env = "NETPOLD_OUTPUT", default_value = "text")]
    pub output: Output,
}

/// A port, and maybe a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    number: u16,
    protocol: Option<IpProtocol>,
}

impl std::str::FromStr for Port {
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

impl TraceArgs {
    /// The request.
    ///
    /// # Errors
    /// The pod is not given by name, or the time is too long.
    pub fn request(&self) -> Result<Request> {
        let seconds = self.duration.as_secs();
        if !(1..=LONGEST).contains(&seconds) {
            bail!("--for: give 1s to {}m", LONGEST / 60);
        }
        let request = Request {
            pod: self.pod.clone(),
            from: self.from.clone(),
            to: self.to.clone(),
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

impl Request {
    /// The command that an agent's pod runs for it.
    pub(super) fn arguments(&self) -> Vec<String> {
        let port = self.port.map(|port| match self.protocol {
            Some(protocol) => format!("{port}/{protocol}"),
            None => port.to_string(),
        });
        let flags = [
            ("--pod", Some(self.pod.to_string())),
            ("--from", self.from.clone().map(String::from)),
            ("--to", self.to.clone().map(String::from)),
            ("--port", port),
            ("--for", Some(format!("{}s", self.seconds))),
        ];
        let flags =
            flags.into_iter().filter_map(|(flag, value)| Some(format!("{flag}={}", value?)));
        ["trace", "--output=json"].map(str::to_owned).into_iter().chain(flags).collect()
    }
}
