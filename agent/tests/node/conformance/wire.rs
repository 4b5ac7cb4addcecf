//! The conformance cases with real sockets: pods and nodes are network namespaces, an agent runs on each node, and
//! every check is a probe. Needs root.

mod audited;
mod observed;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use netpold_testbed::{
    Agent, AgentOptions, Cni, Host, Manifests, PodSpec, ProbeProtocol, ProbeResult, ReachProbe,
    TestNode, TestPod, link_nodes, marker, namespace, probe_all, require_root,
};
use serde_json::Value;

use crate::conformance::case::{self, Case, Check, Step};
use observed::Observed;

/// Prefixes and addresses of the topology.
const N1: [&str; 4] = ["10.244.1.0/24", "fd00:10:244:1::/64", "172.31.0.1", "fd00:31::1"];
const N2: [&str; 4] = ["10.244.2.0/24", "fd00:10:244:2::/64", "172.31.0.2", "fd00:31::2"];
const WORLD: [&str; 4] =
    ["198.51.100.0/24", "2001:db8:51::/64", "203.0.113.10", "2001:db8:113::10"];

/// Time for probes that must be dropped, counted once for all probes of a step.
const DENIED: Duration = Duration::from_millis(120);
/// Time for probes that must be answered, on a busy machine.
const ALLOWED: Duration = Duration::from_secs(5);
/// Time until an agent enforces a step.
const ENFORCED: Duration = Duration::from_mins(1);
/// Interval of cases that run again under XDP.
const EARLY_EVERY: usize = 4;

/// The topology, with pods and servers of the present step. The order of the fields is the order of their drop.
struct Wire {
    agents: Vec<Agent>,
    pods: BTreeMap<String, Placed>,
    hosts: BTreeMap<&'static str, TestNode>,
    serving: BTreeSet<(String, ProbeProtocol, u16)>,
    manifests: Manifests,
    state: u32,
    slow: usize,
    /// Moment at which the present state was enforced.
    enforced: Instant,
    observed: Observed,
    /// Additional arguments of the agents.
    arguments: Vec<String>,
}

/// Pod, with the addresses and the node of its manifest.
struct Placed {
    addresses: Vec<IpAddr>,
    node: String,
    pod: TestPod,
}

