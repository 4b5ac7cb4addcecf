//! Connections to ports of Services that lead to no pod before the change: those of new Services, new ports, and ports of
//! Services that had no pod.
//!
//! They are notes, not opened connections: policy allowed as much to the pods behind them before, at their own addresses.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use netpold_core::model::{Key, Protocol, Service};

use super::compare::check_not_ended;
use super::difference::Difference;
use super::party::list_names;
use super::services::{DifferingService, PortAnswer, has, judge_port, ports, senders};
use crate::judge::Judge;

/// Most questions about these ports.
const QUESTIONS: usize = 20_000;
/// Most Services that notes name, and most notes on one.
const NAMED: usize = 20;

/// Workloads by the answer that their pods get at a port.
#[derive(Default, PartialEq)]
struct Senders {
    allowed: Vec<String>,
    denied: Vec<String>,
    /// No pod is behind the port.
    is_empty: bool,
    unknown: BTreeSet<String>,
}

/// Ports with equal answers.
struct PortGroup {
    /// Property of the Service that is new, for example `is new`.
    news: &'static str,
    ports: Vec<(Protocol, u16)>,
    senders: Senders,
}

/// Returns a note on each Service with such ports.
///
/// # Errors
/// `ended` was set.
pub(super) fn notes(
    judges: [&Judge; 2],
    services: &[DifferingService],
    difference: &Difference,
    ended: &AtomicBool,
) -> Result<Vec<String>> {
    let senders = senders(judges.map(Judge::cluster), &difference.parties);
    let senders: Vec<(String, Vec<[&Key; 2]>)> = senders
        .into_iter()
        .map(|(party, pairs)| (difference.parties[party].to_string(), pairs))
        .collect();
    let pairs: usize = senders.iter().map(|(_, pairs)| pairs.len()).sum();
    let (mut notes, mut left, mut more) = (Vec::new(), QUESTIONS, 0);
    for DifferingService { key, is_external } in services {
        check_not_ended(ended)?;
        let [before, after] =
            judges.map(|judge| judge.cluster().services().get(key).map(|service| &**service));
        let Some(after) = after.filter(|_| pairs > 0) else { continue };
        let is_new =
            |port: &(Protocol, u16)| reason_for_new_port(judges[0], before, key, *port, &senders);
        let new = ports(after).into_iter().filter_map(|port| Some((is_new(&port)?, port)));
        let new: Vec<(&'static str, (Protocol, u16))> = new.collect();
        if new.is_empty() {
            continue;
        }
        let rest = left.checked_sub(new.len() * pairs).filter(|_| notes.len() < NAMED);
        let Some(rest) = rest else {
            more += 1;
            continue;
        };
        left = rest;
        let mut groups: Vec<PortGroup> = Vec::new();
        for (news, port) in new {
            let senders = of_port(judges[1], &senders, key, port);
            let alike = |it: &&mut PortGroup| it.news == news && it.senders == senders;
            match groups.iter_mut().find(alike) {
                Some(group) => group.ports.push(port),
                None => groups.push(PortGroup { news, ports: vec![port], senders }),
            }
        }
        let has_outside = before.is_none() && *is_external;
        notes.extend(groups.iter().take(NAMED).map(|group| group.text(key, has_outside)));
    }
    if more > 0 {
        let word = if more == 1 { "Service" } else { "Services" };
        notes.push(format!("{more} more {word} with ports that led to no pod"));
    }
    Ok(notes)
}

/// Returns the property of a Service because of which a port led to no pod before the change; `None` if it led to one, or
/// if that is not known.
fn reason_for_new_port(
    judge: &Judge,
    before: Option<&Service>,
    key: &Key,
    port: (Protocol, u16),
    senders: &[(String, Vec<[&Key; 2]>)],
) -> Option<&'static str> {
    let Some(before) = before else { return Some("is new") };
    if !has(before, port) {
        return Some("has a new port");
    }
    let [sender, _] = senders.first()?.1.first()?;
    matches!(judge_port(judge, (sender, key), port), PortAnswer::Nobody)
        .then_some("has its first pods")
}

fn of_port(
    judge: &Judge,
    senders: &[(String, Vec<[&Key; 2]>)],
    service: &Key,
    port: (Protocol, u16),
) -> Senders {
    let mut all = Senders::default();
    for (name, pairs) in senders {
        let [mut allowed, mut denied] = [false; 2];
        for [_, sender] in pairs {
            match judge_port(judge, (sender, service), port) {
                PortAnswer::Judged(true) => allowed = true,
                PortAnswer::Judged(false) => denied = true,
                PortAnswer::Nobody => all.is_empty = true,
                PortAnswer::Unknown(reason) => {
                    all.unknown.insert(reason);
                }
            }
        }
        let some = if allowed && denied { " (some pods)" } else { "" };
        for (is_so, names) in [(allowed, &mut all.allowed), (denied, &mut all.denied)] {
            names.extend(is_so.then(|| format!("{name}{some}")));
        }
    }
    all
}

impl PortGroup {
    fn text(&self, service: &Key, has_outside: bool) -> String {
        let Senders { allowed, denied, is_empty, unknown } = &self.senders;
        let ports: Vec<String> =
            self.ports.iter().map(|(protocol, port)| format!("{protocol} {port}")).collect();
        let mut parts = Vec::new();
        if !allowed.is_empty() {
            parts.push(format!("allowed from {}", list_names(allowed)));
        }
        if !denied.is_empty() {
            parts.push(format!("denied from {}", list_names(denied)));
        }
        if *is_empty {
            parts.push("no pod is behind it".to_owned());
        }
        parts.extend(unknown.iter().map(|reason| format!("not known: {reason}")));
        let outside = match has_outside {
            true => {
                "; clients outside of the cluster reach it as far as policy allows them at its pods"
            }
            false => "",
        };
        format!(
            "Service {service} {}: at {}, {}{outside}",
            self.news,
            list_names(&ports),
            parts.join(", ")
        )
    }
}
