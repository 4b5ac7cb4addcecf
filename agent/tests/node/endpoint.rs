//! Endpoint discovery in real network namespaces. Needs root.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of a test are not seen as tests by the lints"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::IpAddr;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use netpold_core::bindings::Veth;
use netpold_discovery::newcomers::{VethChange, VethWatcher};
use netpold_discovery::{Discovery, DiscoveryEvent, DiscoverySettings};
use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, setns};
use tokio::sync::mpsc;

/// Time limit far beyond any step of the tests.
const PATIENCE: Duration = Duration::from_mins(1);
/// Settings without periodic listings, so that only events update the state.
const EVENTS_ONLY: DiscoverySettings =
    DiscoverySettings { rescan: Duration::from_hours(1), receive_buffer: 1 << 20 };

fn ip(arguments: &str) {
    assert!(try_ip(arguments), "ip {arguments}");
}

fn try_ip(arguments: &str) -> bool {
    Command::new("ip").args(arguments.split_whitespace()).status().expect("ip is there").success()
}

/// Network namespace that is deleted at the end of the test.
struct Namespace(String);

impl Namespace {
    fn new(name: &str) -> Self {
        let namespace = Self(format!("npe-{}-{name}", std::process::id()));
        ip(&format!("netns add {namespace}", namespace = namespace.0));
        namespace
    }

    fn ip(&self, arguments: &str) {
        ip(&format!("-n {} {arguments}", self.0));
    }

    fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let handle = File::open(format!("/run/netns/{}", self.0)).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                setns(handle, CloneFlags::CLONE_NEWNET).unwrap();
                work()
            });
            thread.join().unwrap()
        })
    }

    fn discover(&self, settings: DiscoverySettings) -> Observer {
        self.discover_into(4096, settings)
    }

    fn discover_into(&self, room: usize, settings: DiscoverySettings) -> Observer {
        let (sender, events) = mpsc::channel(room);
        let discovery = self.inside(|| Discovery::start(settings, sender).unwrap());
        Observer { discovery, events }
    }

    /// Adds a veth with its other side in `pod`, as CNI plugins do: both ends are created in their final namespaces.
    fn veth(&self, name: &str, pod: &Self) {
        self.ip(&format!("link add {name} type veth peer name eth0 netns {}", pod.0));
        pod.ip("link set eth0 up");
        self.ip(&format!("link set {name} up"));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        try_ip(&format!("netns del {}", self.0));
    }
}

/// Removes namespaces of dead test processes.
fn sweep() {
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix("npe-").and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !std::fs::exists(format!("/proc/{pid}")).unwrap_or(true)) {
            try_ip(&format!("netns del {name}"));
        }
    }
}

struct Observer {
    discovery: Discovery,
    events: mpsc::Receiver<DiscoveryEvent>,
}

impl Observer {
    fn next(&mut self) -> DiscoveryEvent {
        self.within(PATIENCE).expect("an event")
    }

    /// Returns events until half a second passes without one.
    fn for_a_while(&mut self) -> Vec<DiscoveryEvent> {
        std::iter::from_fn(|| self.within(Duration::from_millis(500))).collect()
    }

    fn within(&mut self, time: Duration) -> Option<DiscoveryEvent> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            match self.events.try_recv() {
                Ok(event) => return Some(event),
                Err(_) => std::thread::sleep(Duration::from_micros(50)),
            }
        }
        None
    }

    /// Returns the veths reported before the first in-sync event.
    fn initial(&mut self) -> Vec<Veth> {
        let mut veths = Vec::new();
        loop {
            match self.next() {
                DiscoveryEvent::Veth(veth) => veths.push(veth),
                DiscoveryEvent::VethGone(index) => panic!("{index} was never there"),
                DiscoveryEvent::OwnAddresses(_)
                | DiscoveryEvent::Devices(_)
                | DiscoveryEvent::Ports(_) => {}
                DiscoveryEvent::InSync => return veths,
            }
        }
    }

    /// Waits until the node's own addresses are `addresses`.
    fn until_own(&mut self, addresses: &[&str]) {
        let wanted: Vec<IpAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if self.next() == DiscoveryEvent::OwnAddresses(wanted.clone()) {
                return;
            }
        }
        panic!("the node never had {addresses:?}");
    }

    /// Waits until the interface `name` has `addresses`.
    fn until(&mut self, name: &str, addresses: &[&str]) -> Veth {
        let wanted: Vec<IpAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let DiscoveryEvent::Veth(veth) = self.next()
                && veth.name == name
                && veth.inside == wanted
            {
                return veth;
            }
        }
        panic!("{name} never had {addresses:?}");
    }

    fn until_gone(&mut self, index: u32) {
        while self.next() != DiscoveryEvent::VethGone(index) {}
    }
}

