//! Signs of other enforcers of NetworkPolicy.

mod known;

use std::collections::BTreeSet;

use netpold_client::details::{ContainerProgram, Details, RunningContainers};
use netpold_core::model::Key;
use netpold_kube::convert::DEFAULT_NAMESPACE;

pub use known::{ENFORCERS, Enforcer};

use crate::finding::{Check, Findings, Severity};

const ON_THE_NODE: Check = Check {
    name: "other-enforcer",
    severity: Severity::Error,
    problem: "{} enforces NetworkPolicy on this node, or did: a packet must be allowed by both",
    fix: "",
};
const IN_THE_CLUSTER: Check = Check {
    name: "other-enforcer-deployed",
    severity: Severity::Warning,
    problem: "{} is in the cluster: if it enforces NetworkPolicy, a packet must be allowed by both",
    fix: "",
};

const EMBEDDED: Check = Check {
    name: "embedded-enforcer",
    severity: Severity::Info,
    problem: "nodes run k3s, which contains kube-router's enforcement of NetworkPolicy without a pod of its own: if it is \
              on, a packet must be allowed by both",
    fix: "start each k3s server with `--disable-network-policy`, then reboot the nodes; none, if that was done",
};

impl Enforcer {
    /// Reports a sign of the enforcer on this node.
    pub fn found(&self, sign: String, findings: &mut Findings) {
        let check = Check { fix: self.fix, ..ON_THE_NODE };
        findings.add_of(&check, self.name, sign);
    }

    /// Returns the image, command or other sign by which a container is the enforcer. `None` if there is no sign, or if
    /// the container's arguments switch policy off.
    fn is_container(&self, container: &ContainerProgram) -> Option<String> {
        let ContainerProgram { name, image, words, .. } = container;
        if words.iter().any(|word| self.off.contains(&word.as_str())) {
            return None;
        }
        if self.images.iter().any(|it| is_image(image, it)) {
            return Some(format!("image {image}"));
        }
        if let Some(command) = programs(words).find_map(|program| self.command(program)) {
            return Some(format!("command {command}"));
        }
        if self.containers.contains(&name.as_str()) {
            return Some(format!("container {name}"));
        }
        None
    }

    /// Returns the command of the enforcer that a program is, unless it is a longer one of another enforcer.
    fn command(&self, program: &str) -> Option<&'static str> {
        let is_same = |command: &&&str| {
            program.strip_suffix(**command).is_some_and(|it| it.is_empty() || it.ends_with('/'))
        };
        let own = self.commands.iter().find(is_same)?;
        let mut all = ENFORCERS.iter().flat_map(|enforcer| enforcer.commands).filter(is_same);
        all.all(|other| other.len() <= own.len()).then_some(own)
    }

    /// Returns the environment variable by which a container is the enforcer, or another one that contains it.
    fn variable<'r>(&self, container: &'r ContainerProgram) -> Option<&'r String> {
        let mut variables = container.variables.iter();
        variables.find(|it| self.variables.iter().any(|begin| it.starts_with(begin)))
    }

    /// Returns the sign in a DaemonSet or pod; the text is empty if only the DaemonSet's name is one.
    fn sign(&self, running: &RunningContainers) -> Option<String> {
        let by_container = running.containers.iter().find_map(|it| self.is_container(it));
        let off = || {
            let words = running.containers.iter().flat_map(|it| &it.words);
            words.into_iter().any(|word| self.off.contains(&word.as_str()))
        };
        let by_name = || {
            let name = running.key.name.as_str();
            running.kind == "DaemonSet" && self.daemon_sets.contains(&name) && !off()
        };
        by_container.or_else(|| by_name().then(String::new))
    }

    /// Returns the variable of a workload that no enforcer has another sign of: other enforcers contain Felix.
    fn sign_by_variable(&self, running: &RunningContainers) -> Option<String> {
        let variable = running.containers.iter().find_map(|it| self.variable(it))?;
        let is_known = ENFORCERS.iter().any(|it| it.sign(running).is_some());
        (!is_known).then(|| format!("variable {variable}"))
    }
}

