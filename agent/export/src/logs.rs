//! Events as log records. deploy/export.md lists the attributes.

use k8s_openapi::jiff::Timestamp;
use netpold_api::events::TrafficVerdict;
use netpold_api::observe::ObservedEvent;
use netpold_api::unix_time::unix_time;
use netpold_core::cluster::AddressOwner;
use netpold_core::model::Direction;

use crate::wire::{AnyValue, INFO, KeyValue, LogRecord, WARN};

/// Packets or flows without records of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreported {
    /// Outcome of the packets or flows.
    pub outcome: TrafficVerdict,
    /// Direction of dropped packets.
    pub direction: Option<Direction>,
    /// Reason, as in [`ObservedEvent::reason`].
    pub reason: String,
    /// Number of packets or flows.
    pub count: u64,
}

/// Returns the nanoseconds since 1970.
pub(crate) fn now() -> u64 {
    u64::try_from(unix_time().as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the record of an event.
pub(crate) fn record(event: &ObservedEvent, now: u64) -> LogRecord {
    let time = event.time.parse::<Timestamp>().ok();
    let time = time.and_then(|time| u64::try_from(time.as_nanosecond()).ok());
    let (name, body) = match event.verdict {
        TrafficVerdict::Deny => ("netpold.packet.denied", "packet denied"),
        TrafficVerdict::Audit => ("netpold.flow.audited", "flow that policies on trial would deny"),
        TrafficVerdict::Allow => ("netpold.flow.allowed", "new flow"),
    };
    let mut attributes = kind(event.verdict, Some(event.direction), &event.reason);
    attributes.extend(pod(event));
    attributes.extend(addresses(event));
    attributes.extend(peer(event));
    attributes.extend(policy(event));
    let body = format!("{body}: {} {}", event.direction, event.reason);
    LogRecord { time_unix_nano: time.unwrap_or(now), ..about(name, INFO, body, attributes, now) }
}

/// Returns the record of packets or flows that have no records.
pub(crate) fn unreported(of: &Unreported, now: u64) -> LogRecord {
    let mut attributes = kind(of.outcome, of.direction, &of.reason);
    attributes.push(KeyValue::int("netpold.count", of.count));
    let what = if of.outcome == TrafficVerdict::Deny { "denied packets" } else { "flows" };
    let body = format!("{} {what} without records of their own", of.count);
    about("netpold.unreported", WARN, body, attributes, now)
}

/// Returns the record of records that were lost on the way to the collector.
pub(crate) fn lost(count: u64, now: u64) -> LogRecord {
    let attributes = vec![KeyValue::int("netpold.count", count)];
    about(
        "netpold.lost",
        WARN,
        format!("{count} records lost before they were sent"),
        attributes,
        now,
    )
}

fn about(
    name: &str,
    severity: i32,
    body: String,
    attributes: Vec<KeyValue>,
    now: u64,
) -> LogRecord {
    LogRecord {
        time_unix_nano: now,
        severity_number: severity,
        severity_text: if severity == INFO { "INFO" } else { "WARN" }.to_owned(),
        body: Some(AnyValue::text(body)),
        attributes,
        observed_time_unix_nano: now,
        event_name: name.to_owned(),
    }
}

fn kind(outcome: TrafficVerdict, direction: Option<Direction>, reason: &str) -> Vec<KeyValue> {
    let direction = direction.map(|direction| match direction {
        Direction::Ingress => ["ingress", "receive"],
        Direction::Egress => ["egress", "transmit"],
    });
    let directions = direction.map(|[own, common]| {
        [KeyValue::text("netpold.direction", own), KeyValue::text("network.io.direction", common)]
    });
    let verdict = [
        KeyValue::text("netpold.verdict", outcome.as_str()),
        KeyValue::text("netpold.reason", reason),
    ];
    verdict.into_iter().chain(directions.into_iter().flatten()).collect()
}

/// The pod at which policy decided.
fn pod(event: &ObservedEvent) -> impl Iterator<Item = KeyValue> {
    let pod = event.pod.iter().flat_map(|key| {
        [
            KeyValue::text("k8s.namespace.name", &*key.namespace),
            KeyValue::text("k8s.pod.name", &*key.name),
        ]
    });
    let workload = event.workload.iter().flat_map(|workload| {
        let kind = workload.kind.to_ascii_lowercase();
        let standard = ["deployment", "statefulset", "daemonset", "job"].contains(&&*kind);
        let standard =
            standard.then(|| KeyValue::text(format!("k8s.{kind}.name"), &*workload.name));
        standard.into_iter().chain([KeyValue::text("netpold.workload", &*workload.name)])
    });
    let interface =
        event.interface.iter().map(|name| KeyValue::text("network.interface.name", name));
    pod.chain(workload).chain(interface)
}

fn addresses(event: &ObservedEvent) -> Vec<KeyValue> {
    let has_ports = event.port.is_some();
    let local = (event.local, event.local_port);
    let remote = (event.remote, event.remote_port);
    let sides = match event.direction {
        Direction::Ingress => [("source", remote), ("destination", local)],
        Direction::Egress => [("source", local), ("destination", remote)],
    };
    let mut all = Vec::new();
    for (side, (address, port)) in sides {
        let Some(address) = address else { continue };
        all.push(KeyValue::text(format!("{side}.address"), address.to_string()));
        if has_ports {
            all.push(KeyValue::int(format!("{side}.port"), port.into()));
        }
    }
    if let Some(address) = event.local.or(event.remote) {
        let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
        all.push(KeyValue::text("network.type", family));
    }
    if let Some(protocol) = event.protocol {
        all.push(KeyValue::text("network.transport", protocol.to_string().to_ascii_lowercase()));
    }
    all
}

fn peer(event: &ObservedEvent) -> Vec<KeyValue> {
    let (kind, namespace, name) = match &event.peer {
        Some(AddressOwner::Pod(key)) => ("pod", Some(&key.namespace), Some(&key.name)),
        Some(AddressOwner::Service(key)) => ("service", Some(&key.namespace), Some(&key.name)),
        Some(AddressOwner::Node { name }) => ("node", None, Some(name)),
        Some(AddressOwner::Outside) => ("outside", None, None),
        None => return Vec::new(),
    };
    let workload = event.peer_workload.as_ref().map(|workload| &workload.name);
    let named = [("namespace", namespace), ("name", name), ("workload", workload)];
    let named = named.into_iter().filter_map(|(key, value)| {
        Some(KeyValue::text(format!("netpold.peer.{key}"), value?.as_str()))
    });
    [KeyValue::text("netpold.peer.kind", kind)].into_iter().chain(named).collect()
}

fn policy(event: &ObservedEvent) -> Vec<KeyValue> {
    let attribution = &event.attribution;
    let mut all = Vec::new();
    if !attribution.policies.is_empty() {
        let names = attribution.policies.iter().map(ToString::to_string);
        all.push(KeyValue::texts("netpold.policies", names));
    }
    if attribution.more_policies > 0 {
        all.push(KeyValue::int("netpold.more_policies", attribution.more_policies as u64));
    }
    for (key, rule) in [("rule", &attribution.rule), ("nearest_rule", &attribution.nearest)] {
        let Some(rule) = rule else { continue };
        let text = format!("{} rule {}: {}", rule.policy, rule.index + 1, rule.matches);
        all.push(KeyValue::text(
            format!("netpold.{key}"),
            text.chars().take(512).collect::<String>(),
        ));
    }
    all
}

#[cfg(test)]
mod tests {
    use netpold_api::samples::event;
    use netpold_api::workload::WorkloadName;

    use super::*;
    use crate::wire::AttributeValue;

    fn texts(record: &LogRecord) -> Vec<(String, String)> {
        let text = |pair: &KeyValue| {
            let value = match pair.value.clone()?.value? {
                AttributeValue::Text(text) => text,
                AttributeValue::Int(number) => number.to_string(),
                AttributeValue::Array(array) => format!("{} texts", array.values.len()),
            };
            Some((pair.key.clone(), value))
        };
        record.attributes.iter().filter_map(text).collect()
    }

    #[test]
    fn a_denial_has_the_conventional_attributes() {
        let workload = WorkloadName { kind: "StatefulSet".into(), name: "db".into() };
        let record = record(&ObservedEvent { workload: Some(workload), ..event(0) }, 7);
        assert_eq!(record.time_unix_nano, 1_795_428_000_000_000_000);
        assert_eq!(record.observed_time_unix_nano, 7);
        let all = texts(&record);
        for (key, value) in [
            ("k8s.namespace.name", "shop"),
            ("k8s.pod.name", "db"),
            ("k8s.statefulset.name", "db"),
            ("source.address", "10.0.0.2"),
            ("source.port", "4000"),
            ("destination.address", "10.0.0.1"),
            ("destination.port", "5432"),
            ("network.transport", "tcp"),
            ("network.type", "ipv4"),
            ("network.io.direction", "receive"),
            ("netpold.reason", "policy"),
            ("netpold.peer.name", "web"),
        ] {
            assert!(all.contains(&(key.into(), value.into())), "{key}={value} in {all:?}");
        }
    }

    #[test]
    fn policies_beyond_the_named_ones_are_counted() {
        let mut event = event(0);
        event.attribution.more_policies = 3;
        let all = texts(&record(&event, 7));
        assert!(all.contains(&("netpold.more_policies".into(), "3".into())), "{all:?}");
    }

    #[test]
    fn what_was_only_counted_has_its_number() {
        let of = Unreported {
            outcome: TrafficVerdict::Deny,
            direction: Some(Direction::Egress),
            reason: "policy".into(),
            count: 30,
        };
        let all = texts(&unreported(&of, 7));
        assert!(all.contains(&("netpold.count".into(), "30".into())), "{all:?}");
        assert!(all.contains(&("netpold.direction".into(), "egress".into())), "{all:?}");
    }
}
