//! Policies learned from recorded flows.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netpold_api::learn::{LearnAnswer, LearnedPeer};
use netpold_api::source::SourceProblem;
use netpold_api::workload::Workload;
use netpold_cli::learn::{LearnOptions, Learned, UnseenPeer, generate, json, yaml};
use netpold_core::cluster::{Cluster, is_subject};
use netpold_core::explain::{Explainer, PodFlow};
use netpold_core::model::{Change, Direction, Enforcement, Key, Node, Pod, Policy, PolicyVersion};
use netpold_core::probe::IpProtocol;
use netpold_engine::learn::{FlowSighting, Recorder};
use netpold_kube::manifests;
use netpold_testkit::generate::{Choices, OpeningPacket, PacketSource};
use netpold_testkit::objects;
use netpold_testkit::oracle::Oracle;

/// Number of generated clusters.
const CLUSTERS: u64 = 250;
/// Tried packets per cluster, of which the allowed ones are recorded.
const FLOWS: usize = 60;
/// Packets per cluster judged afterwards.
const ASKED: usize = 150;

fn met(at: u64) -> FlowSighting {
    FlowSighting { endpoint: 1, at, is_new: true, on_trial: false }
}

fn flow<'p>(pod: &'p Pod, packet: &OpeningPacket) -> PodFlow<'p> {
    let protocol = IpProtocol(packet.protocol);
    let port = if protocol.has_ports() { packet.port } else { 0 };
    PodFlow { pod, direction: packet.direction, remote: packet.remote, protocol, port }
}

/// Cluster with its observed flows.
struct World {
    objects: Vec<Change>,
    cluster: Cluster,
    source: PacketSource,
    pods: Vec<Key>,
    /// Packets that policy allowed.
    passed: Vec<OpeningPacket>,
    answer: LearnAnswer,
}

impl World {
    fn new(choices: &mut Choices<'_>) -> Self {
        let state = netpold_testkit::generate::GeneratedCluster::generate(choices);
        let source = PacketSource::new(&state);
        let objects: Vec<_> = state.objects.into_iter().filter(Change::is_object).collect();
        let cluster: Cluster = objects.iter().cloned().collect();
        let oracle: Oracle = objects.iter().cloned().collect();
        let subjects = cluster.pods().values().filter(|pod| is_subject(pod));
        let pods: Vec<Key> =
            subjects.filter(|pod| !pod.addresses.is_empty()).map(|pod| pod.key.clone()).collect();
        let (mut recorder, mut passed) = (Recorder::new(0), Vec::new());
        for at in 0..if pods.is_empty() { 0 } else { FLOWS } {
            let packet = source.packet(choices, &pods);
            let pod = cluster.pods().get(&packet.pod).unwrap();
            let PodFlow { direction, remote, protocol, port, .. } = flow(pod, &packet);
            if oracle.judge(pod, direction, remote, protocol.0, port) {
                let endpoint = pods.iter().position(|key| *key == pod.key).unwrap() as u32;
                let met = FlowSighting { endpoint, ..met(at as u64 * 1000) };
                recorder.record_flow(&cluster, flow(pod, &packet), |_| None, met, &mut 0);
                passed.push(packet);
            }
        }
        let answer = recorder.answer("n", 0);
        Self { objects, cluster, source, pods, passed, answer }
    }

    /// Returns the oracle with the learned policies in force, instead of the namespace's others.
    fn enforced(&self, learned: &Learned, namespace: &str) -> Oracle {
        let others = self.objects.iter().filter(
            |change| !matches!(change, Change::Policy(policy) if policy.key.namespace == namespace),
        );
        let policies = learned.policies.iter().map(|learned| {
            let enforcement = Enforcement::Enforce;
            Change::Policy(Policy { enforcement, ..learned.policy.clone() })
        });
        others.cloned().chain(policies).collect()
    }

