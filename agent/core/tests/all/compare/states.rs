//! Named states of a cluster, reached along different paths, must lead to the same image.

use netpold_core::compile::TableImage;
use netpold_core::model::{
    Change, Namespace, Peer, Pod, PortMatch, PortRule, Protocol, Rule, Selector,
};
use netpold_testkit::generate::{Choices, GeneratedCluster, NODE};
use netpold_testkit::objects::{self, block, labels, named, select};
use netpold_testkit::world::World;

fn namespace(name: &str, pairs: &[(&str, &str)]) -> Change {
    Change::Namespace(Namespace { name: name.to_owned(), labels: labels(pairs), denial: None })
}

fn node(name: &str, addresses: &[&str]) -> Change {
    Change::Node(objects::node(name, addresses))
}

fn plain_pod(name: &str, addresses: &[&str], app: &str) -> Pod {
    Pod {
        uid: name.to_owned(),
        node: NODE.into(),
        ports: vec![named("web", Protocol::Tcp, 80)],
        ..objects::pod("x", name, &[("app", app)], addresses)
    }
}

fn pod(name: &str, addresses: &[&str], app: &str) -> Change {
    Change::Pod(plain_pod(name, addresses, app))
}

fn interface(index: u32, addresses: &[&str]) -> Change {
    Change::Interface(objects::interface(index, addresses))
}

fn app(value: &str) -> Selector {
    select(&[("app", value)])
}

fn pods(value: &str) -> Peer {
    objects::pods(None, app(value))
}

fn port(port: PortMatch) -> PortRule {
    PortRule { protocol: Protocol::Tcp, port }
}

fn rule(peers: &[Peer], ports: &[PortRule]) -> Rule {
    Rule {
        peers: (!peers.is_empty()).then(|| peers.to_vec()),
        ports: (!ports.is_empty()).then(|| ports.to_vec()),
    }
}

fn policy(name: &str, selects: Selector, ingress: &[Rule], egress: Option<&[Rule]>) -> Change {
    let egress = egress.map(<[Rule]>::to_vec);
    Change::Policy(objects::policy("x", name, selects, Some(ingress.to_vec()), egress))
}

/// Two local pods and a remote one, with addresses of both families.
fn three_pods() -> Vec<Change> {
    let elsewhere = Pod { node: "n2".into(), ..plain_pod("c", &["10.0.1.1"], "c") };
    vec![
        namespace("x", &[("team", "a")]),
        node(NODE, &["192.168.0.1", "fd01::1"]),
        node("n2", &["192.168.0.2"]),
        pod("a", &["10.0.0.1", "fd00::1"], "a"),
        pod("b", &["10.0.0.2", "fd00::2"], "b"),
        Change::Pod(elsewhere),
        interface(11, &["10.0.0.1", "fd00::1"]),
        interface(12, &["10.0.0.2", "fd00::2"]),
    ]
}

fn with(more: impl IntoIterator<Item = Change>) -> Vec<Change> {
    three_pods().into_iter().chain(more).collect()
}

