//! Peer slices: a controller writes them, and an agent's source follows them; another source follows all pods for
//! comparison.

mod delay;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use netpold_core::cluster::{ObjectKey, SecondaryNetworks};
use netpold_core::model::{Change, Key, Pod};
use netpold_kube::ObjectStream;
use netpold_kube::cluster::{
    Access, FollowedNodes, FollowedPeers, PeerTimes, WatchSettings, watch,
};
use netpold_slices::Vocabulary;
use netpold_testbed::Credential;
use netpold_testkit::generate::Choices;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::controller::world::{NAMESPACE, PATIENCE, USER, World, wait};

const OWN: &str = "n1";
/// User name of the agents' service account.
const AGENT: &str = "system:serviceaccount:netpold-system:netpold";
/// Times short enough for tests; the controller renews slices every 3 s.
const TIMES: PeerTimes = PeerTimes {
    reported: Duration::from_secs(8),
    patience: Duration::from_secs(9),
    steady: Duration::from_secs(4),
};

fn template() -> String {
    let path = "../deploy/chart/templates/options/peer-slices.yaml";
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.replace("{{ .Release.Namespace }}", "netpold-system");
    text.lines().filter(|line| !line.contains("{{")).map(|line| format!("{line}\n")).collect()
}

/// The rights of the option; this server is older than admission policies.
pub(crate) fn rights() -> Vec<Value> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(&template()).unwrap();
    let is_right = |object: &Value| object["apiVersion"] == "rbac.authorization.k8s.io/v1";
    let rights: Vec<Value> = objects.into_iter().filter(is_right).collect();
    assert_eq!(rights.len(), 4);
    rights
}

/// Starts a server with the rights of agents and of the controller.
fn world(test: &str) -> Option<World> {
    let world = World::new(test)?;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/base/rbac.yaml");
    world.server.apply(&std::fs::read_to_string(path).unwrap()).unwrap();
    rights().iter().for_each(|right| drop(world.server.apply(&right.to_string()).unwrap()));
    [OWN, "n2", "n3"].into_iter().for_each(|node| world.node(node));
    Some(world)
}

/// Objects as an agent's source reports them.
struct Agent {
    source: ObjectStream,
    objects: BTreeMap<ObjectKey, Change>,
}

impl Agent {
    fn start(runtime: &Runtime, world: &World, name: &str, peers: FollowedPeers) -> Self {
        let token = world.server.token("netpold-system", "netpold").unwrap();
        let kubeconfig = world.server.write_kubeconfig(name, &Credential::Token(&token)).unwrap();
        let access = Access {
            kubeconfig: Some(kubeconfig),
            as_kubectl: false,
            context: None,
            timeout: Duration::from_mins(1),
        };
        let nodes = FollowedNodes::Own;
        let settings = WatchSettings {
            access,
            node: OWN.into(),
            nodes,
            secondary_networks: SecondaryNetworks::default(),
            peers,
            cluster_policies: true,
        };
        let (source, _) = runtime.block_on(watch(settings)).unwrap();
        Self { source, objects: BTreeMap::new() }
    }

    /// Takes in the batches so far.
    fn take(&mut self) {
        while let Ok(batch) = self.source.batches.try_recv() {
            for change in batch.changes {
                let key = ObjectKey::of(&change);
                match change.is_object() {
                    true => drop(self.objects.insert(key, change)),
                    false => drop(self.objects.remove(&key)),
                }
            }
        }
    }

    fn is_in_sync(&self) -> bool {
        self.source.status.borrow().in_sync
    }