impl Wire {
    /// Creates one node of each kind and a host beyond them, without agents.
    fn new(directory: &Path, arguments: &[&str]) -> Result<Self> {
        let node = |name: &'static str, cni, [cidr4, cidr6, v4, v6]: [&str; 4]| {
            let addresses = (v4.parse()?, v6.parse()?);
            anyhow::Ok((name, TestNode::with_addresses(name, cni, cidr4, cidr6, addresses)?))
        };
        let hosts = BTreeMap::from([
            node("n1", Cni::Ptp, N1)?,
            node("n2", Cni::Bridge, N2)?,
            node("world", Cni::Ptp, WORLD)?,
        ]);
        for (a, b) in [("n1", "n2"), ("n1", "world"), ("n2", "world")] {
            link_nodes(&hosts[a], &hosts[b])?;
        }
        Ok(Self {
            agents: Vec::new(),
            pods: BTreeMap::new(),
            hosts,
            serving: BTreeSet::new(),
            manifests: Manifests::new(directory)?,
            state: 0,
            slow: 0,
            enforced: Instant::now(),
            observed: Observed::default(),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
        })
    }

    fn start_agents(&mut self) -> Result<()> {
        for name in ["n1", "n2"] {
            let options = AgentOptions {
                binary: env!("CARGO_BIN_EXE_netpold").into(),
                manifests: self.manifests.directory().to_owned(),
                arguments: self.arguments.clone(),
            };
            self.agents.push(Agent::start(&self.hosts[name], options)?);
        }
        Ok(())
    }

    /// Replaces pods and manifests by those of a state, and waits until the agents enforce it.
    fn become_state(&mut self, objects: &[Value]) -> Result<()> {
        self.state += 1;
        self.place(objects)?;
        let mut all = objects.to_vec();
        all.push(namespace("netpold-marker", &[]));
        all.extend(["n1", "n2"].map(|node| marker(node, self.state)));
        self.manifests.write_objects("state.json", &all)?;
        if self.agents.is_empty() {
            self.start_agents()?;
        }
        for agent in &mut self.agents {
            let here = self.pods.iter().filter(|(_, placed)| placed.node == agent.node());
            let here = here.map(|(name, placed)| (name.clone(), placed.pod.host_ifindex()));
            agent.wait_marker(self.state, &here.collect(), ENFORCED)?;
        }
        self.enforced = Instant::now();
        Ok(())
    }

    /// Adds and removes pods; a pod with another node or other addresses is a new pod.
    fn place(&mut self, objects: &[Value]) -> Result<()> {
        let wanted = objects.iter().filter_map(running).collect::<Result<BTreeMap<_, _>>>()?;
        self.pods.retain(|name, placed| {
            wanted.get(name).is_some_and(|w| w.0 == placed.node && w.1 == placed.addresses)
        });
        let pods = &self.pods;
        self.serving.retain(|(name, ..)| !name.contains('/') || pods.contains_key(name));
        for (name, (node, addresses)) in wanted {
            if self.pods.contains_key(&name) {
                continue;
            }
            let (space, short) = name.split_once('/').context("a pod has a namespace")?;
            let spec = PodSpec::new(space, short).addresses(&addresses);
            let host = self.hosts.get(node.as_str()).with_context(|| format!("no node {node}"))?;
            let pod = host.add_pod(&spec)?;
            self.pods.insert(name, Placed { addresses, node, pod });
        }
        Ok(())
    }

    fn host(&self, name: &str) -> Result<&Host> {
        let pod = self.pods.get(name).map(|placed| &*placed.pod);
        let host = || self.hosts.get(name).map(|node| &**node);
        pod.or_else(host).with_context(|| format!("no pod or host {name}"))
    }

    fn serve(&mut self, checks: &[Check]) -> Result<()> {
        for check in checks {
            let protocol = protocol(check)?;
            let service = (check.to.name.clone(), protocol, check.port);
            if protocol != ProbeProtocol::Icmp && !self.serving.contains(&service) {
                self.host(&check.to.name)?.serve(protocol, check.port)?;
                self.serving.insert(service);
            }
        }
        Ok(())
    }

    /// Returns the failed checks of a step, as lines.
    fn failures(&mut self, step: &Step) -> Result<Vec<String>> {
        self.become_state(&step.objects)?;
        self.serve(&step.checks)?;
        let probes = self.probes(&step.checks)?;
        let mut results = probe_all(&probes, DENIED);
        let late: Vec<usize> =
            (0..results.len()).filter(|&i| step.checks[i].allow && results[i].dropped()).collect();
        let again: Vec<ReachProbe<'_>> = late.iter().map(|&i| probes[i]).collect();
        for (&i, result) in late.iter().zip(probe_all(&again, ALLOWED)) {
            results[i] = result;
        }
        let wrong =
            step.checks.iter().zip(&results).filter(|(check, result)| !holds(check, result));
        let wrong = wrong.map(|(check, result)| format!("{check}: {result}")).collect();
        self.slow += late.len();
        Ok(wrong)
    }

    fn probes<'w>(&'w self, checks: &[Check]) -> Result<Vec<ReachProbe<'w>>> {
        let probe = |check: &Check| {
            let (protocol, to) = (protocol(check)?, check.to.address);
            Ok(ReachProbe { from: self.host(&check.from.name)?, protocol, to, port: check.port })
        };
        checks.iter().map(probe).collect()
    }
}

/// Node and addresses.
type Place = (String, Vec<IpAddr>);

/// Returns name and place of a pod that is not on the host network.
fn running(object: &Value) -> Option<Result<(String, Place)>> {
    let status = &object["status"];
    let finished = matches!(status["phase"].as_str(), Some("Succeeded" | "Failed"));
    if object["kind"] != "Pod" || finished || object["spec"]["hostNetwork"] == true {
        return None;
    }
    let text = |value: &Value| value.as_str().map(str::to_owned).context("not a text");
    let read = || {
        let metadata = &object["metadata"];
        let name = format!("{}/{}", text(&metadata["namespace"])?, text(&metadata["name"])?);
        let addresses = status["podIPs"].as_array().map_or(&[][..], Vec::as_slice);
        let addresses = addresses.iter().map(|ip| Ok(text(&ip["ip"])?.parse()?));
        anyhow::Ok((name, (text(&object["spec"]["nodeName"])?, addresses.collect::<Result<_>>()?)))
    };
    Some(read().with_context(|| object.to_string()))
}