/// States by name.
fn states() -> Vec<(String, Vec<Change>)> {
    let all = Selector::default;
    let web = || port(PortMatch::Named("web".to_owned()));
    let named: Vec<(&str, Vec<Change>)> = vec![
        ("no policy", three_pods()),
        ("default deny", with([policy("deny", all(), &[], Some(&[]))])),
        ("allow all", with([policy("all", all(), &[rule(&[], &[])], None)])),
        (
            "two policies on one pod",
            with([
                policy("one", all(), &[rule(&[pods("b")], &[])], None),
                policy(
                    "two",
                    app("a"),
                    &[rule(&[pods("c")], &[port(PortMatch::Range(80, 90))])],
                    None,
                ),
            ]),
        ),
        (
            "equal rules of two policies",
            with([
                policy("one", app("a"), &[rule(&[pods("c")], &[web()])], Some(&[])),
                policy("two", app("b"), &[rule(&[pods("c")], &[web()])], Some(&[])),
            ]),
        ),
        (
            "named port in egress",
            with([policy(
                "out",
                all(),
                &[],
                Some(&[rule(&[], &[web()]), rule(&[pods("b")], &[])]),
            )]),
        ),
        (
            "blocks around pods and nodes",
            with([policy(
                "blocks",
                all(),
                &[
                    rule(&[block("10.0.0.0/8", &["10.0.0.0/24", "10.0.1.1/32"])], &[]),
                    rule(&[block("10.0.0.2/32", &[]), block("::/0", &["fd00::/64"])], &[]),
                ],
                Some(&[rule(&[block("0.0.0.0/0", &["192.168.0.0/24"])], &[])]),
            )]),
        ),
        (
            "one address, two pods",
            with([
                Change::Pod(Pod { terminating: true, ..plain_pod("old", &["10.0.0.1"], "c") }),
                policy("from-c", all(), &[rule(&[pods("c")], &[])], None),
            ]),
        ),
        (
            "hostNetwork and finished pods",
            with([
                Change::Pod(Pod { host_network: true, ..plain_pod("host", &["192.168.0.9"], "c") }),
                Change::Pod(Pod { finished: true, ..plain_pod("done", &["10.0.0.2"], "c") }),
                policy("to-c", all(), &[], Some(&[rule(&[pods("c")], &[])])),
            ]),
        ),
        ("interface without a pod", with([interface(13, &["10.0.0.9"])])),
        (
            "pod without an interface",
            with([
                pod("d", &["10.0.0.4"], "a"),
                policy("from-a", all(), &[rule(&[pods("a")], &[])], None),
            ]),
        ),
    ];
    let generated =
        (0..300).map(|seed| (format!("seed {seed}"), GeneratedCluster::from_seed(seed).objects));
    let named = named.into_iter().map(|(name, state)| (name.to_owned(), state));
    named.chain(generated).collect()
}

/// Paths to a state: batches of changes with an update after each.
fn expanded(state: &[Change]) -> Vec<(&'static str, Vec<Vec<Change>>)> {
    let one_by_one = |changes: &[Change]| changes.iter().map(|c| vec![c.clone()]).collect();
    let mut reversed = state.to_vec();
    reversed.reverse();
    let mut twice = state.to_vec();
    twice.extend(reversed.clone());
    let away = state.iter().step_by(2).map(Change::removal).collect();
    let back = state.iter().step_by(2).cloned().collect();
    let there_and_back = state.iter().flat_map(|c| [c.removal(), c.clone()]).collect();
    let other = GeneratedCluster::from_seed(4711);
    let detour = other.changes_to(&GeneratedCluster { objects: state.to_vec() });
    vec![
        ("reversed", vec![reversed.clone()]),
        ("one by one", one_by_one(state)),
        ("one by one, reversed", one_by_one(&reversed)),
        ("everything twice", vec![twice.clone(), twice]),
        ("updates without changes", vec![vec![], state.to_vec(), vec![], vec![]]),
        ("half of it removed and added again", vec![state.to_vec(), away, back]),
        ("everything replaced in one update", vec![state.to_vec(), there_and_back]),
        ("from another cluster, squashed", vec![other.objects.clone(), detour.clone()]),
        ("from another cluster, one by one", {
            let mut batches = vec![other.objects];
            batches.extend(detour.into_iter().map(|change| vec![change]));
            batches
        }),
    ]
}

/// Image at the end of a path, with all operations applied on the way.
fn image(batches: &[Vec<Change>]) -> TableImage {
    let World { mut compiler, mut tables } = World::on(NODE, []);
    for (number, batch) in batches.iter().enumerate() {
        batch.iter().for_each(|change| compiler.ingest(change.clone()));
        tables.fill(&compiler.update().expect("the tables are large enough"));
        // The grace period sometimes outlasts the next update.
        if number % 3 != 0 {
            compiler.grace_passed();
        }
    }
    compiler.image()
}

#[test]
fn the_image_depends_on_the_state_not_on_the_path() {
    for (name, state) in states() {
        let direct = image(std::slice::from_ref(&state));
        for (path, batches) in expanded(&state) {
            assert!(image(&batches) == direct, "{name}, {path}: the image differs");
        }
    }
}

#[test]
fn an_update_without_changes_writes_nothing() {
    for (name, state) in states() {
        let mut world = World::on(NODE, state.clone());
        assert_eq!(world.apply(state), 0, "{name}");
    }
}

#[test]
fn mutated_clusters_have_the_image_of_fresh_ones() {
    for seed in 0..300 {
        let mut choices = Choices::from_seed(seed);
        let before = GeneratedCluster::generate(&mut choices);
        let after = before.mutate(&mut choices);
        let path = [before.objects.clone(), before.changes_to(&after)];
        assert!(image(&path) == image(&[after.objects]), "seed {seed}");
    }
}
