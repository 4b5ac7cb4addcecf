//! Slots of the endpoint table, which the marks of packets contain, where interface indexes collide: the order of
//! arrival decides over the slots.

use std::net::IpAddr;
use std::sync::mpsc;
use std::time::Duration;

use aya::maps::MapData;
use netpold_dataplane::bpf::mmap::MappedArray;
use netpold_ebpf::layout::{
    ENDPOINT_PROBES, Endpoint, LAYOUT_VERSION, MARK_NUMBERS, endpoint_slot, mark,
};
use netpold_testbed::cluster::{ENFORCED, NAMESPACE, TestCluster, allow_from, isolate};
use netpold_testbed::packet::{frame, udp_packet};
use netpold_testbed::{Cni, PodSpec, RawSocket, other_layout, require_root};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::attacks::aside::{Attack, change_layouts, crowd, replaced};
use crate::attacks::volley::{BOTH, PACKETS, Tally, Volley};

const PORT: u16 = 4000;
/// First slot of the interfaces under test.
const SLOT: u32 = 5000;
/// Pause between two packets to the Service. Hooks get their new programs within milliseconds.
const PACE: Duration = Duration::from_micros(10);
/// Further pods, whose programs are replaced between those of the uplink and those of the hostile pod.
const OTHERS: usize = 20;
/// Pause between two packets of each second interface.
const DOORS_PACE: Duration = Duration::from_micros(20);

/// Returns interface indexes with the same first slot, in ascending order.
fn indexes<const N: usize>() -> [u32; N] {
    let mut all = (10_000..).filter(|ifindex| endpoint_slot(*ifindex, 0) == SLOT);
    std::array::from_fn(|_| all.next().unwrap())
}

fn add(cluster: &mut TestCluster, node: usize, name: &str, ifindex: u32) {
    let spec = PodSpec::new(NAMESPACE, name).label("app", name);
    cluster.add_as(node, spec.ifindex(ifindex));
}

/// The endpoint table in force.
fn endpoints(cluster: &TestCluster, node: usize) -> MapData {
    let folder = cluster.agents[node].bpffs().join(format!("v{LAYOUT_VERSION}"));
    MapData::from_pin(folder.join("ENDPOINTS")).unwrap()
}

/// Returns slot and number of a pod's endpoint in the tables in force.
fn place(cluster: &TestCluster, node: usize, pod: &str) -> (u32, u32) {
    let table = MappedArray::<Endpoint>::flat(&endpoints(cluster, node)).unwrap();
    let ifindex = cluster.pod(pod).host_ifindex();
    let slots = (0..ENDPOINT_PROBES).map(|probe| endpoint_slot(ifindex, probe));
    let mut records = slots.map(|slot| (slot, table.read(slot).unwrap()));
    let (slot, record) = records.find(|(_, record)| record.ifindex == ifindex).unwrap();
    (slot, record.id)
}

/// Returns an attack by a pod whose slot another pod would have, if slots were given anew, in order of the indexes. That
/// pod may send everywhere, and its marks in this slot would be those of the hostile pod.
fn attack(test: &str) -> Option<Attack> {
    const NODE: usize = 0;
    Attack::with(test, NODE, PACE, |cluster| {
        let [lower, higher] = indexes();
        (0..OTHERS).for_each(|number| cluster.add(NODE, &format!("other{number}")));
        cluster.enforce();
        add(cluster, NODE, "hostile", higher);
        cluster.enforce();
        // Numbers are given in order, and marks contain their remainder.
        (1..MARK_NUMBERS).for_each(|number| cluster.add(NODE, &format!("between{number}")));
        cluster.enforce();
        add(cluster, NODE, "free", lower);
        cluster.enforce();
        let [hostile, free] = ["hostile", "free"].map(|pod| place(cluster, NODE, pod));
        assert_eq!((hostile.0, free.0), (SLOT, SLOT + 1), "in order of arrival");
        assert_eq!(mark(SLOT, hostile.1), mark(SLOT, free.1));
    })
}

#[test]
fn colliding_slots_while_flow_tables_grow() {
    require_root!();
    let Some(attack) = attack("colliding_slots_while_flow_tables_grow") else { return };
    let tally = attack.goes_on(|cluster, node| {
        crowd(cluster);
        replaced(cluster, node, 1);
    });
    tally.holds();
}

/// Has more blocks in a policy than the first tables have room for.
#[test]
fn colliding_slots_while_tables_grow() {
    require_root!();
    let Some(attack) = attack("colliding_slots_while_tables_grow") else { return };
    let block =
        |n: u32| json!({ "ipBlock": { "cidr": format!("100.{}.{}.0/25", n / 256, n % 256) } });
    let tally = attack.goes_on(|cluster, node| {
        let blocks: Vec<Value> = (0..1500).map(block).collect();
        let selector = json!({ "matchLabels": { "app": "server" } });
        let many = json!({ "podSelector": selector, "ingress": [{ "from": blocks }] });
        let id = |cluster: &TestCluster| endpoints(cluster, node).info().unwrap().id();
        let before = id(cluster);
        cluster.policy("many", many).enforce();
        assert_ne!(id(cluster), before, "the tables are replaced");
    });
    tally.holds();
}

