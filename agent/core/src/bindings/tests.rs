use std::net::IpAddr;

use super::*;
use crate::compile::Compiler;
use crate::model::Labels;
use crate::options::Options;

const NODE: &str = "here";

fn addresses(list: &[&str]) -> Vec<IpAddr> {
    list.iter().map(|address| address.parse().unwrap()).collect()
}

fn pod(name: &str, uid: &str, list: &[&str]) -> Pod {
    Pod {
        key: Key::new("x", name),
        uid: uid.to_owned(),
        labels: Labels::from_iter([("app".to_owned(), name.to_owned())]),
        node: NODE.into(),
        addresses: addresses(list),
        ..Pod::default()
    }
}

/// A veth on a bridge: the addresses inside are the only evidence.
fn bridged(index: u32, inside: &[&str]) -> Veth {
    Veth {
        index,
        incarnation: 1,
        name: format!("veth{index}"),
        namespace: index.cast_signed(),
        routed: Vec::new(),
        inside: addresses(inside),
        station: None,
    }
}

fn routed(index: u32, list: &[&str]) -> Veth {
    Veth { routed: addresses(list), ..bridged(index, list) }
}

fn result(pod: &Pod, veth: u32) -> CniResult {
    CniResult {
        further: false,
        pod: pod.key.clone(),
        uid: pod.uid.clone(),
        addresses: pod.addresses.clone(),
        interfaces: vec!["cni0".to_owned(), format!("veth{veth}")],
        station: None,
        manifest: None,
    }
}

struct World {
    bindings: Bindings,
    compiler: Compiler,
}

impl World {
    fn new(pods: &[Pod], veths: &[Veth]) -> Self {
        let options = Options { node: NODE.to_owned(), ..Options::default() };
        let mut world = Self { bindings: Bindings::default(), compiler: Compiler::new(options) };
        veths.iter().for_each(|veth| world.bindings.set_veth(veth.clone()));
        pods.iter().for_each(|pod| world.apply(Change::Pod(pod.clone())));
        world.settle();
        world
    }

    fn apply(&mut self, change: Change) {
        self.bindings.mark_stale(&change, self.compiler.cluster());
        self.compiler.ingest(change);
    }

    fn settle(&mut self) {
        for change in self.bindings.bind_veths(self.compiler.cluster()) {
            self.compiler.ingest(change);
        }
        self.compiler.update().unwrap();
    }

    fn pod_is(&mut self, pod: Pod) {
        self.apply(Change::Pod(pod));
        self.settle();
    }

    fn pod_gone(&mut self, name: &str) {
        self.apply(Change::PodGone(Key::new("x", name)));
        self.settle();
    }

    fn veth_is(&mut self, veth: Veth) {
        self.bindings.set_veth(veth);
        self.settle();
    }

    fn veth_gone(&mut self, index: u32) {
        self.bindings.remove_veth(index);
        self.settle();
    }

    fn cni_results_are(&mut self, results: &[CniResult]) {
        self.bindings.set_cni_results(results.to_vec());
        self.settle();
    }

    fn bound(&self, index: u32) -> Option<Bound> {
        match &self.compiler.cluster().interfaces().get(&index)?.owner {
            InterfaceOwner::Pod(bound) => Some(bound.clone()),
            InterfaceOwner::Unbound | InterfaceOwner::Denied => None,
        }
    }

    /// Uid of a veth's pod.
    fn uid(&self, index: u32) -> Option<String> {
        self.bound(index).map(|bound| bound.pod.uid.clone())
    }

    /// Hardware address from which the frames of a veth's pod must come.
    fn station(&self, index: u32) -> Option<[u8; 6]> {
        self.bound(index)?.station
    }

    fn is_denied(&self, index: u32) -> bool {
        self.compiler.cluster().interfaces()[&index].owner == InterfaceOwner::Denied
    }

    fn problems(&self) -> Vec<BindingProblem> {
        self.bindings.problems(self.compiler.cluster())
    }

