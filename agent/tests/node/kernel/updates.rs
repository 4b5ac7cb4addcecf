//! Updates on the kernel's own maps, operation by operation: after each operation the real programs judge every
//! packet as before or as after the update. The same holds for packets of connections that were open before,
//! which the flow table keeps with their verdicts.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

use aya::EbpfLoader;
use netpold_core::compile::{Compiler, Cursor};
use netpold_core::model::{Direction, Interface};
use netpold_core::ops::{Op, TableWriter};
use netpold_core::options::{CheckSource, Options};
use netpold_dataplane::audit::UnexpectedEntries;
use netpold_dataplane::bpf::test_run::{Run, run};
use netpold_dataplane::bpffs::PinRoot;
use netpold_dataplane::global_sections::TemporaryPins;
use netpold_dataplane::tables::BpfTables;
use netpold_ebpf::flow::control::timeouts;
use netpold_ebpf::flow::key::hash_keys;
use netpold_ebpf::layout::{HOSTS6_WAYS, Settings};
use netpold_testbed::{Netns, Unmount};
use netpold_testkit::generate::{Choices, GeneratedCluster, NODE};
use netpold_testkit::memory::MemoryTables;

use super::world::{PASS, UPLINK, program};
use netpold_testkit::frames::{ACK, SYN, TCP, ether, tcp};

/// Number of chains of states, and of updates in each.
const CHAINS: u64 = 2;
const UPDATES: u32 = 8;
/// Number of operations between two checks of open connections.
const OPEN_EVERY: usize = 4;
const PORTS: [u16; 2] = [80, 8080];
/// Number of buckets of the flow tables, enough that no flow is evicted.
const BUCKETS: u32 = 8192;

/// Port of the client.
const CLIENT: u16 = 40_000;

/// First packet of a connection, which matches no flow, and further packets of the same connection.
struct Packet {
    ifindex: u32,
    direction: Direction,
    remote: IpAddr,
    port: u16,
    opening: Vec<u8>,
    opened: Vec<u8>,
    further: Vec<u8>,
    answer: Vec<u8>,
}

impl Packet {
    fn new(
        ifindex: u32,
        direction: Direction,
        (local, remote): (IpAddr, IpAddr),
        port: u16,
    ) -> Option<Self> {
        let (from, to) = match direction {
            Direction::Ingress => (remote, local),
            Direction::Egress => (local, remote),
        };
        let opening = frame(from, to, tcp(CLIENT, port, SYN))?;
        let opened = frame(to, from, tcp(port, CLIENT, SYN | ACK))?;
        let further = frame(from, to, tcp(CLIENT, port, ACK))?;
        let answer = frame(to, from, tcp(port, CLIENT, ACK))?;
        Some(Self { ifindex, direction, remote, port, opening, opened, further, answer })
    }

    /// Returns the verdict of the tables in memory; true without an endpoint, since its packets pass.
    fn allowed(&self, tables: &MemoryTables) -> bool {
        tables.allows(self.ifindex, self.direction, self.remote, TCP, self.port).unwrap_or(true)
    }

    /// Returns the verdict of the tables in memory for the answers, as if they opened a connection.
    fn answers_allowed(&self, tables: &MemoryTables) -> bool {
        let direction = self.direction.opposite();
        tables.allows(self.ifindex, direction, self.remote, TCP, CLIENT).unwrap_or(true)
    }

    /// Returns the number of the pod instance that owns the flow.
    fn pod(&self, tables: &MemoryTables) -> Option<u32> {
        tables.endpoint(self.ifindex).map(|endpoint| endpoint.id)
    }
}

fn frame(from: IpAddr, to: IpAddr, segment: Vec<u8>) -> Option<Vec<u8>> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, TCP, 0, 0];
            packet.extend(from.octets());
            packet.extend(to.octets());
            packet.extend(segment);
            Some(ether(0x0800, &packet))
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut packet = vec![0x60, 0, 0, 0, 0, 20, TCP, 64];
            packet.extend(from.octets());
            packet.extend(to.octets());
            packet.extend(segment);
            Some(ether(0x86dd, &packet))
        }
        _ => None,
    }
}