#[test]
fn colliding_slots_while_an_agent_starts() {
    require_root!();
    let Some(attack) = attack("colliding_slots_while_an_agent_starts") else { return };
    let tally = attack.goes_on(|cluster, node| {
        for signal in [Signal::SIGKILL, Signal::SIGTERM] {
            cluster.agents[node].end(signal);
            cluster.restart(node);
        }
    });
    tally.holds();
}

#[test]
fn colliding_slots_while_layouts_change() {
    require_root!();
    let other = other_layout::build();
    let Some(attack) = attack("colliding_slots_while_layouts_change") else { return };
    attack.goes_on(|cluster, node| change_layouts(cluster, node, &other)).holds();
}

/// A second interface of a pod.
struct Door {
    wire: RawSocket,
    own: [u8; 6],
    next: [u8; 6],
}

impl Door {
    fn open(cluster: &TestCluster, number: usize, ifindex: u32) -> Self {
        let (node, hostile) = (&cluster.nodes[0], cluster.pod("hostile"));
        let (near, far) = (format!("door{number}"), format!("net{number}"));
        let there = hostile.netns().path();
        let add = format!(
            "link add name {near} index {ifindex} type veth peer name {far} netns {}\nlink set {near} up\n",
            there.display()
        );
        node.netns().ip(&add).unwrap();
        hostile.netns().ip(&format!("link set {far} up\n")).unwrap();
        Self {
            wire: hostile.wire(&far).unwrap(),
            own: hostile.hardware_address(&far).unwrap(),
            next: node.hardware_address(&near).unwrap(),
        }
    }

    fn send(&self, volley: Volley, number: usize, (from, to): (IpAddr, IpAddr)) {
        let payload = volley.payload(number, 40);
        let packet = udp_packet((from, 5000).into(), (to, PORT).into(), &payload);
        self.wire.send(&frame(self.next, self.own, &packet)).unwrap();
    }
}

/// Sends by second interfaces of `hostile`, with the source of the only pod that the victim allows, while other pods'
/// first interfaces take their slots.
#[test]
fn second_interfaces_that_lose_their_slots() {
    require_root!();
    const DOORS: usize = ENDPOINT_PROBES as usize;
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["hostile", "friend", "victim"]);
    let all: [u32; 2 * DOORS] = indexes();
    let (doors, later) = all.split_at(DOORS);
    let doors: Vec<Door> = doors
        .iter()
        .enumerate()
        .map(|(number, ifindex)| Door::open(&cluster, number, *ifindex))
        .collect();
    let of = |cluster: &TestCluster, name: &str| cluster.pod(name).ip4().unwrap();
    let ends = (of(&cluster, "friend"), of(&cluster, "victim"));
    let wire = cluster.pod("victim").wire("eth0").unwrap();
    for door in &doors {
        let volley = Volley::new();
        (0..PACKETS).for_each(|number| door.send(volley, number, ends));
        volley.arrives(&wire, "without an agent");
    }
    cluster.policy("victim", isolate("victim", &BOTH));
    cluster.policy("friend", allow_from("victim", "friend"));
    cluster.policy("hostile", isolate("hostile", &BOTH)).enforce();
    let judged = |status: &Value| {
        let all = status["endpoints"].as_array().into_iter().flatten();
        let judged = |it: &&Value| {
            it["interface"].as_str().is_some_and(|name| name.starts_with("door"))
                && it["hook"].is_string()
        };
        all.filter(judged).count() == DOORS
    };
    cluster.agents[0].wait_for("at the second interfaces", ENFORCED, judged).unwrap();
    let volley = Volley::new();
    let (goes_on, ended) = mpsc::channel::<()>();
    let sender = std::thread::spawn(move || {
        let going = |_: &usize| ended.try_recv() == Err(mpsc::TryRecvError::Empty);
        let sent = (0..).take_while(going).map(|number| {
            doors.iter().for_each(|door| door.send(volley, number, ends));
            std::thread::sleep(DOORS_PACE);
        });
        sent.count()
    });
    for (number, ifindex) in later.iter().enumerate() {
        add(&mut cluster, 0, &format!("late{number}"), *ifindex);
        cluster.write();
        let closed = |status: &Value| {
            let all = status["problems"].to_string();
            all.matches("closed, since no endpoint slot is free").count() == number + 1
        };
        cluster.agents[0].wait_for("short of a slot", ENFORCED, closed).unwrap();
    }
    drop(goes_on);
    println!("{} packets of each second interface", sender.join().unwrap());
    let mut tally = Tally::default();
    tally.note("by second interfaces", volley.leaked(&wire));
    tally.holds();
    cluster.reaches("friend", "victim");
    cluster.reaches("late0", "friend");
}