#[test]
fn the_nodes_own_addresses_are_told_but_not_those_of_services() {
    sweep();
    let (node, pod) = (Namespace::new("o-n"), Namespace::new("o-1"));
    node.veth("pod1", &pod);
    node.ip("addr add 192.0.2.1/24 dev pod1");
    let mut discovery = node.discover(DiscoverySettings::default());
    discovery.until_own(&["192.0.2.1"]);
    node.ip("addr add 2001:db8::1/64 dev pod1 nodad");
    discovery.until_own(&["192.0.2.1", "2001:db8::1"]);
    // Every node has loopback and link-local addresses.
    node.ip("addr add 127.0.0.7/8 dev pod1");
    node.ip("addr add fe80::7/64 dev pod1 nodad");
    node.ip("addr add 169.254.7.7/32 dev pod1 scope link");
    discovery.until_own(&["169.254.7.7", "192.0.2.1", "2001:db8::1"]);
    // kube-proxy's device in IPVS mode, here of a type that this kernel supports, and kube-router's.
    for (device, address) in [("kube-ipvs0", "10.96.0.10"), ("kube-dummy-if", "10.96.0.11")] {
        node.ip(&format!("link add {device} type bridge"));
        node.ip(&format!("addr add {address}/32 dev {device} scope link"));
    }
    node.ip("addr del 169.254.7.7/32 dev pod1");
    node.ip("addr del 192.0.2.1/24 dev pod1");
    discovery.until_own(&["2001:db8::1"]);
}

#[test]
fn pods_that_are_there_at_the_start_come_before_in_sync() {
    sweep();
    let (node, one, two) = (Namespace::new("s-n"), Namespace::new("s-1"), Namespace::new("s-2"));
    node.veth("pod1", &one);
    node.veth("pod2", &two);
    one.ip("addr add 10.1.0.1/24 dev eth0");
    one.ip("addr add 10.1.0.1/32 dev lo");
    two.ip("addr add fd00:1::2/64 dev eth0");
    two.ip("addr add 10.1.0.2 peer 10.1.0.254 dev eth0");
    two.ip("addr add 10.1.0.7/32 dev eth0 scope host");
    let mut veths = node.discover(EVENTS_ONLY).initial();
    veths.sort_by(|a, b| a.name.cmp(&b.name));
    let found: Vec<_> =
        veths.iter().map(|veth| (veth.name.as_str(), veth.inside.clone())).collect();
    let addresses = |list: &[&str]| list.iter().map(|a| a.parse().unwrap()).collect::<Vec<_>>();
    assert_eq!(
        found,
        [("pod1", addresses(&["10.1.0.1"])), ("pod2", addresses(&["10.1.0.2", "fd00:1::2"]))],
        "no link-local, no host scope, one's own side of a point-to-point address"
    );
}

