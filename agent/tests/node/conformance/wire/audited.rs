//! Some cases on the wire with all policies in audit mode: every probe is answered, and the agents report exactly the
//! flows that the oracle denies, at each end. With the policies enforced, the same flows are dropped.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netpold_core::probe::IpProtocol;
use netpold_testbed::{probe_all, require_root};
use netpold_testkit::oracle::{Oracle, OracleVerdict};
use serde_json::{Value, json};

use super::{ALLOWED, Wire};
use crate::conformance::case::{self, Check, Step};
use crate::conformance::{convert, probe};

/// Cases with ingress and egress, both kinds of policies, addresses beyond the nodes, and named ports.
const CASES: [&str; 5] = [
    "cnp-admin-gress",
    "cnp-baseline-egress-networks",
    "cyclonus-ingress-ip-block-with-except",
    "e2e-egress-denied-though-ingress-allows",
    "e2e-named-port-ingress",
];
/// Number of probes of each verdict in a step; agents report the last 64 flows.
const PROBES: usize = 14;
/// Time until a sweep has recorded the flows.
const TOLD: Duration = Duration::from_secs(10);

/// Pod, direction, protocol, the other side and the destination port of a flow.
type Flow = (String, String, String, IpAddr, u16);

/// Returns at most [`PROBES`] checks with a verdict, evenly spread, between different addresses.
fn some(checks: &[Check], allow: bool) -> impl Iterator<Item = Check> {
    let all: Vec<&Check> = checks
        .iter()
        .filter(|check| check.allow == allow && check.from.address != check.to.address)
        .collect();
    let every = all.len().div_ceil(PROBES).max(1);
    all.into_iter().step_by(every).cloned().collect::<Vec<_>>().into_iter()
}

fn on_trial(step: &Step) -> Vec<Value> {
    let mut objects = step.objects.clone();
    for object in &mut objects {
        if matches!(object["kind"].as_str(), Some("NetworkPolicy" | "ClusterNetworkPolicy")) {
            object["metadata"]["annotations"] = json!({ "netpold.io/enforcement": "audit" });
        }
    }
    objects
}

/// Returns the flows that the oracle denies in a step, at each end, and all flows at each end.
fn denied(step: &Step) -> Result<[BTreeSet<Flow>; 2]> {
    let oracle: Oracle = convert(step)?.0.into_iter().collect();
    let [mut denied, mut all] = [BTreeSet::new(), BTreeSet::new()];
    for check in &step.checks {
        let OracleVerdict::Judged { egress, ingress } = oracle.verdict(&probe(check)) else {
            anyhow::bail!("{check}: not judged at its ends");
        };
        let Check { from, to, port, .. } = check;
        for (allows, pod, direction, other) in
            [(egress, from, "egress", to), (ingress, to, "ingress", from)]
        {
            let (direction, protocol) = (direction.to_owned(), check.protocol.to_string());
            let flow = (pod.name.clone(), direction, protocol, other.address, *port);
            if !allows {
                denied.insert(flow.clone());
            }
            all.insert(flow);
        }
    }
    Ok([denied, all])
}

/// Returns the denials in audit mode that the agents have reported so far.
fn records(wire: &Wire) -> Result<Vec<Value>> {
    let mut records = Vec::new();
    for agent in &wire.agents {
        let mut status = agent.status()?;
        let drops = status["recent_drops"].as_array_mut().context("no drops")?;
        for drop in drops.iter_mut().filter(|drop| drop["reason"] == "audit") {
            // The explanation depends on the present policies.
            drop["explanation"].take();
            records.push(drop.take());
        }
    }
    Ok(records)
}

fn flow(record: &Value) -> Result<Flow> {
    let text = |field: &str| record[field].as_str().map(str::to_owned).context("no text");
    let (pod, direction, packet) = (text("pod")?, text("direction")?, text("packet")?);
    let (protocol, sides) = packet.split_once(' ').context("no protocol")?;
    let (from, to) = sides.split_once(" to ").context("no sides")?;
    let side = |side: &str| match side.parse::<SocketAddr>() {
        Ok(socket) => anyhow::Ok((socket.ip(), socket.port())),
        Err(_) => Ok((side.parse()?, 0)),
    };
    let (from, to) = (side(from)?, side(to)?);
    let other = if direction == "ingress" { from.0 } else { to.0 };
    let protocol: IpProtocol = protocol.parse().map_err(anyhow::Error::msg)?;
    Ok((pod, direction, protocol.to_string(), other, to.1))
}

/// Asserts that the agents report the flows that the oracle denies. Returns their number.
fn hold(wire: &mut Wire, step: &Step) -> Result<usize> {
    wire.become_state(&on_trial(step))?;
    wire.serve(&step.checks)?;
    let before = records(wire)?;
    let results = probe_all(&wire.probes(&step.checks)?, ALLOWED);
    for (check, result) in step.checks.iter().zip(&results) {
        ensure!(result.connected(), "{check}: {result}");
    }
    let [expected, probed] = denied(step)?;
    let told = || {
        let records = records(wire)?.into_iter().filter(|record| !before.contains(record));
        let flows = records.map(|record| flow(&record)).collect::<Result<BTreeSet<Flow>>>()?;
        // The agents may record flows of an earlier case only now.
        anyhow::Ok(flows.into_iter().filter(|flow| probed.contains(flow)).collect::<BTreeSet<_>>())
    };
    let deadline = Instant::now() + TOLD;
    while told()? != expected && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(100));
    }
    let told = told()?;
    let missing: Vec<_> = expected.difference(&told).collect();
    let others: Vec<_> = told.difference(&expected).collect();
    ensure!(told == expected, "not told: {missing:?}; told, but not denied: {others:?}");
    // The same policies, enforced.
    let wrong = wire.failures(step)?;
    ensure!(wrong.is_empty(), "{wrong:?}");
    Ok(told.len())
}

#[test]
fn cases_on_trial_are_told_on_the_wire() -> Result<()> {
    if !require_root("cases_on_trial_are_told_on_the_wire") {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let mut wire = Wire::new(directory.path(), &["--readback", "1"])?;
    let cases = case::load_all()?;
    let topology = case::topology()?;
    for name in CASES {
        let case = cases.iter().find(|case| case.name == name).context(name)?;
        let step = case.steps.first().context(name)?;
        let checks = some(&step.checks, false).chain(some(&step.checks, true)).collect();
        let step = Step { objects: step.objects.clone(), checks };
        wire.become_state(&topology)?;
        let told = hold(&mut wire, &step).context(name)?;
        ensure!(told >= PROBES / 2, "{name}: only {told} flows");
    }
    Ok(())
}