    /// The bindings of an agent that starts now and inherits these.
    fn restarted(&self, pods: &[Pod], veths: &[Veth], remembered: &[Pod]) -> Self {
        let endpoints = self.compiler.endpoints().filter(|endpoint| !endpoint.waiting);
        let inherited = |ifindex, uid_hash| Inherited { uid_hash, station: self.station(ifindex) };
        let bound = endpoints.map(|e| (e.ifindex, inherited(e.ifindex, e.uid_hash))).collect();
        let mut world = Self::new(&[], &[]);
        world.bindings.inherit(bound, remembered.to_vec());
        veths.iter().for_each(|veth| world.bindings.set_veth(veth.clone()));
        pods.iter().for_each(|pod| world.apply(Change::Pod(pod.clone())));
        world.settle();
        world
    }
}

fn uid(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn what_happens_inside_changes_nothing() {
    let pods = [pod("a", "ua", &["10.0.0.1"]), pod("b", "ub", &["10.0.0.2"])];
    for veth in [bridged, routed] {
        let mut world = World::new(&pods, &[veth(1, &["10.0.0.1"]), veth(2, &["10.0.0.2"])]);
        assert_eq!((world.uid(1), world.uid(2)), (uid("ua"), uid("ub")));
        assert_eq!(world.problems(), []);
        let inside = |inside: &[&str]| Veth { inside: addresses(inside), ..veth(1, &["10.0.0.1"]) };
        world.veth_is(inside(&[]));
        assert_eq!(world.uid(1), uid("ua"));
        assert!(matches!(&world.problems()[..], [BindingProblem::Missing { .. }]));
        world.veth_is(inside(&["10.0.0.1", "10.0.0.2"]));
        assert_eq!((world.uid(1), world.uid(2)), (uid("ua"), uid("ub")));
        assert!(matches!(&world.problems()[..], [BindingProblem::Foreign { .. }]));
        world.veth_is(inside(&["10.0.0.2"]));
        assert_eq!((world.uid(1), world.uid(2)), (uid("ua"), uid("ub")));
        assert_eq!(world.problems().len(), 2);
        // The owner of the address is removed, and its veth with it: the binding still does not move.
        world.bindings.remove_veth(2);
        world.settle();
        assert_eq!(world.uid(1), uid("ua"));
    }
}

#[test]
fn a_newcomer_never_takes_a_bound_pod() {
    let pods = [pod("a", "ua", &["10.0.0.1"])];
    let mut world = World::new(&pods, &[bridged(2, &["10.0.0.1"])]);
    world.veth_is(bridged(1, &["10.0.0.1"]));
    assert_eq!(world.uid(2), uid("ua"));
    assert!(world.is_denied(1), "it claims to be another's pod");
    assert!(matches!(&world.problems()[..], [BindingProblem::Rival { .. }]));
    // An unbound veth that starts to use a pod's address later.
    world.veth_is(bridged(3, &["10.9.9.9"]));
    assert!(!world.is_denied(3) && world.uid(3).is_none());
    world.veth_is(Veth { inside: addresses(&["10.0.0.1"]), ..bridged(3, &[]) });
    assert!(world.is_denied(3));
    // Once the bound veth is gone, first addresses count and later ones do not.
    world.bindings.remove_veth(2);
    world.settle();
    assert_eq!((world.uid(1), world.uid(3)), (uid("ua"), None));
    assert!(world.is_denied(3));
}

#[test]
fn only_the_first_addresses_count() {
    let mut world = World::new(&[], &[bridged(1, &[])]);
    world.veth_is(bridged(1, &["10.0.0.1"]));
    world.veth_is(bridged(1, &["10.0.0.2"]));
    world.pod_is(pod("b", "ub", &["10.0.0.2"]));
    assert_eq!(world.uid(1), None);
    world.pod_is(pod("a", "ua", &["10.0.0.1"]));
    assert_eq!(world.uid(1), uid("ua"));
}

#[test]
fn the_nodes_word_weighs_more_than_addresses_inside() {
    let (a, b) = (pod("a", "ua", &["10.0.0.1"]), pod("b", "ub", &["10.0.0.2"]));
    // Pod a was first, with b's address inside, before b had a veth.
    let mut world = World::new(&[a.clone(), b.clone()], &[bridged(1, &["10.0.0.2"])]);
    assert_eq!(world.uid(1), uid("ub"));
    world.cni_results_are(&[result(&a, 1)]);
    assert_eq!(world.uid(1), uid("ua"));
    // By a route: the veth with the route gets the pod.
    let mut world = World::new(&[a, b], &[bridged(1, &["10.0.0.2"])]);
    world.veth_is(routed(2, &["10.0.0.2"]));
    assert_eq!((world.uid(1), world.uid(2)), (None, uid("ub")));
    assert!(world.is_denied(1));
}

#[test]
fn the_nodes_word_does_not_move_a_bound_veth() {
    let (a, b) = (pod("a", "ua", &["10.0.0.1"]), pod("b", "ub", &["10.0.0.2"]));
    let mut world = World::new(&[a.clone(), b.clone()], &[routed(1, &["10.0.0.1"])]);
    // A route to another pod's address, as to a gateway.
    world.veth_is(Veth { routed: addresses(&["10.0.0.2"]), ..routed(1, &["10.0.0.1"]) });
    assert_eq!(world.uid(1), uid("ua"));
    world.cni_results_are(&[result(&b, 1)]);
    assert_eq!(world.uid(1), uid("ua"), "as long as its pod is there");
    world.pod_gone("a");
    assert_eq!(world.uid(1), uid("ub"), "the API and the node agree");
}

#[test]
fn a_deleted_pod_keeps_its_veth_and_yields_its_address() {
    let a = pod("a", "ua", &["10.0.0.1", "10.0.0.9"]);
    let mut world = World::new(std::slice::from_ref(&a), &[bridged(1, &["10.0.0.1"])]);
    world.pod_gone("a");
    let bound = world.bound(1).unwrap();
    assert_eq!((bound.standing, &*bound.pod), (Standing::Deleted, &a), "as it was last");
    assert!(matches!(&world.problems()[..], [BindingProblem::Deleted { .. }]));
    assert!(world.compiler.cluster().owner(a.addresses[0]).is_none(), "nobody's peer");
    // A new pod of the same name on a new veth, while the old veth still exists.
    world.veth_is(bridged(2, &["10.0.0.1"]));
    assert_eq!(world.uid(2), None);
    world.pod_is(pod("a", "ua2", &["10.0.0.1"]));
    assert_eq!((world.uid(1), world.uid(2)), (uid("ua"), uid("ua2")));
    assert_eq!(world.bound(1).unwrap().pod.addresses, addresses(&["10.0.0.9"]), "not to send from");
    // The former pod comes back in the API: only a gap in the list.
    let mut world = World::new(std::slice::from_ref(&a), &[bridged(1, &["10.0.0.1"])]);
    world.pod_gone("a");
    world.pod_is(Pod { finished: true, ..a.clone() });
    assert_eq!(world.bound(1).unwrap().standing, Standing::Deleted, "finished");
    world.pod_is(a.clone());
    assert_eq!(world.bound(1).unwrap().standing, Standing::Listed);
}

#[test]
fn an_address_reused_before_the_former_pod_is_gone() {
    let former = Pod { terminating: true, ..pod("a", "ua", &["10.0.0.1"]) };
    let mut world = World::new(&[former], &[bridged(1, &["10.0.0.1"])]);
    assert_eq!(world.uid(1), uid("ua"), "nothing better is known");
    world.pod_is(pod("b", "ub", &["10.0.0.1"]));
    assert_eq!(world.uid(1), uid("ua"));
    world.pod_gone("a");
    assert_eq!(world.uid(1), uid("ub"));
}

#[test]
fn bindings_outlive_the_agent() {
    let (a, b) = (pod("a", "ua", &["10.0.0.1"]), pod("b", "ub", &["10.0.0.2"]));
    let veths = [bridged(1, &["10.0.0.1"]), bridged(2, &["10.0.0.2"])];
    let world = World::new(&[a.clone(), b.clone()], &veths);
    let swapped = [bridged(1, &["10.0.0.2"]), bridged(2, &["10.0.0.1"])];
    let again = world.restarted(&[a.clone(), b.clone()], &swapped, &[]);
    assert_eq!((again.uid(1), again.uid(2)), (uid("ua"), uid("ub")));
    // Deleted while no agent ran: known from the saved state, else lost.
    let remembered = again.restarted(std::slice::from_ref(&b), &swapped, std::slice::from_ref(&a));
    assert_eq!(remembered.bound(1).unwrap().standing, Standing::Deleted);
    assert_eq!(remembered.uid(1), uid("ua"));
    let mut lost = again.restarted(std::slice::from_ref(&b), &swapped, &[]);
    assert!(lost.is_denied(1) && lost.uid(2) == uid("ub"));
    assert!(matches!(lost.problems()[0], BindingProblem::Lost { .. }));
    // After a restart, addresses inside are not the first ones and bind nothing.
    lost.bindings.remove_veth(2);
    lost.settle();
    assert!(lost.is_denied(1));
    lost.cni_results_are(&[result(&b, 1)]);
    assert_eq!(lost.uid(1), uid("ub"), "the node's word does");
}

#[test]
fn further_veths_of_a_namespace_belong_to_its_pod() {
    let a = pod("a", "ua", &["10.0.0.1"]);
    let second = Veth { namespace: 1, ..bridged(2, &["192.168.7.1"]) };
    let mut world = World::new(std::slice::from_ref(&a), &[second, bridged(1, &["10.0.0.1"])]);
    let bound = world.bound(2).unwrap();
    assert!(
        bound.is_secondary
            && bound.pod.addresses.is_empty()
            && !world.bound(1).unwrap().is_secondary
    );
    assert_eq!(world.uid(2), uid("ua"));
    world.bindings.remove_veth(1);
    world.pod_gone("a");
    assert_eq!(world.uid(2), uid("ua"), "it stays when the first goes");
    // The namespace's identifier is reused for another namespace with better evidence.
    world.pod_is(pod("b", "ub", &["10.0.0.2"]));
    world.veth_is(Veth { namespace: 1, ..bridged(3, &["10.0.0.2"]) });
    assert_eq!(world.uid(3), uid("ub"));
    let again = world.restarted(&[a], &[bridged(2, &["192.168.7.1"])], &[]);
    assert_eq!(again.uid(2), uid("ua"));
}

/// A pod that can create devices in the node's namespace adds a second veth to send from any address.
#[test]
fn a_further_veth_that_no_answer_names_is_denied_where_answers_are_kept() {
    let (a, b) = (pod("a", "ua", &["10.0.0.1"]), pod("b", "ub", &["10.0.0.2"]));
    let second = Veth { namespace: 1, ..bridged(2, &["10.0.0.2"]) };
    let mut world = World::new(&[a.clone(), b.clone()], &[bridged(1, &["10.0.0.1"])]);
    world.cni_results_are(&[result(&a, 1), result(&b, 9)]);
    world.veth_is(second.clone());
    // Its first address belongs to a pod without a veth, but its namespace has a pod with a kept result.
    assert_ne!(
        world.uid(2),
        uid("ub"),
        "an address inside names nobody where another veth leads there"
    );
    assert!(world.is_denied(2));
    let unnamed = |world: &World| {
        world.problems().iter().any(|problem| matches!(problem, BindingProblem::Unnamed { .. }))
    };
    assert!(unnamed(&world));
    let network = |pod: &Pod| CniResult { further: true, ..result(pod, 2) };
    world.cni_results_are(&[result(&a, 1), result(&b, 9), network(&b)]);
    assert!(world.is_denied(2), "another pod's network");
    world.cni_results_are(&[result(&a, 1), result(&b, 9), network(&a)]);
    assert!(world.bound(2).unwrap().is_secondary && !unnamed(&world));
    world.veth_is(Veth { routed: addresses(&["192.168.7.2"]), index: 3, ..second.clone() });
    assert!(world.bound(3).unwrap().is_secondary, "a route of the node names it");
}

#[test]
fn a_pod_that_the_api_has_not_listed_is_known_by_its_answer() {
    let key = Key::new("x", "web-here");
    let of_static = CniResult {
        further: false,
        pod: key.clone(),
        uid: "hash".to_owned(),
        addresses: addresses(&["10.0.0.1"]),
        interfaces: vec!["veth1".to_owned()],
        station: None,
        manifest: None,
    };
    let mut world = World::new(&[], &[bridged(1, &[])]);
    world.cni_results_are(std::slice::from_ref(&of_static));
    let bound = world.bound(1).unwrap();
    assert_eq!((bound.standing, &bound.pod.key), (Standing::Unlabelled, &key));
    let labels = Labels::from_iter([("app".to_owned(), "web".to_owned())]);
    let manifest = Some((labels.clone(), Vec::new()));
    world.cni_results_are(&[CniResult { manifest, ..of_static.clone() }]);
    let bound = world.bound(1).unwrap();
    assert_eq!((bound.standing, &bound.pod.labels), (Standing::Unlisted, &labels));
    // A pod of the same name in another namespace, with a forged mirror annotation.
    let other = Pod {
        key: Key::new("y", "web-here"),
        ..pod("z", &mirrored_uid("hash", &Key::new("y", "web-here")), &[])
    };
    world.pod_is(other);
    assert_eq!(world.bound(1).unwrap().standing, Standing::Unlisted);
    let mirror = Pod { key: key.clone(), ..pod("z", &mirrored_uid("hash", &key), &["10.0.0.1"]) };
    world.pod_is(mirror.clone());
    let bound = world.bound(1).unwrap();
    assert_eq!((bound.standing, &*bound.pod), (Standing::Listed, &mirror));
    // The result's file is gone: the binding does not depend on it any more.
    world.cni_results_are(&[]);
    assert_eq!(world.bound(1).unwrap().standing, Standing::Listed);
}

#[test]
fn a_hardware_address_is_settled_when_its_veth_is_bound() {
    let [first, later, named] = [1, 2, 3].map(|last| [2, 0, 0, 0, 0, last]);
    let with = |index, station| Veth { station: Some(station), ..bridged(index, &["10.0.0.1"]) };
    let a = pod("a", "ua", &["10.0.0.1"]);
    let mut world = World::new(&[], &[with(1, later)]);
    assert_eq!(world.station(1), None, "nobody's");
    // Until the veth is bound, the hardware address is set by the CNI plugin, not by the pod.
    world.veth_is(with(1, first));
    world.pod_is(a.clone());
    assert_eq!(world.station(1), Some(first));
    world.veth_is(with(1, later));
    assert_eq!(world.station(1), Some(first), "the pod can write it");
    let told = world.problems().iter().map(ToString::to_string).collect::<String>();
    assert!(
        told.contains("has MAC 02:00:00:00:00:02 in its namespace, but had 02:00:00:00:00:01"),
        "{told}"
    );
    let again = world.restarted(std::slice::from_ref(&a), &[with(1, later)], &[]);
    assert_eq!(again.station(1), Some(first), "another agent goes on with it");
    world.cni_results_are(&[CniResult { station: Some(named), ..result(&a, 1) }]);
    assert_eq!(world.station(1), Some(named), "the plugin knows best");
    world.cni_results_are(&[]);
    assert_eq!(world.station(1), Some(named));
    // Another veth with the same index, for another pod.
    world.veth_gone(1);
    world.veth_is(Veth { incarnation: 2, ..with(1, later) });
    assert_eq!(world.station(1), Some(later));
}