/// Returns the programs that a command line may start: the first word, and words that are an absolute path or follow
/// `exec`, also within scripts.
fn programs(words: &[String]) -> impl Iterator<Item = &str> {
    let first = words.first().into_iter().map(String::as_str);
    let breaks =
        |c: char| c.is_whitespace() || matches!(c, ';' | '&' | '|' | '(' | ')' | '\'' | '"');
    let in_scripts = words.iter().flat_map(move |word| {
        let mut before = "";
        word.split(breaks).filter(|token| !token.is_empty()).filter(move |token| {
            let is_program = token.starts_with('/') || before == "exec";
            before = *token;
            is_program
        })
    });
    first.chain(in_scripts)
}

/// Returns whether an image's repository ends in a name, without tag and digest: `calico/node` is
/// `quay.io/calico/node:v3`, but not `calico/node-driver-registrar`.
fn is_image(image: &str, name: &str) -> bool {
    let repository = image.split('@').next().unwrap_or_default();
    let repository = match repository.rsplit_once(':') {
        // The part after a registry's port contains a path.
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => repository,
    };
    repository.strip_suffix(name).is_some_and(|front| front.is_empty() || front.ends_with('/'))
}

/// Returns the enforcers in the cluster, each with a running workload and the sign.
pub(crate) fn in_cluster(
    details: &Details,
) -> impl Iterator<Item = (&'static str, &'static Enforcer, &RunningContainers, String)> {
    ENFORCERS.iter().flat_map(move |enforcer| {
        let found: Vec<_> = details
            .running
            .iter()
            .filter_map(|it| {
                let sign = enforcer.sign(it).or_else(|| enforcer.sign_by_variable(it))?;
                Some((enforcer.name, enforcer, it, sign))
            })
            .collect();
        // Pods count only if their workload is not among the objects, and Deployments if no DaemonSet is.
        let is_here = |kind: &&str| found.iter().any(|(_, _, running, _)| running.kind == *kind);
        let best = ["DaemonSet", "Deployment"].into_iter().find(is_here);
        let is_counted = move |kind: &str| best.is_none_or(|best| best == kind);
        found.into_iter().filter(move |(_, _, running, _)| is_counted(running.kind))
    })
}

/// Reports DaemonSets and pods of other enforcers.
pub(crate) fn examine(details: &Details, findings: &mut Findings) {
    embedded(details, findings);
    // kindnetd and Flannel may contain another enforcer's container: each pair is named once.
    let mut named = BTreeSet::new();
    for (_, enforcer, running, sign) in in_cluster(details) {
        let RunningContainers { kind, key, count, .. } = running;
        let sign = if sign.is_empty() { sign } else { format!(" ({sign})") };
        let more = if *count > 1 { format!(" and {} like it", count - 1) } else { String::new() };
        let source = details.sources.get(&(*kind, key.clone()));
        let source = source.map(|it| format!(" ({it})")).unwrap_or_default();
        let place = format!("{kind} {key}{more}{sign}{source}");
        if named.insert((enforcer.name, place.clone())) {
            let check = Check { fix: enforcer.fix, ..IN_THE_CLUSTER };
            findings.add_of(&check, enforcer.name, place);
        }
    }
}

/// Reports nodes of k3s, unless the arguments of some server switch its enforcement off.
fn embedded(details: &Details, findings: &mut Findings) {
    let nodes = &details.k3s_nodes;
    if nodes.values().any(|is_off| *is_off) {
        return;
    }
    for node in nodes.keys() {
        let place = format!("Node {node}");
        let key = Key::new(DEFAULT_NAMESPACE, node.as_str());
        let source = details.sources.get(&("Node", key));
        let source = source.map(|it| format!(" ({it})")).unwrap_or_default();
        findings.add(&EMBEDDED, format!("{place}{source}"));
    }
}