    /// Objects, with the pods of other nodes in the form of slices.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "of the many changes, the ones this is about"
    )]
    fn reduced(&mut self) -> BTreeMap<ObjectKey, Change> {
        self.take();
        let mut names = Vocabulary::default();
        for change in self.objects.values() {
            if let Change::Policy(policy) = change {
                names.extend(Vocabulary::of_policy(policy));
            }
        }
        let reduced = |(key, change): (&ObjectKey, &Change)| {
            let change = match change {
                Change::Pod(pod) if &*pod.node != OWN => Change::Pod(names.reduce(pod)?),
                other => other.clone(),
            };
            Some((key.clone(), change))
        };
        self.objects.iter().filter_map(reduced).collect()
    }

    fn pod(&mut self, name: &str) -> Option<&Pod> {
        self.take();
        let key = ObjectKey::of(&Change::PodGone(Key::new(NAMESPACE, name)));
        match self.objects.get(&key) {
            Some(Change::Pod(pod)) => Some(pod),
            _ => None,
        }
    }

    fn problems(&self) -> String {
        let problems = self.source.status.borrow().problems.clone();
        problems.iter().map(|problem| format!("{problem}\n")).collect()
    }
}

/// Writes pods as an API server does, with an address.
fn pod(number: u32, life: u32, labels: &Value) -> (String, Option<String>) {
    let node = ["n1", "n2", "n3"][number as usize % 3];
    let name = format!("p{number}");
    let metadata = json!({
        "name": name, "namespace": NAMESPACE, "labels": labels,
        "uid": format!("{life:08}-0000-4000-8000-{number:012}"),
        "creationTimestamp": "2026-11-01T00:00:00Z",
    });
    let ports = json!([{ "name": "http", "containerPort": 8080 + number % 2 }]);
    let containers = json!([{ "name": "main", "image": "example/main", "ports": ports }]);
    let address = format!("10.{}.0.{}", life % 200, number + 1);
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": { "nodeName": node, "containers": containers, "hostNetwork": number % 11 == 10 },
        "status": { "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }] },
    });
    (format!("/registry/pods/{NAMESPACE}/{name}"), Some(object.to_string()))
}

/// Applies a policy that allows traffic from pods by a label's presence or absence, and to a named port.
fn policy(world: &World, name: &str, label: &str, operator: &str) {
    let selector = json!({ "matchExpressions": [{ "key": label, "operator": operator }] });
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": NAMESPACE, "name": name },
        "spec": {
            "podSelector": {}, "policyTypes": ["Ingress", "Egress"],
            "ingress": [{ "from": [{ "podSelector": selector }] }],
            "egress": [{ "ports": [{ "port": "http" }] }],
        },
    });
    world.server.apply(&policy.to_string()).unwrap();
}