#[test]
fn a_pod_comes_changes_address_and_goes() {
    sweep();
    let (node, pod) = (Namespace::new("c-n"), Namespace::new("c-1"));
    let mut observer = node.discover(EVENTS_ONLY);
    assert_eq!(observer.initial(), []);
    node.veth("pod1", &pod);
    let without = observer.until("pod1", &[]);
    // Waits for the end of the queries at growing intervals, so that only an event can report the address.
    std::thread::sleep(Duration::from_secs(3));
    let assigned = Instant::now();
    pod.ip("addr add 10.1.0.1/24 dev eth0");
    let with = observer.until("pod1", &["10.1.0.1"]);
    println!("address to event, `ip` included: {:?}", assigned.elapsed());
    assert!(assigned.elapsed() < Duration::from_millis(500));
    assert_eq!((with.index, with.incarnation), (without.index, without.incarnation));
    pod.ip("addr add fd00:1::1/64 dev eth0");
    observer.until("pod1", &["10.1.0.1", "fd00:1::1"]);
    pod.ip("addr del 10.1.0.1/24 dev eth0");
    observer.until("pod1", &["fd00:1::1"]);
    node.ip("link set pod1 name renamed");
    observer.until("renamed", &["fd00:1::1"]);
    node.ip("link del renamed");
    observer.until_gone(with.index);
}

#[test]
fn events_arrive_within_milliseconds_of_the_address() {
    sweep();
    let (node, pod) = (Namespace::new("t-n"), Namespace::new("t-1"));
    node.veth("pod1", &pod);
    let mut observer = node.discover(EVENTS_ONLY);
    observer.initial();
    std::thread::sleep(Duration::from_secs(3));
    // A netlink socket of the test's own, so that no process start is measured.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let index = pod.inside(|| if_nametoindex("eth0").unwrap());
    let (connection, handle, _) =
        pod.inside(|| runtime.block_on(async { rtnetlink::new_connection().unwrap() }));
    runtime.spawn(connection);
    let mut times = Vec::new();
    for last in 1..=20u8 {
        let address = IpAddr::from([10, 1, 0, last]);
        let start = Instant::now();
        runtime.block_on(handle.address().add(index, address, 32).execute()).unwrap();
        while !matches!(observer.next(), DiscoveryEvent::Veth(veth) if veth.inside.contains(&address))
        {
        }
        times.push(start.elapsed());
    }
    times.sort_unstable();
    println!("address to event: median {:?}, worst {:?}", times[10], times[19]);
    assert!(times[10] < Duration::from_millis(50));
}

#[test]
fn a_veth_whose_peer_is_moved_out_later_is_seen_at_once() {
    sweep();
    let (node, pod) = (Namespace::new("m-n"), Namespace::new("m-1"));
    let mut observer = node.discover(EVENTS_ONLY);
    observer.initial();
    node.ip("link add pod1 type veth peer name tmp");
    assert_eq!(observer.within(Duration::from_millis(300)), None, "a pair in one namespace");
    node.ip(&format!("link set tmp netns {} name eth0", pod.0));
    observer.until("pod1", &[]);
    pod.ip("addr add 10.1.0.1/24 dev eth0");
    pod.ip("link set eth0 up");
    observer.until("pod1", &["10.1.0.1"]);
}