/// Reports the enforcers of an iptables or nftables chain.
pub fn chain(table: &str, chain: &str, findings: &mut Findings) {
    for enforcer in &ENFORCERS {
        if enforcer.chains.iter().any(|begin| chain.starts_with(begin)) {
            enforcer.found(format!("chain {chain} of {table}"), findings);
        }
    }
}

/// Reports the enforcer of an nftables table.
pub fn table(family: &str, table: &str, findings: &mut Findings) {
    if let Some(enforcer) = ENFORCERS.iter().find(|enforcer| enforcer.tables.contains(&table)) {
        enforcer.found(format!("nftables table {family} {table}"), findings);
    }
}

/// Reports the enforcer of a device.
pub fn device(name: &str, findings: &mut Findings) {
    if let Some(enforcer) = ENFORCERS.iter().find(|enforcer| enforcer.devices.contains(&name)) {
        enforcer.found(format!("device {name}"), findings);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_compared_by_their_last_names() {
        for image in [
            "calico/node",
            "quay.io/calico/node:v3.32.0",
            "registry.local:5000/mirror/calico/node:v3@sha256:abc",
            "registry.local:5000/calico/node",
        ] {
            assert!(is_image(image, "calico/node"), "{image}");
        }
        for image in
            ["calico/node-driver-registrar:v3", "mycalico/node:v1", "node", "", "calico/node/x"]
        {
            assert!(!is_image(image, "calico/node"), "{image}");
        }
        assert!(is_image("weave-npc", "weave-npc") && !is_image("rocket-weave-npc", "weave-npc"));
    }

    /// The signs of each entry match that entry only, and its off switch hides it.
    #[test]
    fn signs_are_of_one_enforcer() {
        let running = |container: ContainerProgram| RunningContainers {
            kind: "DaemonSet",
            key: Key::new("x", "renamed"),
            containers: vec![container],
            count: 1,
        };
        let finds = |running: &RunningContainers| -> Vec<&str> {
            let found = ENFORCERS.iter().filter(|it| it.sign(running).is_some());
            found.map(|it| it.name).collect()
        };
        for enforcer in &ENFORCERS {
            for image in enforcer.images {
                let image = format!("registry.local:5000/m/{image}:v1");
                let with = running(ContainerProgram { image, ..ContainerProgram::default() });
                assert_eq!(finds(&with), [enforcer.name]);
            }
            for command in enforcer.commands {
                let words = vec!["/usr/bin/env".to_owned(), format!("/opt/bin/{command}")];
                let mut with = running(ContainerProgram { words, ..ContainerProgram::default() });
                assert_eq!(finds(&with), [enforcer.name]);
                for off in enforcer.off {
                    with.containers[0].words.push((*off).to_owned());
                    assert_eq!(finds(&with), [""; 0], "{off}");
                }
            }
            for name in enforcer.daemon_sets {
                let mut with = running(ContainerProgram::default());
                with.key.name = (*name).to_owned();
                assert_eq!(finds(&with), [enforcer.name]);
            }
        }
        for image in [
            "flannel/flannel:v0.26",
            "calico/cni:v3",
            "calico/kube-controllers:v3",
            "calico/csi:v3",
            "calico/node-driver-registrar:v3",
            "cilium/cilium-envoy:v1",
            "cilium/hubble-relay:v1",
            "rancher/hardened-flannel:v0.26",
            "amazon/amazon-k8s-cni:v1",
            "weaveworks/weave-kube:2.8",
            "registry.k8s.io/kube-proxy:v1.36.2",
            "netpold:0.1.0",
            "multus-cni:v4",
        ] {
            let with = running(ContainerProgram {
                image: image.to_owned(),
                ..ContainerProgram::default()
            });
            assert_eq!(finds(&with), [""; 0], "{image}");
        }
    }
}
