//! Status of pods' secondary interfaces: interfaces that are not under policy, and annotated addresses that are not
//! accepted.

use std::collections::{BTreeMap, BTreeSet};

use netpold_core::bindings::Veth;
use netpold_core::cluster::{Cluster, is_subject};
use netpold_core::model::{Bound, Key, Pod, SecondaryInterface};

use super::Engine;

/// Maximum number of lines about secondary interfaces; one more line has the number of the others.
const LINES: usize = 100;

/// Returns secondary interfaces of this node's pods that are not under policy or have no source check, with the reason.
#[must_use]
pub(super) fn not_enforced(engine: &Engine) -> Vec<String> {
    let compiler = &engine.reconciler.compiler;
    let judged: BTreeMap<u32, bool> =
        compiler.endpoints().map(|endpoint| (endpoint.ifindex, endpoint.checked)).collect();
    let mut veths: BTreeMap<&Key, Vec<(&Veth, &Bound)>> = BTreeMap::new();
    for (veth, bound) in engine.bindings.secondary() {
        veths.entry(&bound.pod.key).or_default().push((veth, bound));
    }
    let mut lines = Vec::new();
    for (pod, veths) in &veths {
        for (veth, bound) in veths {
            let is_known = !bound.pod.addresses.is_empty() || has_addresses(&bound.pod);
            let name = &veth.name;
            match judged.get(&veth.index) {
                None => lines.push(format!(
                    "pod {pod}: its secondary interface {name} is not under policy: {}",
                    if is_known { "--second-interfaces off" } else { OPEN }
                )),
                Some(false) if !is_known => lines.push(format!(
                    "pod {pod}: the addresses of its secondary interface {name} are not known: it is under policy, but \
                     peers by label do not match there, and its source addresses are not checked"
                )),
                Some(_) => {}
            }
        }
    }
    for pod in local(compiler.cluster()) {
        let of_pod = veths.get(&pod.key).map_or(&[][..], Vec::as_slice);
        lines.extend(without_veth(pod, of_pod).map(|interface| no_veth(pod, interface)));
    }
    limited(lines)
}

/// Reason why an interface without known addresses is open.
const OPEN: &str = "its addresses are not known, and the namespace has the label netpold.io/second-interfaces: open \
                    (or --second-interfaces is off)";

/// Returns the addresses on secondary networks that pods of this node claim without success, with the reason.
#[must_use]
pub(super) fn refused_claims(cluster: &Cluster) -> Vec<String> {
    let mut lines = Vec::new();
    for pod in local(cluster) {
        let mut reported = BTreeSet::new();
        for interface in &pod.secondary {
            for address in interface.addresses.iter().filter(|address| reported.insert(**address)) {
                if let Some(refusal) = cluster.refused(pod, *address) {
                    lines.push(format!(
                        "pod {}: {address} of {} does not count as its address: {refusal}",
                        pod.key,
                        interface.title()
                    ));
                }
            }
        }
    }
    limited(lines)
}

/// Returns this node's pods with secondary interfaces by annotation.
fn local(cluster: &Cluster) -> impl Iterator<Item = &Pod> {
    let pods = cluster.pods().values().map(|pod| &**pod);
    pods.filter(|pod| {
        !pod.secondary.is_empty() && pod.node == cluster.node_name() && is_subject(pod)
    })
}

fn has_addresses(pod: &Pod) -> bool {
    pod.secondary_addresses().next().is_some()
}