/// Returns packets between the interfaces of two states and every address of either state.
fn packets(states: [&GeneratedCluster; 2]) -> Vec<Packet> {
    let mut remotes: BTreeSet<IpAddr> = states
        .iter()
        .flat_map(|state| state.pods())
        .flat_map(|pod| pod.addresses.iter().copied())
        .collect();
    remotes.extend([
        IpAddr::from(Ipv4Addr::new(8, 8, 8, 8)),
        IpAddr::from(Ipv6Addr::from_bits(0x2001_0db8 << 96 | 9)),
    ]);
    let mut seen = BTreeSet::new();
    let mut packets = Vec::new();
    for interface in states.iter().flat_map(|state| state.interfaces()) {
        // A pod reaches all its own addresses of either state, also addresses that its interface lacks.
        let of_index = |other: &&Interface| other.index == interface.index;
        let all = states.iter().flat_map(|state| state.interfaces()).filter(of_index);
        let seen_there: BTreeSet<IpAddr> = all.flat_map(|i| i.addresses.iter().copied()).collect();
        let pods = states.iter().flat_map(|state| state.pods());
        let here = pods.filter(|pod| pod.addresses.iter().any(|a| seen_there.contains(a)));
        let mut own: BTreeSet<IpAddr> =
            here.flat_map(|pod| pod.addresses.iter().copied()).collect();
        own.extend(&seen_there);
        for local in &interface.addresses {
            for remote in remotes.iter().filter(|remote| !own.contains(remote)) {
                for port in PORTS {
                    if !seen.insert((interface.index, *local, *remote, port)) {
                        continue;
                    }
                    for direction in Direction::BOTH {
                        let ends = (*local, *remote);
                        packets.extend(Packet::new(interface.index, direction, ends, port));
                    }
                }
            }
        }
    }
    packets
}

impl std::fmt::Display for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { ifindex, direction, remote, port, .. } = self;
        write!(f, "{ifindex} {direction} of {remote} port {port}")
    }
}

/// Loaded programs and the tables that they read.
struct Kernel {
    tables: BpfTables,
    settings: Settings,
    programs: [OwnedFd; 2],
}

impl Kernel {
    /// Loads programs and tables. `crowded`: most IPv6 addresses find no room in their table.
    fn load(crowded: bool) -> Self {
        let object = netpold_dataplane::object::object().expect("the eBPF object");
        let mut loader = EbpfLoader::new();
        loader.map_max_entries("CT4", BUCKETS).map_max_entries("CT6", BUCKETS);
        if crowded {
            loader.map_max_entries("HOSTS6", 1);
        }
        let mounted = Unmount(tempfile::tempdir().expect("a directory"));
        let pins = PinRoot::open(mounted.0.path()).expect("a BPF file system");
        let offered =
            TemporaryPins::to(&mut loader, &pins.maps(), &[]).expect("tables at fixed addresses");
        let mut bpf = loader.load(object).expect("maps");
        drop(offered);
        let programs = ["netpold_ingress", "netpold_egress"].map(|name| {
            let program = program(&mut bpf, name);
            program.load().expect(name);
            program.fd().expect(name).as_fd().try_clone_to_owned().expect(name)
        });
        let mut tables = BpfTables::open(&mut bpf).expect("tables");
        let settings = Settings {
            ct4_mask: BUCKETS - 1,
            ct6_mask: BUCKETS - 1,
            hash_keys: hash_keys(0),
            timeouts: timeouts(1000),
            refresh_after: 1000,
            ..Settings::default()
        };
        let settings = tables.write_settings(settings).expect("settings");
        Self { tables, settings, programs }
    }

