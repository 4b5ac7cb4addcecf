//! Updates on the kernel's own maps, operation by operation: a packet given to the real programs
//! after each is judged as before the update or as after it.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

use aya::EbpfLoader;
use netpold::dataplane::bpffs::PinRoot;
use netpold::dataplane::direct::Offered;
use netpold::dataplane::tables::Tables;
use netpold::dataplane::test_run::{Run, run};
use netpold_core::compile::{CheckSource, Compiler, Options};
use netpold_core::generate::{Choices, Cluster, NODE};
use netpold_core::memory::MemoryTables;
use netpold_core::model::Direction;
use netpold_core::ops::Apply;
use netpold_ebpf::conntrack::timeouts;
use netpold_ebpf::layout::Settings;
use netpold_testbed::{Netns, Unmount};

use super::packets::{SYN, TCP, ether, tcp};
use super::world::{PASS, UPLINK, program};

/// Chains of states, and updates in each.
const CHAINS: u64 = 2;
const UPDATES: u32 = 8;
const PORTS: [u16; 2] = [80, 8080];

/// A connection's first packet, which no flow answers for.
struct Packet {
    ifindex: u32,
    direction: Direction,
    remote: IpAddr,
    port: u16,
    frame: Vec<u8>,
}

impl Packet {
    /// What memory's tables say; `None` where there is no endpoint: it passes.
    fn allowed(&self, tables: &MemoryTables) -> bool {
        tables.allows(self.ifindex, self.direction, self.remote, TCP, self.port).unwrap_or(true)
    }
}

fn frame(from: IpAddr, to: IpAddr, port: u16) -> Option<Vec<u8>> {
    let segment = tcp(40_000, port, SYN);
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

/// Packets between the interfaces of two states and every address of either.
fn packets(states: [&Cluster; 2]) -> Vec<Packet> {
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
        for local in &interface.addresses {
            for remote in remotes.iter().filter(|remote| !interface.addresses.contains(remote)) {
                for port in PORTS {
                    if !seen.insert((interface.index, *local, *remote, port)) {
                        continue;
                    }
                    for direction in Direction::BOTH {
                        let (from, to) = match direction {
                            Direction::Ingress => (*remote, *local),
                            Direction::Egress => (*local, *remote),
                        };
                        let Some(frame) = frame(from, to, port) else { continue };
                        let (ifindex, remote) = (interface.index, *remote);
                        packets.push(Packet { ifindex, direction, remote, port, frame });
                    }
                }
            }
        }
    }
    packets
}

/// The programs and the tables that they read.
struct Kernel {
    tables: Tables,
    programs: [OwnedFd; 2],
}

impl Kernel {
    fn load() -> Self {
        let object = netpold::object::object().expect("the eBPF object");
        let mut loader = EbpfLoader::new();
        loader.map_max_entries("CT4", 64).map_max_entries("CT6", 64);
        let mounted = Unmount(tempfile::tempdir().expect("a directory"));
        let pins = PinRoot::open(mounted.0.path()).expect("a BPF file system");
        let offered = Offered::to(&mut loader, &pins).expect("tables at fixed addresses");
        let mut bpf = loader.load(object).expect("maps");
        drop(offered);
        let programs = ["netpold_ingress", "netpold_egress"].map(|name| {
            let program = program(&mut bpf, name);
            program.load().expect(name);
            program.fd().expect(name).as_fd().try_clone_to_owned().expect(name)
        });
        let tables = Tables::open(&mut bpf).expect("tables");
        let settings = Settings {
            ct4_mask: 63,
            ct6_mask: 63,
            timeouts: timeouts(1000),
            refresh_after: 1000,
            ..Settings::default()
        };
        tables.write_settings(&settings).expect("settings");
        Self { tables, programs }
    }

    fn passes(&self, packet: &Packet) -> bool {
        let program = &self.programs[packet.direction as usize];
        let come_from = match packet.direction {
            Direction::Ingress => UPLINK,
            Direction::Egress => packet.ifindex,
        };
        let once =
            Run { ifindex: packet.ifindex, ingress_ifindex: come_from, ..Run::once(&packet.frame) };
        run(program.as_fd(), &once).expect("a test run").retval == PASS
    }
}

/// A namespace with interfaces of the indexes that a test run names.
fn namespace(indexes: &BTreeSet<u32>) -> Netns {
    let netns = Netns::create("updates").expect("a namespace");
    let lines =
        indexes.iter().map(|index| format!("link add name d{index} index {index} type bridge\n"));
    netns.ip(&lines.collect::<String>()).expect("interfaces");
    netns
}

/// One chain of updates; how many operations and judgements that were.
fn chain(seed: u64) -> (usize, usize) {
    let mut choices = Choices::from_seed(seed);
    let mut states = vec![Cluster::default(), Cluster::generate(&mut choices)];
    for _ in 0..UPDATES {
        let next = states[states.len() - 1].mutate(&mut choices);
        states.push(next);
    }
    let indexes = states.iter().flat_map(Cluster::interfaces).map(|i| i.index).collect();
    let netns = namespace(&indexes);
    let mut kernel = Kernel::load();
    // Interfaces have addresses here that are no pod's.
    let check_source = CheckSource::Off;
    let options = Options { node: NODE.into(), check_source, ..Options::default() };
    let mut compiler = Compiler::new(options);
    let mut memory = MemoryTables::new();
    let (mut operations, mut judged) = (0, 0);
    for pair in states.windows(2) {
        let packets = packets([&pair[0], &pair[1]]);
        let before: Vec<bool> = packets.iter().map(|packet| packet.allowed(&memory)).collect();
        pair[0].changes_to(&pair[1]).into_iter().for_each(|change| compiler.apply(change));
        let ops = compiler.update().expect("it fits");
        ops.iter().for_each(|op| memory.apply(op).expect("memory"));
        let after: Vec<bool> = packets.iter().map(|packet| packet.allowed(&memory)).collect();
        for (number, op) in ops.iter().enumerate() {
            kernel.tables.apply(op).expect("the kernel's maps");
            let seen: Vec<bool> = netns
                .run(|| packets.iter().map(|packet| kernel.passes(packet)).collect())
                .expect("the namespace");
            for (index, passes) in seen.into_iter().enumerate() {
                let packet = &packets[index];
                assert!(
                    passes == before[index] || passes == after[index],
                    "seed {seed}, operation {number} of {}: {} {} of {} port {}: {passes}",
                    ops.len(),
                    packet.ifindex,
                    packet.direction,
                    packet.remote,
                    packet.port
                );
                assert!(
                    number + 1 < ops.len() || passes == after[index],
                    "seed {seed}, at the end: {} {} of {} port {}: {passes}",
                    packet.ifindex,
                    packet.direction,
                    packet.remote,
                    packet.port
                );
            }
            judged += packets.len();
        }
        operations += ops.len();
        compiler.grace_passed();
    }
    (operations, judged)
}

#[test]
fn every_operation_shows_before_or_after() {
    if !netpold_testbed::require_root("every_operation_shows_before_or_after") {
        return;
    }
    let done = (0..CHAINS).map(chain).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    println!("{} operations, {} packets judged", done.0, done.1);
    assert!(done.0 > 100 && done.1 > 5_000, "the sample is too small: {done:?}");
}
