//! Policies as manifests.

use std::fmt::Write as _;

use k8s_openapi::jiff::Timestamp;
use netpold_api::learn::LearnAnswer;
use netpold_api::workload::Workload;
use netpold_core::model::Direction;
use netpold_core::printable::printable;
use serde_json::{Value, json};

use super::generate::Learned;
use super::names;
use super::policy::{LearnedPolicy, LearnedRule, PeerSpec, Sightings};
use super::ports::LearnedPorts;

/// Most comment lines of one kind.
const LINES: usize = 50;
/// Most Services named in a comment.
const SERVICES: usize = 3;
/// Service of the cluster DNS.
const DNS: (&str, &str) = ("kube-system", "kube-dns");

/// Returns an audited policy that selects every pod of a namespace and allows nothing, so that flows are recorded.
#[must_use]
pub fn audit_everything(namespace: &str) -> String {
    let namespace = scalar(namespace);
    format!(
        "# Denies nothing: in audit mode, so that flows of the namespace's pods are recorded. Delete it once\n\
         # the learned policies are in force.\n\
         apiVersion: networking.k8s.io/v1\n\
         kind: NetworkPolicy\n\
         metadata:\n\
         \x20 name: learn\n\
         \x20 namespace: {namespace}\n\
         \x20 annotations:\n\
         \x20   netpold.io/enforcement: audit\n\
         spec:\n\
         \x20 podSelector: {{}}\n\
         \x20 policyTypes: [Ingress, Egress]\n"
    )
}

/// Returns the policies as YAML documents, with comments about the observations.
#[must_use]
pub fn yaml(learned: &Learned, answer: &LearnAnswer) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "# From flows recorded on {} between {} and {}.",
        comment(&answer.node),
        time(answer.since),
        time(answer.as_of)
    );
    text.push_str(
        "# Audit mode: remove the annotation netpold.io/enforcement to enforce these policies.\n",
    );
    write_list(&mut text, "Observed, but would be denied", learned.denied.iter());
    write_list(&mut text, "Allowed, but never observed", learned.unseen.iter());
    let uncovered =
        "No policy selects these pods: they have no labels, or none of their flows was observed";
    write_list(&mut text, uncovered, learned.unwatched.iter().chain(&learned.unlabelled));
    for policy in &learned.policies {
        text.push_str("---\n");
        write_manifest(&mut text, policy);
        text.push_str(&names_document(policy));
    }
    text
}

/// Writes comment lines, up to [`LINES`].
fn write_list<T: ToString>(text: &mut String, title: &str, lines: impl Iterator<Item = T>) {
    let lines: Vec<T> = lines.collect();
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(text, "# {title}:");
    for line in lines.iter().take(LINES) {
        let _ = writeln!(text, "#   {}", comment(&line.to_string()));
    }
    if lines.len() > LINES {
        let _ = writeln!(text, "#   and {} more (-o json has all)", lines.len() - LINES);
    }
}

fn write_manifest(text: &mut String, learned: &LearnedPolicy) {
    let LearnedPolicy { workload, rules, denied, is_observed, policy, .. } = learned;
    let _ = writeln!(text, "# {}", comment(&workload.to_string()));
    if rules.iter().all(Vec::is_empty) {
        text.push_str(match (learned.names.is_empty(), is_observed) {
            (true, false) => "# No flows observed: this allows nothing.\n",
            (true, true) => "# The observed flows need or get no rule: this allows nothing.\n",
            (false, _) => "# No rule but those by domain name, below: this allows nothing.\n",
        });
    }
    write_list(text, "Denied when observed, and still denied", denied.iter());
    let (name, namespace) = (scalar(&policy.key.name), scalar(&policy.key.namespace));
    let _ = write!(
        text,
        "apiVersion: networking.k8s.io/v1\n\
         kind: NetworkPolicy\n\
         metadata:\n\
         \x20 name: {name}\n\
         \x20 namespace: {namespace}\n\
         \x20 annotations:\n\
         \x20   netpold.io/enforcement: audit\n\
         spec:\n\
         \x20 podSelector:\n"
    );
    write_labels(text, 4, workload);
    text.push_str("  policyTypes: [Ingress, Egress]\n");
    for (direction, rules) in Direction::BOTH.into_iter().zip(rules) {
        if rules.is_empty() {
            let _ = writeln!(text, "  {direction}: []");
            continue;
        }
        let _ = writeln!(text, "  {direction}:");
        rules.iter().for_each(|of| write_rule(text, direction, of, &workload.namespace));
    }
}