    fn passes(&self, packet: &Packet) -> bool {
        self.judge(packet.ifindex, packet.direction, &packet.opening)
    }

    /// Opens the packet's connection and exchanges packets until the flow table has the complete state.
    fn establish(&self, packet: &Packet) {
        let answering = packet.direction.opposite();
        for (forward, answer) in [
            (&packet.opening, &packet.opened),
            (&packet.further, &packet.answer),
            (&packet.further, &packet.answer),
        ] {
            assert!(self.judge(packet.ifindex, packet.direction, forward), "{packet}");
            assert!(self.judge(packet.ifindex, answering, answer), "the answer to {packet}");
        }
    }

    /// Returns whether a further packet of the connection passes, and whether an answer passes.
    fn goes_on(&self, packet: &Packet) -> [bool; 2] {
        let answering = packet.direction.opposite();
        [
            self.judge(packet.ifindex, packet.direction, &packet.further),
            self.judge(packet.ifindex, answering, &packet.answer),
        ]
    }

    /// Asserts that the tables match the compiler's state, also for addresses that found no room.
    fn read_back(&mut self, compiler: &Compiler, place: &str) {
        let whole = (Cursor::default(), 1);
        let unexpected = &mut UnexpectedEntries::default();
        let read = self.tables.audit(self.settings, compiler, whole, unexpected);
        let (_, repaired) = read.expect("the kernel's maps");
        assert!(repaired.is_empty(), "{place}: {repaired:?}");
    }

    fn judge(&self, ifindex: u32, direction: Direction, frame: &[u8]) -> bool {
        let program = &self.programs[direction as usize];
        let come_from = match direction {
            Direction::Ingress => UPLINK,
            Direction::Egress => ifindex,
        };
        let once = Run { ifindex, ingress_ifindex: come_from, ..Run::once(frame) };
        run(program.as_fd(), &once).expect("a test run").retval == PASS
    }
}

/// Creates a namespace with interfaces of the given indexes.
fn namespace(indexes: &BTreeSet<u32>) -> Netns {
    let netns = Netns::create("updates").expect("a namespace");
    let lines =
        indexes.iter().map(|index| format!("link add name d{index} index {index} type bridge\n"));
    netns.ip(&lines.collect::<String>()).expect("interfaces");
    netns
}

/// Packet with its verdicts before and after an update.
struct Update<'a> {
    packet: &'a Packet,
    /// Whether the packet passes before, and whether it passes after.
    before: bool,
    after: bool,
    /// Number of the pod instance before the update.
    pod: Option<u32>,
    /// Whether the update must cut an open connection: its own packets, and its answers.
    cut: [bool; 2],
    /// Whether the update must keep an open connection.
    kept: bool,
}

impl<'a> Update<'a> {
    fn begin(packet: &'a Packet, before: &MemoryTables) -> Self {
        let allowed = packet.allowed(before);
        let pod = packet.pod(before);
        Self { packet, before: allowed, after: allowed, pod, cut: [false; 2], kept: false }
    }

    /// Opens the connection if it is allowed. A connection without an endpoint has no flow, and needs none.
    fn establish(&self, kernel: &Kernel) {
        if self.before && self.pod.is_some() {
            kernel.establish(self.packet);
        }
    }

    fn with(self, after: &MemoryTables) -> Self {
        let allowed = self.packet.allowed(after);
        // Flows end with their pod.
        let same = self.pod.is_some() && self.pod == self.packet.pod(after);
        Self {
            after: allowed,
            cut: [!allowed, !allowed && !self.packet.answers_allowed(after)],
            kept: self.before && allowed && same,
            ..self
        }
    }

    fn check(&self, kernel: &Kernel, last: bool, place: &str) {
        let Self { packet, before, after, .. } = *self;
        let passes = kernel.passes(packet);
        assert!(passes == before || passes == after, "{place}: {packet}: {passes}");
        assert!(!last || passes == after, "{place}, at the end: {packet}: {passes}");
    }

