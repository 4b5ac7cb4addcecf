//! Check for pods behind an Ingress that policies close to other namespaces and to every address.

use netpold_client::details::complete::numbers;
use netpold_client::details::{RoutedPort, ServiceCaller, WrittenServicePort};
use netpold_core::model::{Action, Direction, Key, Peer, Pod, Protocol, Rule};

use crate::finding::{Check, Findings, Severity};
use crate::objects::{GroupedObjects, PodGroup, pods_text};
use crate::outside::is_denied_outside;
use crate::rule_ports::has_port;

const CLOSED: Check = Check {
    name: "ingress-closed",
    severity: Severity::Warning,
    problem: "an Ingress leads to pods whose policies admit only pods of their own namespace: no ingress controller of another \
              namespace, no node and no load balancer",
    fix: "add an ingress rule with the container's port for the controller's namespace: - {from: [{namespaceSelector: \
          {matchLabels: {kubernetes.io/metadata.name: NAMESPACE}}}], ports: [...]}; for a controller on the host's network \
          or outside of the cluster, an ipBlock",
};
/// Ports of ingress controllers' pods.
const WEB: [u16; 6] = [80, 443, 8000, 8080, 8443, 10080];

/// Checks the Services to which Ingress objects lead clients.
pub(crate) fn examine(objects: &GroupedObjects<'_>, found: &mut Findings) {
    for ((key, port), routed) in &objects.details.routed {
        let Some(service) = objects.details.services.get(key) else { continue };
        let is_meant = |it: &&WrittenServicePort| match port {
            RoutedPort::Number(number) => it.port == *number && it.protocol == Protocol::Tcp,
            RoutedPort::Name(name) => it.name == *name,
        };
        let Some(port) = service.ports.iter().find(is_meant) else { continue };
        let own = |group: &&PodGroup<'_>| group.is_behind(key, service);
        let groups: Vec<&PodGroup<'_>> = objects.groups.iter().filter(own).collect();
        let closed = groups.iter().map(|group| closed(objects, group, port, &groups));
        let closed: Option<Vec<u16>> = closed.collect();
        if let (Some(group), Some(targets)) = (groups.first(), closed) {
            add(objects, (key, routed), (group, &targets), found);
        }
    }
}

fn add(
    objects: &GroupedObjects<'_>,
    (key, routed): (&Key, &ServiceCaller),
    (group, targets): (&PodGroup<'_>, &[u16]),
    found: &mut Findings,
) {
    let isolating = objects.isolating(group, Direction::Ingress);
    let policies = isolating.iter().map(|(policy, _)| *policy);
    let target = targets.first().copied().unwrap_or_default();
    let (pods, by) = (pods_text(group), &routed.by);
    let text = |names: &str| format!("{names}: {pods}: TCP {target}, {by} by Service {key}");
    let place = objects.place_of(policies, "spec.ingress", text);
    found.add(&objects.check(&CLOSED), place);
}

/// Returns the port of a group behind a Service if its policies admit only pods of their own namespace there, none of
/// which may be an ingress controller.
fn closed(
    objects: &GroupedObjects<'_>,
    group: &PodGroup<'_>,
    port: &WrittenServicePort,
    backends: &[&PodGroup<'_>],
) -> Option<u16> {
    let pod: &Pod = group.pods.first()?;
    let target = *numbers(&port.target, port.protocol, pod).first()?;
    let isolating = objects.isolating(group, Direction::Ingress);
    let rules = isolating.iter().flat_map(|(_, rules)| rules.iter());
    let mut rules = rules.filter(|rule| has_port(rule, port.protocol, target));
    let may_be_controller = |selected: &PodGroup<'_>| {
        let mut pods = selected.pods.iter();
        !backends.iter().any(|backend| std::ptr::eq(*backend, selected))
            && pods.any(|pod| {
                objects.pod(pod).is_some_and(|details| {
                    WEB.iter().any(|port| details.ports.contains(&(Protocol::Tcp, *port)))
                })
            })
    };
    let is_open = |rule: &Rule| {
        let Some(peers) = &rule.peers else { return true };
        peers.iter().any(|peer| match peer {
            Peer::Pods { namespaces: None, pods } => {
                let selected = objects.select(Some(group.namespace), None, pods);
                selected.into_iter().any(may_be_controller)
            }
            Peer::Pods { namespaces: Some(_), .. }
            | Peer::Block(_)
            | Peer::Nodes(_)
            | Peer::Domain(_) => true,
        })
    };
    if isolating.is_empty() || rules.any(is_open) {
        return None;
    }
    // A ClusterNetworkPolicy may accept pods of other namespaces.
    let has_accepts = objects.cluster.cluster_policies().any(|policy| {
        group.is_subject(policy) && policy.ingress.iter().any(|it| it.action == Action::Accept)
    });
    (!has_accepts && is_denied_outside(objects, pod, (port.protocol, target))).then_some(target)
}