/// Returns the annotated interfaces that match none of the pod's veths. An address identifies a veth; each remaining
/// interface may be one of the veths without a matching address.
fn without_veth<'p>(
    pod: &'p Pod,
    veths: &[(&Veth, &Bound)],
) -> impl Iterator<Item = &'p SecondaryInterface> + use<'p> {
    let mut left: Vec<&(&Veth, &Bound)> = veths.iter().collect();
    let mut rest = Vec::new();
    for interface in &pod.secondary {
        let has = |(veth, bound): &&(&Veth, &Bound)| {
            interface.device.is_empty()
                && interface.addresses.iter().any(|address| {
                    veth.inside.contains(address) || bound.pod.addresses.contains(address)
                })
        };
        match left.iter().position(has) {
            Some(place) => {
                left.remove(place);
            }
            None => rest.push(interface),
        }
    }
    let (maybe, never): (Vec<_>, Vec<_>) =
        rest.into_iter().partition(|interface| interface.device.is_empty());
    maybe.into_iter().skip(left.len()).chain(never)
}

fn no_veth(pod: &Pod, interface: &SecondaryInterface) -> String {
    let device = match interface.device.as_str() {
        "" => "macvlan, ipvlan or another device".to_owned(),
        device => format!("device-info {device}, as of SR-IOV"),
    };
    let (pod, title) = (&pod.key, interface.title());
    format!("pod {pod}: {title} is not under policy: it is not a veth of this node ({device})")
}

/// Keeps the first lines and adds the number of the rest.
fn limited(mut lines: Vec<String>) -> Vec<String> {
    let more = lines.len().saturating_sub(LINES);
    if more > 0 {
        lines.truncate(LINES);
        lines.push(format!("{more} more lines about secondary interfaces of pods"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use netpold_core::model::Standing;
    use netpold_testkit::objects;

    use super::*;

    fn interface(name: &str, address: &str, device: &str) -> SecondaryInterface {
        SecondaryInterface {
            name: name.to_owned(),
            network: format!("shop/{name}"),
            addresses: address.parse::<IpAddr>().into_iter().collect(),
            device: device.to_owned(),
        }
    }

    fn names(second: &[SecondaryInterface], inside: &[&[&str]]) -> Vec<String> {
        let pod = Pod { secondary: second.to_vec(), ..objects::pod("x", "a", &[], &["10.0.0.1"]) };
        let bound = Bound {
            pod: Arc::new(pod.clone()),
            standing: Standing::Listed,
            is_secondary: true,
            station: None,
        };
        let veth = |inside: &&[&str]| Veth { inside: objects::ips(inside), ..Veth::default() };
        let veths: Vec<Veth> = inside.iter().map(veth).collect();
        let veths: Vec<_> = veths.iter().map(|veth| (veth, &bound)).collect();
        without_veth(&pod, &veths).map(|interface| interface.name.clone()).collect()
    }

    #[test]
    fn interfaces_without_a_veth_are_reported() {
        let veth = interface("net1", "192.168.7.1", "");
        let macvlan = interface("net2", "192.168.8.1", "");
        let virtual_function = interface("net3", "192.168.9.1", "pci");
        let all = [veth.clone(), macvlan.clone(), virtual_function];
        assert_eq!(names(&all, &[&["192.168.7.1"]]), ["net2", "net3"]);
        assert_eq!(names(&all, &[]), ["net1", "net2", "net3"]);
        // A veth with other addresses inside may be any of the interfaces.
        assert_eq!(names(&[veth.clone(), macvlan], &[&["192.168.1.1"], &["192.168.7.1"]]), [""; 0]);
        // Addresses inside a veth match no virtual function.
        assert_eq!(
            names(&[interface("net1", "192.168.9.1", "pci")], &[&["192.168.9.1"]]),
            ["net1"]
        );
        let line = no_veth(&objects::pod("x", "a", &[], &[]), &veth);
        assert_eq!(
            line,
            "pod x/a: interface net1 (network shop/net1) is not under policy: it is not a veth of this node \
             (macvlan, ipvlan or another device)"
        );
    }

    #[test]
    fn lines_are_bounded() {
        let lines = limited((0..1000).map(|n| n.to_string()).collect());
        assert_eq!(
            (lines.len(), lines[LINES].as_str()),
            (101, "900 more lines about secondary interfaces of pods")
        );
    }
}
