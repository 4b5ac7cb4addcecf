//! Traffic of a pod before its veth is matched to a pod object.

use std::time::{Duration, Instant};

use netpold_ebpf::layout::endpoint_slot;
use netpold_testbed::cluster::{ENFORCED, NAMESPACE, TestCluster, all_pass, eventually, none_pass};
use netpold_testbed::{Cni, Netns, PodSpec, require_root};
use nix::sys::signal::Signal;

use crate::traffic::load::guarded;

fn denying() -> TestCluster {
    let mut cluster = guarded(Cni::Ptp);
    cluster.arguments = ["--new-pods", "deny"].map(str::to_owned).to_vec();
    cluster
}

#[test]
fn a_pod_that_nobody_knows_reaches_its_node_alone() {
    require_root!();
    let mut cluster = denying();
    cluster.enforce();
    cluster.add(0, "late");
    let name = cluster.pod("late").host_interface().to_owned();
    let waits = |status: &serde_json::Value| status["waiting"].to_string().contains(&name);
    cluster.agents[0].wait_for("aware of the new interface", ENFORCED, waits).unwrap();
    let (late, stranger) = (cluster.pod("late"), cluster.pod("stranger"));
    none_pass(late, stranger, stranger.addresses());
    none_pass(stranger, late, late.addresses());
    all_pass(&cluster.nodes[0], late, late.addresses());
    all_pass(late, &cluster.nodes[0], &cluster.nodes[0].addresses());
    // A restarted agent passes nothing of the pod either.
    cluster.agents[0].restart(&cluster.nodes[0]).unwrap();
    cluster.agents[0].wait_for("aware of the interface", ENFORCED, waits).unwrap();
    let (late, stranger) = (cluster.pod("late"), cluster.pod("stranger"));
    none_pass(late, stranger, stranger.addresses());
    // It also drops all packets of a pod that was added while no agent ran.
    cluster.agents[0].end(Signal::SIGKILL);
    cluster.add(0, "later");
    cluster.agents[0].restart(&cluster.nodes[0]).unwrap();
    let name = cluster.pod("later").host_interface().to_owned();
    let waits = |status: &serde_json::Value| status["waiting"].to_string().contains(&name);
    cluster.agents[0].wait_for("aware of both interfaces", ENFORCED, waits).unwrap();
    let (later, stranger) = (cluster.pod("later"), cluster.pod("stranger"));
    none_pass(later, stranger, stranger.addresses());
    none_pass(stranger, later, later.addresses());
    // The pods are known now, and under no policy.
    cluster.enforce();
    cluster.reaches("later", "stranger");
    cluster.reaches("late", "stranger");
    cluster.reaches("stranger", "late");
}

/// An interface that is older than the agent may belong to no pod.
#[test]
fn what_was_there_before_the_agent_is_left_alone() {
    require_root!();
    let mut cluster = denying();
    let foreign = cluster.take("stranger");
    cluster.enforce();
    let friend = cluster.pod("friend");
    all_pass(&foreign, &cluster.nodes[0], &cluster.nodes[0].addresses());
    none_pass(&foreign, friend, friend.addresses());
    cluster.without_policy("f").without_policy("to").enforce();
    let friend = cluster.pod("friend");
    all_pass(&foreign, friend, friend.addresses());
    // The same holds for the next agent.
    cluster.agents[0].restart(&cluster.nodes[0]).unwrap();
    cluster.enforce();
    let friend = cluster.pod("friend");
    all_pass(&foreign, friend, friend.addresses());
}