    /// Checks the connection that was open before the update.
    fn check_open(&self, kernel: &Kernel, last: bool, place: &str) {
        let packet = self.packet;
        let goes_on = kernel.goes_on(packet);
        assert!(!self.kept || goes_on == [true; 2], "{place}: {packet} was cut");
        let outlives = last && (0..2).any(|part| self.cut[part] && goes_on[part]);
        assert!(!outlives, "{place}, at the end: {packet} goes on: {goes_on:?}");
    }
}

/// Runs one chain of updates. Returns the numbers of operations and of judgements.
fn chain(seed: u64) -> (usize, usize) {
    let mut choices = Choices::from_seed(seed);
    let mut states = vec![GeneratedCluster::default(), GeneratedCluster::generate(&mut choices)];
    for _ in 0..UPDATES {
        let next = states[states.len() - 1].mutate(&mut choices);
        states.push(next);
    }
    let indexes = states.iter().flat_map(GeneratedCluster::interfaces).map(|i| i.index).collect();
    let netns = namespace(&indexes);
    let mut kernel = Kernel::load(seed % 2 == 1);
    // Interfaces of the generated states have addresses that belong to no pod.
    let check_source = CheckSource::Off;
    let options = Options { node: NODE.into(), check_source, ..Options::default() };
    let mut compiler = Compiler::new(options);
    let mut memory = MemoryTables::new();
    let (mut operations, mut judged) = (0, 0);
    for pair in states.windows(2) {
        let packets = packets([&pair[0], &pair[1]]);
        let mut updates: Vec<_> =
            packets.iter().map(|packet| Update::begin(packet, &memory)).collect();
        netns
            .run(|| updates.iter().for_each(|update| update.establish(&kernel)))
            .expect("the namespace");
        pair[0].changes_to(&pair[1]).into_iter().for_each(|change| compiler.ingest(change));
        let ops = compiler.update().expect("it fits");
        ops.iter().for_each(|op| memory.write(op).expect("memory"));
        updates = updates.into_iter().map(|update| update.with(&memory)).collect();
        for (number, op) in ops.iter().enumerate() {
            kernel.tables.write(op).expect("the kernel's maps");
            let last = number + 1 == ops.len();
            if last {
                kernel.tables.next_revision().expect("the settings");
            }
            let place = format!("seed {seed}, operation {number} of {}", ops.len());
            let check = || {
                updates.iter().for_each(|update| update.check(&kernel, last, &place));
                if last || number % OPEN_EVERY == 0 {
                    updates.iter().for_each(|update| update.check_open(&kernel, last, &place));
                }
            };
            netns.run(check).expect("the namespace");
            judged += packets.len();
        }
        operations += ops.len();
        compiler.grace_passed();
        kernel.read_back(&compiler, &format!("seed {seed}"));
    }
    (operations, judged)
}

#[test]
fn every_operation_shows_before_or_after() {
    netpold_testbed::require_root!();
    let done = (0..CHAINS).map(chain).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    println!("{} operations, {} packets judged", done.0, done.1);
    assert!(done.0 > 100 && done.1 > 5_000, "the sample is too small: {done:?}");
}

/// Adds more addresses than their table holds, then removes them.
#[test]
fn addresses_without_room_leave_nothing_behind() {
    netpold_testbed::require_root!();
    let mut kernel = Kernel::load(true);
    let addresses = || (1..=2 * HOSTS6_WAYS as u128).map(Ipv6Addr::from_bits);
    let entered = addresses().map(|address| Op::Host6(address, 1));
    let gone = addresses().map(Op::Host6Gone);
    for op in entered.chain(gone) {
        kernel.tables.write(&op).expect("the kernel's maps");
    }
    kernel.read_back(&Compiler::new(Options::default()), "empty");
}