fn protocol(check: &Check) -> Result<ProbeProtocol> {
    Ok(match check.protocol.0 {
        1 | 58 => ProbeProtocol::Icmp,
        6 => ProbeProtocol::Tcp,
        17 => ProbeProtocol::Udp,
        132 => ProbeProtocol::Sctp,
        other => bail!("no probe speaks protocol {other}"),
    })
}

fn holds(check: &Check, result: &ProbeResult) -> bool {
    match result {
        ProbeResult::Connected(name) => check.allow && (name.is_empty() || *name == check.to.name),
        ProbeResult::Timeout => !check.allow,
        ProbeResult::Refused | ProbeResult::Unreachable | ProbeResult::Failed(_) => false,
    }
}

#[test]
fn cases_hold_on_the_wire() -> Result<()> {
    if !require_root("cases_hold_on_the_wire") {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let mut wire = Wire::new(directory.path(), &[])?;
    let cases = case::load_all()?;
    let checks = hold(&mut wire, &cases)?;
    ensure!(cases.len() >= 170 && checks > 50_000, "where are the cases?");
    ensure!(wire.observed.explained > 1_000, "{:?}", wire.observed);
    Ok(())
}

/// Runs cases with XDP in front of the pods' hooks, at the links between the hosts and at the pods: one case in
/// `EARLY_EVERY`, and all cases with clients beyond the nodes.
#[test]
fn cases_hold_on_the_wire_with_xdp() -> Result<()> {
    if !require_root("cases_hold_on_the_wire_with_xdp") {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let arguments =
        ["--xdp-uplink", "link*", "--xdp-uplink-drops", "all", "--pod-egress-hook", "xdp"];
    let mut wire = Wire::new(directory.path(), &arguments)?;
    let cases = case::load_all()?.into_iter().enumerate().filter(|(number, case)| {
        number % EARLY_EVERY == 0 || case.steps.iter().flat_map(|step| &step.checks).any(is_beyond)
    });
    let cases: Vec<Case> = cases.map(|(_, case)| case).collect();
    let checks = hold(&mut wire, &cases)?;
    for agent in &wire.agents {
        let status = agent.status()?;
        let native = |what: &Value, field| {
            // Endpoints known from objects only have no interface.
            let all = status_array(what).iter().filter(|device| device["interface"].is_string());
            let modes: Vec<&Value> = all.map(|device| &device[field]).collect();
            !modes.is_empty() && modes.iter().all(|mode| *mode == "native")
        };
        ensure!(native(&status["uplinks"], "mode"), "{status}");
        ensure!(native(&status["endpoints"], "xdp"), "{status}");
    }
    ensure!(cases.len() >= 40 && checks > 10_000, "{} cases, {checks} probes", cases.len());
    Ok(())
}

fn status_array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns whether a host beyond the nodes opens the flow.
fn is_beyond(check: &Check) -> bool {
    check.from.name == "world"
}

/// Asserts that the cases hold. Returns the number of probes.
#[expect(clippy::print_stdout, reason = "tests say what they did")]
fn hold(wire: &mut Wire, cases: &[Case]) -> Result<usize> {
    let (began, topology) = (Instant::now(), case::topology()?);
    let (mut wrong, mut checks, mut steps) = (Vec::new(), 0, 0);
    for case in cases {
        wire.become_state(&topology).with_context(|| format!("before {}", case.name))?;
        for (number, step) in (1..).zip(&case.steps) {
            let place = || format!("{} step {number}", case.name);
            let failed = wire.failures(step).with_context(place)?;
            let mut seen = wire.observed;
            let observed = observed::compare(wire, step, &mut seen).with_context(place)?;
            wire.observed = seen;
            for failed in [failed, observed] {
                let first = failed.first();
                wrong.extend(first.map(|f| format!("{} ({} wrong): {f}", place(), failed.len())));
            }
            checks += step.checks.len();
            steps += 1;
        }
    }
    println!(
        "{} cases, {steps} steps, {checks} probes in {:?}; {} answers took longer than {DENIED:?}; {:?}",
        cases.len(),
        began.elapsed(),
        wire.slow,
        wire.observed
    );
    assert!(wrong.is_empty(), "{} steps wrong\n{}", wrong.len(), wrong.join("\n"));
    Ok(checks)
}
