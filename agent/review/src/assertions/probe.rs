//! `netpold test --probe`: opens the connections of assertions.
//!
//! A connection is opened from a container of the sending pod, by `exec` with the user's own rights and with the tools
//! of the container's image. No agent opens connections for a pod, because each user with access to an agent could then
//! use the pod's rights. The output of the image's tools is trusted.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::Result;
use futures::StreamExt;
use futures::stream::iter;
use netpold_client::live::{ClusterArgs, CommandFailure, ContainerAccess};
use netpold_core::cluster::Cluster;
use netpold_core::explain::{Explainer, Verdict};
use netpold_core::model::Key;
use netpold_core::printable::cut;
use netpold_core::probe::{IpProtocol, Party, Probe};

use super::assertion::{Assertion, SideSelection};
use super::context::AssertionContext;
use super::outcome::{AssertionOutcome, TOLD};
use super::probe_results::{ConnectResult, ProbeResults};
use super::sides::{pairs, sides};

/// Timeout of a connection in seconds.
const SECONDS: &str = "3";
/// Concurrent connections and commands.
const AT_ONCE: usize = 16;
/// Most connections of one assertion.
const CONNECTIONS: usize = 64;
/// Most containers tried per pod.
const CONTAINERS: usize = 8;
/// Longest reason in bytes.
const REASON: usize = 256;
/// Prefix of the output line with the result.
const MARK: &str = "netpold: ";
const SHELL: &str = include_str!("probe/connect.sh");
const PYTHON: &str = include_str!("probe/connect.py");

/// Container of a pod that can open connections.
#[derive(Clone, Debug)]
enum ProbeContainer {
    /// Name of a container with a shell and some tool.
    Shell(String),
    /// Name of a container with python3 and without a shell.
    Python(String),
}

/// Connection to open.
struct ProbeConnection {
    /// Index of the assertion.
    of: usize,
    from: Key,
    probe: Probe,
    address: IpAddr,
    /// Whether the address is a Service's.
    translated: bool,
}

/// Opens the connections of assertions, and adds the results to their outcomes.
///
/// # Errors
/// The API server cannot be reached.
pub(super) async fn probe(
    args: &ClusterArgs,
    world: &AssertionContext<'_>,
    outcomes: &mut [AssertionOutcome],
) -> Result<()> {
    let inside = ContainerAccess::open(args).await?;
    let mut connections = Vec::new();
    for (of, outcome) in outcomes.iter_mut().enumerate() {
        let mut probed = ProbeResults::default();
        connections.extend(chosen(world, &outcome.assertion, of, &mut probed));
        outcome.probed = Some(probed);
    }
    let mut pods: Vec<&Key> = connections.iter().map(|connection| &connection.from).collect();
    pods.sort();
    pods.dedup();
    let ways = iter(pods.into_iter().map(|pod| async { (pod.clone(), way(&inside, pod).await) }));
    let ways: BTreeMap<Key, Result<ProbeContainer, String>> =
        ways.buffered(AT_ONCE).collect().await;
    let (inside, ways) = (&inside, &ways);
    let opened = connections.iter().map(|connection| async move {
        let met = match ways.get(&connection.from) {
            Some(Ok(way)) => connection.open(inside, way).await,
            Some(Err(why)) => Err(why.clone()),
            None => Err("its pod is unknown".to_owned()),
        };
        (connection, met)
    });
    let mut opened = iter(opened).buffered(AT_ONCE);
    while let Some((connection, met)) = opened.next().await {
        if let Some(outcome) = outcomes.get_mut(connection.of) {
            connection.record_result(met, &world.explainer, outcome);
        }
    }
    Ok(())
}

/// Returns the connections of an assertion: one per pair and address family, or an even sample of many.
fn chosen(
    world: &AssertionContext<'_>,
    assertion: &Assertion,
    of: usize,
    probed: &mut ProbeResults,
) -> Vec<ProbeConnection> {
    let mut not = |why: String, count| *probed.not.entry(why).or_default() += count;
    let cluster = world.cluster;
    if let SideSelection::Name { .. } = assertion.to {
        not("a domain name: only pods, Services and addresses can be probed".to_owned(), 1);
        return Vec::new();
    }
    let Ok((from, to)) = sides(world, assertion) else { return Vec::new() };
    let pairs: Vec<(&Party, &Party)> = pairs(world, assertion, &from, &to).collect();
    if assertion.protocol != IpProtocol::TCP {
        not(format!("{}: only TCP can be probed", assertion.protocol), pairs.len());
        return Vec::new();
    }
    let mut found = Vec::new();
    for (from, to) in pairs {
        let Some(pod) = sender(cluster, from) else {
            not(format!("{from} is not a pod"), 1);
            continue;
        };
        let Some(sources) = cluster.pods().get(&pod).map(|pod| &pod.addresses) else { continue };
        let sources = match from {
            Party::Address(address) => std::slice::from_ref(address),
            Party::Pod(_) | Party::Service(_) => sources,
        };
        let probe = |to: &Party| Probe {
            from: from.clone(),
            to: to.clone(),
            protocol: assertion.protocol,
            port: assertion.port,
        };
        let before = found.len();
        for family in [IpAddr::is_ipv4, IpAddr::is_ipv6] {
            let address = addresses(cluster, to).into_iter().find(family);
            if let (Some(address), true) = (address, sources.iter().any(family)) {
                let translated = cluster.service_at(address).is_some();
                let (from, probe) = (pod.clone(), probe(to));
                found.push(ProbeConnection { of, from, probe, address, translated });
            }
        }
        if found.len() == before {
            not(format!("{to} has no address of {from}'s family"), 1);
        }
    }
    let all = found.len();
    if all > CONNECTIONS {
        not(format!("limit of {CONNECTIONS} per assertion"), all - CONNECTIONS);
        let wanted = |index: usize| index * CONNECTIONS / all != (index + 1) * CONNECTIONS / all;
        let some = found.into_iter().enumerate().filter(|(index, _)| wanted(*index));
        found = some.map(|(_, connection)| connection).collect();
    }
    found
}