    /// Returns whether a flow between a workload and an address was observed, or is stated as allowed in addition.
    fn stated(&self, learned: &Learned, flow: PodFlow<'_>) -> bool {
        let PodFlow { pod, direction, remote, protocol, port } = flow;
        let workload = Workload::of_pod(pod).unwrap();
        let workload_at = |address| {
            let owner = self.cluster.owner(address).filter(|pod| is_subject(pod));
            owner.and_then(|pod| Workload::of_pod(pod))
        };
        let owner = workload_at(remote);
        let seen = self.answer.flows.iter().any(|seen| {
            let behind = |key: &Key| {
                let behind = Explainer::new(&self.cluster).backends_of(key, protocol, seen.port);
                // A policy does not distinguish a Service's backend from other pods of its workload.
                let is_same = |at| at == remote || owner.is_some() && workload_at(at) == owner;
                behind.is_some_and(|all| all.iter().any(|(at, to)| *to == port && is_same(*at)))
            };
            (&seen.workload, seen.direction, seen.protocol) == (&workload, direction, protocol)
                && match &seen.peer {
                    LearnedPeer::Workload(peer) => {
                        seen.port == port && Some(peer) == owner.as_ref()
                    }
                    LearnedPeer::Address(address) => seen.port == port && *address == remote,
                    LearnedPeer::Service(key) => behind(key),
                    LearnedPeer::Node => false,
                }
        });
        seen || learned.unseen.iter().any(|unseen| {
            (&unseen.workload, unseen.direction) == (&workload, direction)
                && unseen.ports.contains(protocol, port)
                && match &unseen.peer {
                    UnseenPeer::Workload(peer) => Some(peer) == owner.as_ref(),
                    UnseenPeer::Block(block) => block.contains(&remote),
                }
        })
    }

    /// Returns whether the flow is to a Service's port at another node: it passes if every backend is allowed, and is
    /// not a pair of its own.
    fn is_node_port(&self, flow: PodFlow<'_>) -> bool {
        let is_node = |node: &Node| node.addresses.contains(&flow.remote);
        let services = self.cluster.services().values();
        let mut ports = services.flat_map(|service| &service.ports);
        flow.direction == Direction::Egress
            && self.cluster.nodes().values().any(is_node)
            && ports.any(|port| {
                (port.node_port, port.protocol.number()) == (Some(flow.port), flow.protocol.0)
            })
    }

    /// Checks that an allowed packet was observed or is stated. Returns whether a policy selects the pod.
    fn no_wider(
        &self,
        learned: &Learned,
        oracle: &Oracle,
        packet: &OpeningPacket,
    ) -> Result<bool, String> {
        let pod = self.cluster.pods().get(&packet.pod).unwrap();
        let flow = flow(pod, packet);
        let PodFlow { direction, remote, protocol, port, .. } = flow;
        let workload = Workload::of_pod(pod).unwrap();
        let selected = learned.policies.iter().any(|policy| policy.workload.selects(&workload));
        let always = |remote| {
            let to_node = direction == Direction::Egress && self.cluster.is_node_of(pod, remote);
            pod.addresses.contains(&remote) || to_node
        };
        if !selected
            || always(remote)
            || self.is_node_port(flow)
            || !oracle.judge(pod, direction, remote, protocol.0, port)
            || self.stated(learned, flow)
        {
            return Ok(selected);
        }
        let explainer = Explainer::new(&self.cluster);
        let services = match direction {
            Direction::Egress => explainer.services_at(remote, protocol, port),
            Direction::Ingress => Vec::new(),
        };
        let behind = services.iter().filter_map(|key| explainer.backends_of(key, protocol, port));
        let mut behind = behind.flatten();
        let stated = |(remote, port)| {
            always(remote) || self.stated(learned, PodFlow { remote, port, ..flow })
        };
        match behind.any(stated) {
            true => Ok(true),
            false => Err(format!("{packet:?} is allowed and was never seen")),
        }
    }