#[test]
fn the_guard_needs_no_listing_to_see_a_peer_that_moves() {
    sweep();
    let (node, pod) = (Namespace::new("g-n"), Namespace::new("g-1"));
    node.ip("link add existing type veth peer name inner");
    node.inside(|| {
        let mut veths = VethWatcher::open().unwrap();
        let index = |name| if_nametoindex(name).unwrap();
        let mut changes = |expected: &[VethChange]| {
            let (mut found, end) = (Vec::new(), Instant::now() + PATIENCE);
            while !expected.iter().all(|change| found.contains(change)) {
                veths.changes(|change| found.push(change));
                assert!(Instant::now() < end, "{expected:?}: {found:?}");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let existing = index("existing");
        // The first listing corrects the interfaces that existed at the start.
        changes(&[VethChange::Gone(existing)]);
        for _ in 0..2 {
            let inner = index("inner");
            node.ip(&format!("link set inner netns {}", pod.0));
            changes(&[VethChange::Gone(inner), VethChange::New(existing)]);
            pod.ip(&format!("link set inner netns {}", node.0));
            changes(&[VethChange::Gone(existing)]);
        }
    });
}

#[test]
fn a_removed_namespace_takes_its_interface_along() {
    sweep();
    let (node, pod) = (Namespace::new("d-n"), Namespace::new("d-1"));
    let mut observer = node.discover(EVENTS_ONLY);
    node.veth("pod1", &pod);
    pod.ip("addr add 10.1.0.1/24 dev eth0");
    let interface = observer.until("pod1", &["10.1.0.1"]);
    drop(pod);
    observer.until_gone(interface.index);
    // The namespace's identifier is free now; the next pod gets it.
    let next = Namespace::new("d-2");
    node.veth("pod2", &next);
    next.ip("addr add 10.1.0.1/24 dev eth0");
    observer.until("pod2", &["10.1.0.1"]);
}

#[test]
fn a_reused_index_has_another_incarnation() {
    sweep();
    let (node, pod) = (Namespace::new("r-n"), Namespace::new("r-1"));
    let mut observer = node.discover(EVENTS_ONLY);
    let mut incarnations = Vec::new();
    for _ in 0..2 {
        // The same index, name, hardware address and namespace.
        node.ip(&format!(
            "link add pod1 index 77 address 02:00:00:00:00:01 type veth peer name eth0 netns {}",
            pod.0
        ));
        pod.ip("addr add 10.1.0.1/24 dev eth0");
        let interface = observer.until("pod1", &["10.1.0.1"]);
        assert_eq!(interface.index, 77);
        incarnations.push(interface.incarnation);
        node.ip("link del pod1");
        observer.until_gone(77);
    }
    assert_ne!(incarnations[0], incarnations[1]);
}

#[test]
fn a_restarted_agent_gives_the_same_incarnation() {
    sweep();
    let (node, pod) = (Namespace::new("a-n"), Namespace::new("a-1"));
    node.veth("pod1", &pod);
    pod.ip("addr add 10.1.0.1/24 dev eth0");
    let first = node.discover(EVENTS_ONLY).initial();
    assert_eq!(first.len(), 1);
    assert_eq!(node.discover(EVENTS_ONLY).initial(), first);
}

#[test]
fn a_bridge_port_is_an_interface_and_leaving_the_bridge_is_not_its_end() {
    sweep();
    let (node, pod) = (Namespace::new("b-n"), Namespace::new("b-1"));
    let mut observer = node.discover(EVENTS_ONLY);
    observer.initial();
    node.ip("link add br0 type bridge");
    node.veth("pod1", &pod);
    pod.ip("addr add 10.1.0.1/24 dev eth0");
    node.ip("link set pod1 master br0");
    let interface = observer.until("pod1", &["10.1.0.1"]);
    let bridge = node.inside(|| if_nametoindex("br0").unwrap());
    let mut ports = observer.for_a_while();
    // The port may have been reported before the address.
    assert!(
        ports.is_empty() || ports == [DiscoveryEvent::Ports([(interface.index, bridge)].into())]
    );
    node.ip("link set pod1 nomaster");
    ports = observer.for_a_while();
    assert_eq!(ports, [DiscoveryEvent::Ports(BTreeMap::new())]);
    node.ip("link set pod1 master br0");
    assert_eq!(observer.for_a_while(), [DiscoveryEvent::Ports([(interface.index, bridge)].into())]);
    node.ip("link del pod1");
    observer.until_gone(interface.index);
}

#[test]
fn lost_events_lead_to_a_new_listing() {
    sweep();
    let (node, pod) = (Namespace::new("o-n"), Namespace::new("o-1"));
    // The smallest receive buffer, with room for about one link event, and a full channel that delays discovery.
    let mut observer =
        node.discover_into(1, DiscoverySettings { receive_buffer: 1, ..EVENTS_ONLY });
    observer.initial();
    let batch = tempfile::NamedTempFile::new().unwrap();
    let lines: String = (0..100)
        .map(|n| format!("link add v{n} type veth peer name e{n} netns {}\n", pod.0))
        .collect();
    std::fs::write(batch.path(), lines).unwrap();
    node.ip(&format!("-batch {}", batch.path().display()));
    let end = Instant::now() + PATIENCE;
    let mut seen = BTreeSet::new();
    while seen.len() < 100 && Instant::now() < end {
        match observer.within(Duration::from_secs(1)) {
            Some(DiscoveryEvent::Veth(veth)) => seen.insert(veth.name),
            _ => break,
        };
    }
    let overruns = observer.discovery.counters().overruns.load(Ordering::Relaxed);
    println!("overruns: {overruns}");
    assert!(overruns > 0, "nothing was lost: the test shows nothing");
    assert_eq!(seen.len(), 100);
}

#[test]
fn the_nodes_routes_to_single_addresses_are_told() {
    sweep();
    let (node, pod) = (Namespace::new("h-n"), Namespace::new("h-1"));
    node.veth("pod1", &pod);
    node.ip("link set lo up");
    node.ip("addr add 169.254.1.1/32 dev pod1");
    node.ip("addr add fd00:1::fe/64 dev pod1 nodad");
    node.ip("route add 10.1.0.1 dev pod1");
    node.ip("route add 10.1.1.0/24 dev pod1");
    node.ip("route add 10.1.0.7 via 10.1.0.1 dev pod1 onlink proto ra");
    let mut observer = node.discover(EVENTS_ONLY);
    let routed = |veth: &Veth| veth.routed.clone();
    let addresses =
        |list: &[&str]| -> Vec<IpAddr> { list.iter().map(|a| a.parse().unwrap()).collect() };
    let first = observer.initial();
    assert_eq!(first.iter().map(routed).collect::<Vec<_>>(), [addresses(&["10.1.0.1"])]);
    let mut until = |wanted: &[&str]| loop {
        if let DiscoveryEvent::Veth(veth) = observer.next()
            && veth.routed == addresses(wanted)
        {
            return;
        }
    };
    node.ip("route add fd00:1::1 dev pod1");
    until(&["10.1.0.1", "fd00:1::1"]);
    node.ip("route del 10.1.0.1 dev pod1");
    until(&["fd00:1::1"]);
}

/// Changes addresses of one pod as fast as one thread can; both pods' addresses must be reported afterwards.
#[test]
fn a_storm_of_addresses_costs_a_few_questions() {
    sweep();
    let (node, pod, quiet) = (Namespace::new("w-n"), Namespace::new("w-1"), Namespace::new("w-2"));
    node.veth("pod1", &pod);
    node.veth("pod2", &quiet);
    let mut observer = node.discover(DiscoverySettings {
        rescan: Duration::from_hours(1),
        ..DiscoverySettings::default()
    });
    observer.initial();
    // Waits for the end of the queries at growing intervals.
    std::thread::sleep(Duration::from_secs(3));
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let before = count(&observer.discovery.counters().questions);
    let lines = "addr add 10.1.0.1/32 dev eth0\naddr del 10.1.0.1/32 dev eth0\n".repeat(2_000);
    let batch = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(batch.path(), lines).unwrap();
    let began = Instant::now();
    let mut changes = 0;
    while began.elapsed() < Duration::from_secs(4) {
        pod.ip(&format!("-batch {}", batch.path().display()));
        changes += 4_000;
    }
    let (asked, took) = (count(&observer.discovery.counters().questions) - before, began.elapsed());
    let overruns = count(&observer.discovery.counters().overruns);
    println!("{changes} changes in {took:?}: {asked} questions, {overruns} overruns");
    // One query for each change would be thousands, however long a busy machine takes for one batch.
    assert!(asked <= 100 + 10 * took.as_secs(), "{asked} questions for {changes} changes");
    quiet.ip("addr add 10.1.0.2/24 dev eth0");
    observer.until("pod2", &["10.1.0.2"]);
    // The last address is reported, too.
    pod.ip("addr add 10.1.0.9/32 dev eth0");
    observer.until("pod1", &["10.1.0.9"]);
}

#[test]
fn discovery_ends_with_its_receiver_and_with_its_handle() {
    sweep();
    let node = Namespace::new("e-n");
    let mut observer = node.discover(EVENTS_ONLY);
    observer.initial();
    let Observer { discovery, mut events } = observer;
    assert!(discovery.is_running());
    drop(discovery);
    let end = Instant::now() + PATIENCE;
    while events.try_recv() != Err(mpsc::error::TryRecvError::Disconnected) {
        assert!(Instant::now() < end, "the thread still holds its channel");
        std::thread::sleep(Duration::from_millis(1));
    }
}