/// Uses a directory of CNI results without a writer: once a pod has appeared without a result, veths without a pod do
/// not wait for results.
#[test]
fn veths_of_nobody_do_not_wait_for_results_where_pods_come_without() {
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    let results = cluster.directory.path().join("results");
    std::fs::create_dir(&results).unwrap();
    cluster.arguments = vec!["--cni-results".to_owned(), results.to_str().unwrap().to_owned()];
    cluster.enforce();
    std::thread::sleep(Duration::from_secs(11));
    let foreign = cluster.nodes[0].add_pod(&PodSpec::new(NAMESPACE, "foreign")).unwrap();
    let began = Instant::now();
    all_pass(&foreign, &cluster.nodes[0], &cluster.nodes[0].addresses());
    println!("open after {:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(7), "{:?}", began.elapsed());
    let log = cluster.agents[0].log();
    assert!(log.contains("pods start without CNI results"), "{log}");
}

/// Moves the other side of a veth to another namespace and back before the veth has a pod.
#[test]
fn a_closed_veth_whose_other_side_comes_home_is_opened() {
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    cluster.arguments = ["--readback", "1"].map(str::to_owned).into();
    // New veths stay closed for ten seconds.
    let results = cluster.directory.path().join("results");
    std::fs::create_dir(&results).unwrap();
    cluster.arguments.extend(["--cni-results".to_owned(), results.to_str().unwrap().to_owned()]);
    cluster.enforce();
    let links = cluster.agents[0].bpffs().join("links");
    let (node, inside) = (cluster.nodes[0].netns(), Netns::create("away").unwrap());
    let own = format!("/proc/{}/ns/net", cluster.agents[0].pid());
    node.ip("link add name home0 index 6000 type veth peer name inner0\n").unwrap();
    let pins = ["6000-egress", "6000-ingress"].map(|name| links.join(name));
    let all = |there: bool| pins.iter().all(|pin| pin.exists() == there);
    for round in 0..3 {
        node.ip(&format!("link set inner0 netns {}\n", inside.path().display())).unwrap();
        eventually(ENFORCED, || all(true), || format!("not closed in round {round}"));
        inside.ip(&format!("link set inner0 netns {own}\n")).unwrap();
        let failure = || format!("closed in round {round}:\n{}", cluster.agents[0].log());
        eventually(ENFORCED, || all(false), failure);
    }
}

/// Adds more interfaces to one index of the endpoint table than its four slots hold.
#[test]
fn an_interface_without_slot_is_closed() {
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    let sharing = (10_000..).filter(|ifindex| endpoint_slot(*ifindex, 0) == 5000);
    for (n, ifindex) in sharing.take(5).enumerate() {
        cluster.add_as(0, PodSpec::new(NAMESPACE, &format!("p{n}")).ifindex(ifindex));
    }
    cluster.write();
    cluster.start();
    let closed = |status: &serde_json::Value| {
        status["problems"].to_string().contains("closed, since no endpoint slot is free")
    };
    let status = cluster.agents[0].wait_for("short of a slot", ENFORCED, closed).unwrap();
    let stranger = cluster.pod("stranger");
    let (closed, judged): (Vec<_>, Vec<_>) = (0..5)
        .map(|n| cluster.pod(&format!("p{n}")))
        .partition(|pod| status["problems"].to_string().contains(pod.pod_name()));
    assert_eq!((closed.len(), judged.len()), (1, 4));
    none_pass(closed[0], stranger, stranger.addresses());
    none_pass(stranger, closed[0], closed[0].addresses());
    for pod in judged {
        all_pass(pod, stranger, stranger.addresses());
    }
}

/// Measures the time from a veth's creation to both its programs, by the pins.
#[test]
fn from_creation_to_attachment() {
    require_root!();
    const ROUNDS: u32 = 20;
    let mut cluster = denying();
    cluster.enforce();
    let links = cluster.agents[0].bpffs().join("links");
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let inside = Netns::create(&format!("first{round}")).unwrap();
        let index = 5000 + round;
        let create = format!(
            "link add name first{round} index {index} type veth peer name eth0 netns {}\n",
            inside.path().display()
        );
        let pin = links.join(format!("{index}-egress"));
        let netns = cluster.nodes[0].netns();
        let began = std::thread::scope(|scope| {
            let creating = scope.spawn(|| {
                let created =
                    || netns.run(|| nix::net::if_::if_nametoindex(&*format!("first{round}")).ok());
                let ip = scope.spawn(|| netns.ip(&create).unwrap());
                while created().unwrap().is_none() {}
                let began = Instant::now();
                ip.join().unwrap();
                began
            });
            let deadline = Instant::now() + ENFORCED;
            while !pin.exists() {
                assert!(Instant::now() < deadline, "nothing is attached");
                std::thread::sleep(Duration::from_micros(50));
            }
            let attached = Instant::now();
            attached.saturating_duration_since(creating.join().unwrap())
        });
        times.push(began);
    }
    times.sort();
    println!(
        "from a veth to its programs: min {:?}, median {:?}, max {:?} of {ROUNDS}",
        times[0],
        times[times.len() / 2],
        times[times.len() - 1]
    );
}