    fn check(
        &self,
        choices: &mut Choices<'_>,
        options: &LearnOptions,
    ) -> Result<[usize; 2], String> {
        let namespace = &options.namespace;
        let learned = generate(self.objects.clone(), &self.answer, options);
        let oracle = self.enforced(&learned, namespace);
        let mut checked = [0; 2];
        for packet in self.passed.iter().filter(|packet| packet.pod.namespace == *namespace) {
            let pod = self.cluster.pods().get(&packet.pod).unwrap();
            let PodFlow { direction, remote, protocol, port, .. } = flow(pod, packet);
            // Packets to a pod's own address on a secondary network never leave the pod, so they are not recorded.
            if pod.secondary_addresses().any(|own| own == remote) {
                continue;
            }
            let allowed = oracle.judge(pod, direction, remote, protocol.0, port);
            let workload = Workload::of_pod(pod).unwrap();
            let named = learned.denied.iter().any(|denied| {
                let of = &denied.flow;
                (&of.workload, of.direction, of.protocol, of.port)
                    == (&workload, direction, protocol, port)
            });
            // Pods without labels have no policy; tiers decide on them.
            let selected = learned.policies.iter().any(|it| it.workload.selects(&workload));
            if selected && !allowed && !named {
                let denied: Vec<_> = learned.denied.iter().map(ToString::to_string).collect();
                let owners = [oracle.pod_at(remote), self.cluster.owner(remote).map(|pod| &**pod)];
                let owners = owners.map(|owner| owner.map(|pod| pod.key.to_string()));
                return Err(format!(
                    "{packet:?} of {workload} (to the oracle and the cluster, of {owners:?}) is denied, \
                     and not among {denied:#?}"
                ));
            }
            checked[0] += usize::from(allowed);
        }
        for denied in &learned.denied {
            if denied.reason.starts_with("no rule") {
                return Err(format!("{denied}"));
            }
        }
        self.reads_back(&learned)?;
        // Tiers allow traffic that no policy of a namespace allows.
        let has_tiers = self.objects.iter().any(|o| matches!(o, Change::ClusterPolicy(_)));
        let of_namespace: Vec<Key> =
            self.pods.iter().filter(|pod| pod.namespace == *namespace).cloned().collect();
        if !has_tiers && !of_namespace.is_empty() {
            for _ in 0..ASKED {
                let packet = self.source.packet(choices, &of_namespace);
                checked[1] += usize::from(self.no_wider(&learned, &oracle, &packet)?);
            }
        }
        Ok(checked)
    }

    /// Checks that both written forms parse to the judged policies.
    fn reads_back(&self, learned: &Learned) -> Result<(), String> {
        for text in [yaml(learned, &self.answer), json(learned)["policies"].to_string()] {
            let read = manifests::read_text("learned.yaml", text.as_bytes());
            let (objects, problems) = read.map_err(|error| format!("{error}\n{text}"))?;
            let read: BTreeMap<Key, Policy> = objects
                .into_iter()
                .filter_map(|o| if let Change::Policy(policy) = o { Some(policy) } else { None })
                .map(|policy| {
                    (policy.key.clone(), Policy { version: PolicyVersion::default(), ..policy })
                })
                .collect();
            let meant: BTreeMap<Key, Policy> = learned
                .policies
                .iter()
                .map(|learned| (learned.policy.key.clone(), learned.policy.clone()))
                .collect();
            if read != meant || !problems.is_empty() {
                return Err(format!("{text}\nis read as {read:#?}\n{problems:?}, not {meant:#?}"));
            }
        }
        Ok(())
    }
}