/// Returns the document of the policy that accepts the domain names; empty without any.
fn names_document(learned: &LearnedPolicy) -> String {
    let Some(policy) = &learned.of_names else { return String::new() };
    let LearnedPolicy { workload, names, .. } = learned;
    let mut text = format!("---\n# Domain names of {}", comment(&workload.to_string()));
    text.push_str(
        ". In force at once: it denies nothing, and names in audit mode match no address.\n",
    );
    for (name, ports, sightings) in names {
        let _ = writeln!(
            text,
            "# {}, {}: {}",
            comment(&name.to_string()),
            ports,
            describe_sightings(sightings)
        );
    }
    let _ = write!(
        text,
        "apiVersion: policy.networking.k8s.io/v1alpha2\n\
         kind: ClusterNetworkPolicy\n\
         metadata:\n\
         \x20 name: {}\n\
         spec:\n\
         \x20 tier: Admin\n\
         \x20 priority: {}\n\
         \x20 subject:\n\
         \x20   pods:\n\
         \x20     namespaceSelector:\n\
         \x20       matchLabels:\n\
         \x20         kubernetes.io/metadata.name: {}\n\
         \x20     podSelector:\n",
        scalar(&policy.name),
        policy.priority,
        scalar(&workload.namespace)
    );
    write_labels(&mut text, 8, workload);
    text.push_str("  egress:\n");
    let rules = names::object(learned).map(|object| object["spec"]["egress"].clone());
    for rule in rules.as_ref().and_then(Value::as_array).into_iter().flatten() {
        let _ = writeln!(
            text,
            "  - action: Accept\n    to:\n    - domainNames: {}",
            rule["to"][0]["domainNames"]
        );
        text.push_str("    protocols:\n");
        for item in rule["protocols"].as_array().into_iter().flatten() {
            // Words and numbers only, so that they need no quotes.
            let item = item.to_string().replace('"', "").replace(':', ": ").replace(',', ", ");
            let _ = writeln!(text, "    - {item}");
        }
    }
    text
}

fn write_rule(text: &mut String, direction: Direction, rule: &LearnedRule, namespace: &str) {
    let word = if direction == Direction::Ingress { "from" } else { "to" };
    let _ = writeln!(text, "  - {word}:");
    for (spec, sightings) in &rule.peers {
        let _ = writeln!(text, "    # {}", comment(&describe_sightings(sightings)));
        match spec {
            PeerSpec::Block(block) => {
                let _ =
                    writeln!(text, "    - ipBlock:\n        cidr: {}", scalar(&block.to_string()));
            }
            PeerSpec::Pods(workload) if workload.namespace == namespace => {
                text.push_str("    - podSelector:\n");
                write_labels(text, 8, workload);
            }
            PeerSpec::Pods(workload) => {
                let _ = write!(
                    text,
                    "    - namespaceSelector:\n\
                     \x20       matchLabels:\n\
                     \x20         kubernetes.io/metadata.name: {}\n\
                     \x20     podSelector:\n",
                    scalar(&workload.namespace)
                );
                write_labels(text, 8, workload);
            }
        }
    }
    write_ports(text, &rule.ports);
}

fn write_ports(text: &mut String, ports: &LearnedPorts) {
    use netpold_core::model::PortMatch;
    let Some(rules) = ports.rules() else { return };
    text.push_str("    ports:\n");
    for rule in rules {
        let _ = writeln!(text, "    - protocol: {}", rule.protocol);
        if let PortMatch::Range(first, last) = rule.port {
            let _ = writeln!(text, "      port: {first}");
            if first != last {
                let _ = writeln!(text, "      endPort: {last}");
            }
        }
    }
}

/// Writes `matchLabels` below `podSelector`.
fn write_labels(text: &mut String, indent: usize, workload: &Workload) {
    let space = " ".repeat(indent);
    if workload.labels.is_empty() {
        // An empty selector stands on the line of its key.
        text.pop();
        text.push_str(" {}\n");
        return;
    }
    let _ = writeln!(text, "{space}matchLabels:");
    for (key, value) in &workload.labels {
        let _ = writeln!(text, "{space}  {}: {}", scalar(key), scalar(value));
    }
}