#[track_caller]
fn agree(direct: &mut Agent, sliced: &mut Agent, after: &str) {
    let mut differing = Vec::new();
    let equal = || {
        let (direct, sliced) = (direct.reduced(), sliced.reduced());
        let keys: BTreeSet<_> = direct.keys().chain(sliced.keys()).cloned().collect();
        differing = keys
            .into_iter()
            .filter(|key| direct.get(key) != sliced.get(key))
            .map(|key| format!("{:?}\n{:?}", direct.get(&key), sliced.get(&key)))
            .take(4)
            .collect();
        differing.is_empty()
    };
    let mut equal = equal;
    let deadline = std::time::Instant::now() + PATIENCE;
    while !equal() {
        assert!(std::time::Instant::now() < deadline, "{after}");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(differing, Vec::<String>::new());
}

fn writes(world: &World) -> usize {
    let requests = world.server.requests(USER).unwrap();
    let is_write = |verb: &str| ["create", "update", "delete"].contains(&verb);
    let slices = requests.iter().filter(|it| it.resource == "peerslices" && is_write(&it.verb));
    let has_pods = |uri: &str| !uri.contains("/heartbeat") && !uri.contains("/index");
    slices.filter(|it| it.code < 300 && has_pods(&it.uri)).count()
}

/// Both sources have the same objects after any series of changes; a new leader rewrites no slice.
#[test]
fn slices_give_the_pods_of_a_watch() {
    let Some(mut world) = world("slices_give_the_pods_of_a_watch") else { return };
    let runtime = Runtime::new().unwrap();
    let labels = |choices: &mut Choices| {
        let mut labels = serde_json::Map::new();
        for key in ["app", "tier", "team", "other"] {
            if choices.below(2) == 0 {
                labels.insert(key.into(), json!(format!("v{}", choices.below(3))));
            }
        }
        Value::Object(labels)
    };
    let mut choices = Choices::from_seed(7);
    let first: Vec<_> = (0..130).map(|number| pod(number, 0, &labels(&mut choices))).collect();
    world.server.etcd().write(&first).unwrap();
    policy(&world, "first", "app", "Exists");
    let mut controller = world.start("one", &["--peer-slices", "on"]);
    let mut direct = Agent::start(&runtime, &world, "direct", FollowedPeers::Pods);
    let mut sliced = Agent::start(&runtime, &world, "sliced", FollowedPeers::Slices(TIMES));
    wait("in sync", || direct.is_in_sync() && sliced.is_in_sync());
    agree(&mut direct, &mut sliced, "the start");
    // A pod of a slice has no node.
    wait("from slices", || sliced.pod("p1").is_some_and(|pod| pod.node.is_empty()));
    for step in 0..40_u32 {
        let mut changed = Vec::new();
        for _ in 0..=choices.below(20) {
            let number = choices.below(160);
            let (key, object) = pod(number, step + 1, &labels(&mut choices));
            changed.push((key, object.filter(|_| choices.below(4) != 0)));
        }
        // The last change of an object counts.
        let changed: BTreeMap<String, Option<String>> = changed.into_iter().collect();
        let changed: Vec<_> = changed.into_iter().collect();
        world.server.etcd().write(&changed).unwrap();
        if step % 8 == 3 {
            let key = ["tier", "team", "app", "other", "tier"][step as usize / 8];
            policy(&world, &format!("p{}", step % 3), key, "DoesNotExist");
        }
        if step % 8 == 7 {
            agree(&mut direct, &mut sliced, &format!("step {step}"));
        }
    }
    wait("no problem", || !sliced.problems().contains("peer slices"));
    let before = writes(&world);
    assert!(before > 10, "{before}");
    controller.end(Signal::SIGTERM);
    let _second = world.start("two", &["--peer-slices", "on"]);
    let changed = pod(1, 99, &json!({ "app": "late" }));
    world.server.etcd().write(&[changed]).unwrap();
    agree(&mut direct, &mut sliced, "another leader");
    assert!(writes(&world) <= before + 2, "{} after {before}", writes(&world));
    let gone: Vec<_> = (0..160).map(|number| (pod(number, 0, &json!({})).0, None)).collect();
    world.server.etcd().write(&gone).unwrap();
    agree(&mut direct, &mut sliced, "without pods");
    assert!(sliced.pod("p1").is_none());
    // Every right of the option is used, and none is missing.
    let mut used = BTreeSet::new();
    for user in [USER, AGENT] {
        for request in world.server.requests(user).unwrap() {
            assert!(request.code != 403 && request.code != 401, "refused: {request:?}");
            if request.resource == "peerslices" {
                used.insert((user, request.verb));
            }
        }
    }
    // The API server answers the list of own pods from its cache, without a look at all pods in etcd.
    let lists = world.server.requests(AGENT).unwrap();
    let is_own = |uri: &str| uri.contains("nodeName") && !uri.contains("watch=");
    let own: Vec<_> = lists.iter().filter(|it| is_own(&it.uri)).map(|it| &it.uri).collect();
    let is_cached = |uri: &&&String| uri.contains("resourceVersion=") && !uri.contains("limit=");
    assert!(!own.is_empty() && own.iter().all(|uri| is_cached(&uri)), "{own:?}");
    let granted =
        [(USER, "list"), (USER, "create"), (USER, "update"), (USER, "delete"), (AGENT, "list")];
    for (user, verb) in granted {
        assert!(used.contains(&(user, verb.to_owned())), "{user} {verb} of {used:?}");
    }
}

/// While the controller is silent the known pods stay, then all pods are followed; slices count again after it returns.
#[test]
fn all_pods_are_followed_while_the_controller_is_away() {
    let test = "all_pods_are_followed_while_the_controller_is_away";
    let Some(mut world) = world(test) else { return };
    let runtime = Runtime::new().unwrap();
    let label = |value: &str| json!({ "app": value, "other": "x" });
    let pods: Vec<_> = (0..9).map(|number| pod(number, 0, &label("a"))).collect();
    world.server.etcd().write(&pods).unwrap();
    policy(&world, "first", "app", "Exists");
    let controller = world.start("one", &["--peer-slices", "on"]);
    let mut sliced = Agent::start(&runtime, &world, "sliced", FollowedPeers::Slices(TIMES));
    wait("in sync", || sliced.is_in_sync());
    let from_slices =
        |sliced: &mut Agent| sliced.pod("p1").is_some_and(|pod| pod.labels.len() == 1);
    wait("from slices", || from_slices(&mut sliced));
    controller.signal(Signal::SIGSTOP);
    wait("reported", || sliced.problems().contains("the controller does not renew them"));
    world.server.etcd().write(&[pod(1, 1, &label("b"))]).unwrap();
    let value = |sliced: &mut Agent| sliced.pod("p1").map(|pod| pod.labels.get("app").cloned());
    wait("followed", || value(&mut sliced) == Some(Some("b".into())));
    assert_eq!(sliced.pod("p1").unwrap().labels.len(), 2, "the pod itself");
    // A policy with another label holds at once.
    policy(&world, "second", "team", "DoesNotExist");
    let second = |sliced: &mut Agent| {
        sliced.take();
        let key = Key::new(NAMESPACE, "second");
        sliced.objects.contains_key(&ObjectKey::of(&Change::PolicyGone(key)))
    };
    wait("the policy", || second(&mut sliced));
    controller.signal(Signal::SIGCONT);
    // Slices must be newer than the list of all pods; without a change, only a bookmark proves this, after a minute.
    world.server.etcd().write(&[pod(2, 1, &label("b"))]).unwrap();
    // From slices the pod has the labels that policies name.
    wait("slices", || from_slices(&mut sliced));
    assert_eq!(value(&mut sliced), Some(Some("b".into())));
    wait("no problem", || !sliced.problems().contains("peer slices"));
    world.server.etcd().write(&[pod(1, 2, &label("c"))]).unwrap();
    wait("by slices", || value(&mut sliced) == Some(Some("c".into())));
    assert!(second(&mut sliced));
}

/// A slice that no controller wrote is not used, and is named.
#[test]
fn a_forged_slice_is_not_used() {
    let Some(mut world) = world("a_forged_slice_is_not_used") else { return };
    let runtime = Runtime::new().unwrap();
    let pods: Vec<_> = (0..9).map(|number| pod(number, 0, &json!({ "app": "a" }))).collect();
    world.server.etcd().write(&pods).unwrap();
    policy(&world, "first", "app", "Exists");
    let controller = world.start("one", &["--peer-slices", "on"]);
    let mut sliced = Agent::start(&runtime, &world, "sliced", FollowedPeers::Slices(TIMES));
    wait("in sync", || sliced.is_in_sync());
    let denied =
        world.server.kubectl(&["auth", "can-i", "create", "peerslices.netpold.io", "--as", AGENT]);
    assert!(denied.is_err(), "agents only read them");
    controller.signal(Signal::SIGSTOP);
    let slice = json!({
        "apiVersion": "netpold.io/v1alpha1", "kind": "PeerSlice",
        "metadata": { "name": "peers-0" }, "spec": { "pods": "AAAA" },
    });
    world.server.apply(&slice.to_string()).unwrap();
    wait("named", || sliced.problems().contains("PeerSlice peers-0: "));
    assert!(sliced.pod("p1").is_some(), "its last state stays");
    controller.signal(Signal::SIGCONT);
    world.server.etcd().write(&[pod(1, 1, &json!({ "app": "b" }))]).unwrap();
    let is_new = |sliced: &mut Agent| {
        sliced.pod("p1").is_some_and(|pod| pod.labels.get("app").is_some_and(|app| app == "b"))
    };
    wait("written again", || is_new(&mut sliced));
    wait("no problem", || !sliced.problems().contains("PeerSlice"));
}
