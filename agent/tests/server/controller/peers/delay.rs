//! Delay of changes by slices, and writes of slices, for the page about large clusters.

use std::time::Instant;

use super::*;

const PODS: u32 = 1_000;
/// Pods of a workload.
const WORKLOAD: u32 = 50;
const CHANGES: u32 = 150;

fn pod_of_workload(number: u32, life: u32) -> (String, Option<String>) {
    pod(number, life, &json!({ "app": format!("web-{}", number / WORKLOAD) }))
}

/// Returns the median and the 99th percentile.
fn percentiles(mut times: Vec<Duration>) -> [Duration; 2] {
    times.sort_unstable();
    [times[times.len() / 2], times[times.len() * 99 / 100]]
}

/// Returns the times until both sources have a pod's new address.
fn change(world: &mut World, agents: &mut [Agent; 2], number: u32, life: u32) -> [Duration; 2] {
    let address = format!("10.{life}.{}.{}", number / 250, number % 250 + 1);
    let (key, object) = pod_of_workload(number, life);
    let old = format!("10.{}.0.{}", life % 200, number + 1);
    let object = object.map(|object| object.replace(&old, &address));
    let begin = Instant::now();
    world.server.etcd().write(&[(key, object)]).unwrap();
    let (name, address) = (format!("p{number}"), address.parse().unwrap());
    let mut times = [None, None];
    while times.contains(&None) {
        assert!(begin.elapsed() < PATIENCE, "{times:?}");
        for (time, agent) in times.iter_mut().zip(&mut *agents) {
            let is_there = agent.pod(&name).is_some_and(|pod| pod.addresses.contains(&address));
            if time.is_none() && is_there {
                *time = Some(begin.elapsed());
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    times.map(Option::unwrap)
}

#[test]
#[ignore = "a measurement, not a test"]
fn changes_by_slices_and_by_a_watch_of_all_pods() {
    let Some(mut world) = world("changes_by_slices_and_by_a_watch_of_all_pods") else { return };
    let runtime = Runtime::new().unwrap();
    let all: Vec<_> = (0..PODS).map(|number| pod_of_workload(number, 0)).collect();
    all.chunks(100).for_each(|part| world.server.etcd().write(part).unwrap());
    policy(&world, "first", "app", "Exists");
    let _controller = world.start("one", &["--peer-slices", "on"]);
    let direct = Agent::start(&runtime, &world, "direct", FollowedPeers::Pods);
    let times = PeerTimes::default();
    let sliced = Agent::start(&runtime, &world, "sliced", FollowedPeers::Slices(times));
    let mut agents = [direct, sliced];
    wait("in sync", || agents.iter().all(Agent::is_in_sync));
    wait("from slices", || agents[1].pod("p1").is_some_and(|pod| pod.node.is_empty()));
    std::thread::sleep(Duration::from_secs(5));
    let mut choices = Choices::from_seed(3);
    let (before, mut times) = (writes(&world), Vec::new());
    for number in 0..CHANGES {
        std::thread::sleep(Duration::from_millis(100 + u64::from(choices.below(400))));
        // A pod of another node.
        let pod = choices.below(PODS / 3) * 3 + 1;
        times.push(change(&mut world, &mut agents, pod, 1 + number));
    }
    for (name, at) in [("watch", 0), ("slices", 1)] {
        let [median, last] = percentiles(times.iter().map(|times| times[at]).collect());
        println!("{name}: median {median:.0?}, p99 {last:.0?}");
    }
    println!("{CHANGES} changes: {} writes", writes(&world) - before);
    let before = writes(&world);
    for step in 0..PODS / 10 {
        let part = step * 10..(step + 1) * 10;
        let part: Vec<_> = part.map(|number| pod_of_workload(number, 180)).collect();
        world.server.etcd().write(&part).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    let [direct, sliced] = &mut agents;
    agree(direct, sliced, "a rollout");
    println!("rollout of {PODS} pods in 10 s: {} writes", writes(&world) - before);
}