#[test]
fn learned_policies_allow_what_was_seen_and_what_they_say_beside_it() {
    let (mut checked, mut errors) = ([0; 2], Vec::new());
    for seed in 0..CLUSTERS {
        let mut choices = Choices::from_seed(seed);
        let world = World::new(&mut choices);
        let namespaces: BTreeSet<_> = world.pods.iter().map(|pod| pod.namespace.clone()).collect();
        for namespace in namespaces {
            let block_prefix = *choices.pick(&[[32, 128], [24, 64], [0, 0]]);
            let options =
                LearnOptions { namespace, block_prefix, other_protocols: choices.chance(50) };
            match world.check(&mut choices, &options) {
                Ok(done) => checked = [checked[0] + done[0], checked[1] + done[1]],
                Err(error) => errors.push(format!("seed {seed}, {options:?}: {error}")),
            }
        }
    }
    let first: Vec<_> = errors.iter().take(10).collect();
    assert!(errors.is_empty(), "{} of {CLUSTERS} clusters: {first:#?}", errors.len());
    println!("{} flows that were seen, {} packets asked", checked[0], checked[1]);
    assert!(checked[0] > 3_000 && checked[1] > 10_000, "{checked:?}");
}

fn pod(number: u8) -> Pod {
    let app = format!("app{number}");
    objects::pod("shop", &app, &[("app", &app)], &[&format!("10.0.0.{number}")])
}

/// Records a flow from an address, in a cluster of these pods, to the server of a workload.
fn record(recorder: &mut Recorder, pods: &[&Pod], remote: IpAddr, server: &Pod) {
    let cluster: Cluster = pods.iter().map(|pod| Change::Pod((*pod).clone())).collect();
    let protocol = IpProtocol::TCP;
    let flow = PodFlow { pod: server, direction: Direction::Ingress, remote, protocol, port: 80 };
    recorder.begin(true, 0);
    recorder.record_flow(&cluster, flow, |_| None, met(1000), &mut 0);
}

/// While the agent does not have a pod's object, its records have the pod's address as the peer.
#[test]
fn no_block_is_written_for_what_is_a_pods_address() {
    let options =
        LearnOptions { namespace: "shop".into(), block_prefix: [32, 128], other_protocols: false };
    let (mut recorder, server) = (Recorder::new(0), pod(1));
    let remotes = ["10.9.0.7", "10.8.0.7", "203.0.113.7"].map(|it| it.parse::<IpAddr>().unwrap());
    for remote in remotes {
        record(&mut recorder, &[], remote, &server);
    }
    let range = vec!["10.9.0.0/16".parse().unwrap()];
    let node = Node { pod_ranges: range, ..objects::node("n", &[]) };
    let late = Pod { addresses: vec![remotes[1]], ..pod(9) };
    let objects = vec![Change::Pod(server), Change::Pod(late), Change::Node(node)];
    let learned = generate(objects, &recorder.answer("n", 0), &options);
    let text = yaml(&learned, &LearnAnswer::default());
    assert!(text.contains("203.0.113.7/32") && !text.contains("cidr: \"10."), "{text}");
    let denied: Vec<String> = learned.denied.iter().map(ToString::to_string).collect();
    assert_eq!(denied.len(), 2, "{denied:?}");
    assert!(denied.iter().all(|it| it.contains("is a pod's address")), "{denied:?}");
}

#[test]
fn names_in_comments_stay_in_their_line() {
    let mut web = pod(1);
    web.labels.insert("app".to_owned(), "web\n---\nkind: \u{1b}[2J".to_owned());
    let mut recorder = Recorder::new(0);
    let server = pod(2);
    record(&mut recorder, &[&web, &server], web.addresses[0], &server);
    let options =
        LearnOptions { namespace: "shop".into(), block_prefix: [32, 128], other_protocols: false };
    let answer = recorder.answer("n", 0);
    let learned = generate(vec![Change::Pod(web), Change::Pod(server)], &answer, &options);
    let text = yaml(&learned, &answer);
    assert!(!text.contains('\u{1b}') && !text.contains("\nkind: \\"), "{text}");
    let (objects, problems) = manifests::read_text("x", text.as_bytes()).unwrap();
    // The API server refuses such a label, as the parser does.
    let about_label = |problem: &SourceProblem| problem.text.contains("matchLabels");
    assert!(objects.len() == 1 && problems.iter().all(about_label), "{problems:?} {text}");
}