/// Returns the sending pod.
fn sender(cluster: &Cluster, from: &Party) -> Option<Key> {
    match from {
        Party::Pod(key) => Some(key.clone()),
        Party::Address(address) => cluster.owner(*address).map(|pod| pod.key.clone()),
        Party::Service(_) => None,
    }
}

fn addresses(cluster: &Cluster, to: &Party) -> Vec<IpAddr> {
    match to {
        Party::Address(address) => vec![*address],
        Party::Pod(key) => cluster.pods().get(key).map_or(vec![], |pod| pod.addresses.clone()),
        Party::Service(key) => cluster.service_addresses(key).to_vec(),
    }
}

/// Finds a container of a pod that can open connections.
async fn way(inside: &ContainerAccess, pod: &Key) -> Result<ProbeContainer, String> {
    let containers = inside.running(pod).await.map_err(|words| cut(words, REASON))?;
    if containers.is_empty() {
        return Err("no container of the pod runs".to_owned());
    }
    let tools = "command -v python3 || command -v nc || command -v curl || command -v wget || \
                 { command -v bash && command -v timeout; }; true";
    for container in containers.iter().take(CONTAINERS) {
        match inside.output(pod, container, &["sh", "-c", tools]).await {
            Ok(found) if !found.trim().is_empty() => {
                return Ok(ProbeContainer::Shell(container.clone()));
            }
            Ok(_) => {}
            Err(CommandFailure::NoProgram) => {
                match inside.output(pod, container, &["python3", "-c", ""]).await {
                    Ok(_) => return Ok(ProbeContainer::Python(container.clone())),
                    Err(CommandFailure::NoProgram) => {}
                    Err(CommandFailure::Otherwise(words)) => return Err(cut(words, REASON)),
                }
            }
            Err(CommandFailure::Otherwise(words)) => return Err(cut(words, REASON)),
        }
    }
    Err(NO_TOOL.to_owned())
}

const NO_TOOL: &str = "the image has none of python3, bash with timeout, nc, curl and wget";

impl ProbeConnection {
    async fn open(
        &self,
        inside: &ContainerAccess,
        way: &ProbeContainer,
    ) -> Result<ConnectResult, String> {
        let (address, port) = (self.address.to_string(), self.probe.port.to_string());
        let said = match way {
            ProbeContainer::Shell(container) => {
                let command = ["sh", "-c", SHELL, "netpold", &address, &port, SECONDS, PYTHON];
                inside.output(&self.from, container, &command).await
            }
            ProbeContainer::Python(container) => {
                let command = ["python3", "-c", PYTHON, &address, &port, SECONDS];
                inside.output(&self.from, container, &command).await
            }
        };
        let met = match said {
            Ok(text) => parse_result(&text),
            Err(CommandFailure::NoProgram) => {
                Err("the container's programs no longer exist".to_owned())
            }
            Err(CommandFailure::Otherwise(words)) => Err(words),
        };
        match met {
            // The node's proxy refuses connections to a Service without backends.
            Ok(ConnectResult::Refused) if self.translated => {
                Err("refused at a Service's address, by a backend or by the node's proxy"
                    .to_owned())
            }
            met => met.map_err(|words| cut(words, REASON)),
        }
    }

    /// Adds the result to the outcome of its assertion.
    fn record_result(
        &self,
        met: Result<ConnectResult, String>,
        explainer: &Explainer<'_>,
        outcome: &mut AssertionOutcome,
    ) {
        let Some(probed) = &mut outcome.probed else { return };
        let met = match met {
            Ok(met) => met,
            Err(why) => {
                *probed.not.entry(why).or_default() += 1;
                return;
            }
        };
        *probed.met.entry(met).or_default() += 1;
        if met.passed() == outcome.assertion.allow {
            return;
        }
        probed.wrong += 1;
        if probed.failures.len() < TOLD {
            let verdict = match explainer.verdict(&self.probe).0 {
                Verdict::Allow => "allow",
                Verdict::Deny => "deny",
                Verdict::Unknown => "do not decide",
            };
            let (probe, address) = (&self.probe, self.address);
            probed
                .failures
                .push(format!("{probe}: {met} at {address}; the cluster's objects {verdict} it"));
        }
    }
}

/// Parses the result from a script's output.
fn parse_result(text: &str) -> Result<ConnectResult, String> {
    let said = text.lines().find_map(|line| line.strip_prefix(MARK));
    match said {
        Some("connected") => Ok(ConnectResult::Connected),
        Some("refused") => Ok(ConnectResult::Refused),
        Some("timed out") => Ok(ConnectResult::TimedOut),
        Some("unreachable") => Ok(ConnectResult::Unreachable),
        Some("none") => Err(NO_TOOL.to_owned()),
        Some(words) => Err(words.to_owned()),
        None => Err("the container's shell does not answer".to_owned()),
    }
}

#[cfg(test)]
mod tests;