/// Describes the observations of a peer.
fn describe_sightings(sightings: &Sightings) -> String {
    let Sightings { services, flows, last } = sightings;
    let mut text = match flows {
        1 => format!("1 flow, at {}", time(*last)),
        _ => format!("{flows} flows, the last at {}", time(*last)),
    };
    let dns = |service: &&netpold_core::model::Key| {
        (service.namespace.as_str(), service.name.as_str()) == DNS
    };
    if services.iter().any(|service| dns(&service)) {
        text.push_str(", DNS");
    }
    let names: Vec<String> = services.iter().take(SERVICES).map(ToString::to_string).collect();
    if !names.is_empty() {
        let more = services.len() - names.len();
        let word = if services.len() == 1 { "Service" } else { "Services" };
        let _ = write!(text, ", by {word} {}", names.join(", "));
        if more > 0 {
            let _ = write!(text, " and {more} more");
        }
    }
    text
}

/// Formats a time as `2026-11-23T10:00:00Z`.
fn time(seconds: u64) -> String {
    let at = i64::try_from(seconds).ok().and_then(|at| Timestamp::from_second(at).ok());
    at.map_or_else(|| "an unknown time".to_owned(), |at| at.to_string())
}

/// Makes text printable for a comment line.
fn comment(text: &str) -> String {
    printable(text).into_owned()
}

/// Returns a string as a YAML scalar: plain if YAML cannot read it as another type.
fn scalar(text: &str) -> String {
    const WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/'))
        && !WORDS.contains(&text.to_lowercase().as_str());
    match is_plain {
        true => text.to_owned(),
        false => Value::from(text).to_string(),
    }
}

/// Returns one JSON document; `policies` is a List for `kubectl apply`.
#[must_use]
pub fn json(learned: &Learned) -> Value {
    let named =
        |workload: &Workload| json!({ "namespace": workload.namespace, "labels": workload.labels });
    let unseen = learned.unseen.iter().map(|unseen| {
        json!({
            "workload": named(&unseen.workload),
            "direction": unseen.direction,
            "peer": unseen.peer.to_string(),
            "ports": unseen.ports.to_string(),
        })
    });
    let denied = learned.denied.iter();
    let denied = denied.map(|denied| json!({ "flow": denied.flow, "reason": denied.reason }));
    let items = learned.policies.iter();
    let items = items.flat_map(|policy| [Some(object(policy)), names::object(policy)]).flatten();
    json!({
        "policies": { "apiVersion": "v1", "kind": "List", "items": items.collect::<Vec<_>>() },
        "denied": denied.collect::<Vec<_>>(),
        "unseen": unseen.collect::<Vec<_>>(),
        "unwatched": learned.unwatched.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "unlabelled": learned.unlabelled.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn object(learned: &LearnedPolicy) -> Value {
    use netpold_core::model::PortMatch;
    let LearnedPolicy { workload, rules, policy, .. } = learned;
    let selector = |workload: &Workload| match workload.labels.is_empty() {
        true => json!({}),
        false => json!({ "matchLabels": workload.labels }),
    };
    let peer = |spec: &PeerSpec| match spec {
        PeerSpec::Block(block) => json!({ "ipBlock": { "cidr": block.to_string() } }),
        PeerSpec::Pods(of) if of.namespace == workload.namespace => {
            json!({ "podSelector": selector(of) })
        }
        PeerSpec::Pods(of) => json!({
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": of.namespace } },
            "podSelector": selector(of),
        }),
    };
    let ports = |ports: &LearnedPorts| {
        let rules = ports.rules()?.into_iter().map(|rule| {
            let mut port = json!({ "protocol": rule.protocol });
            if let PortMatch::Range(first, last) = rule.port {
                port["port"] = first.into();
                if first != last {
                    port["endPort"] = last.into();
                }
            }
            port
        });
        Some(Value::from(rules.collect::<Vec<_>>()))
    };
    let [ingress, egress] = [("from", &rules[0]), ("to", &rules[1])].map(|(word, rules)| {
        let rules = rules.iter().map(|rule| {
            let peers: Vec<Value> = rule.peers.iter().map(|(spec, _)| peer(spec)).collect();
            let mut of = json!({ word: peers });
            if let Some(ports) = ports(&rule.ports) {
                of["ports"] = ports;
            }
            of
        });
        Value::from(rules.collect::<Vec<_>>())
    });
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": policy.key.name,
            "namespace": policy.key.namespace,
            "annotations": { "netpold.io/enforcement": "audit" },
        },
        "spec": {
            "podSelector": selector(workload),
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        },
    })
}
