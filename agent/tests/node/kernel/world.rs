//! One pod's tables, in the kernel and in plain memory; both judge every packet.

use std::os::fd::{AsFd, AsRawFd};

use aya::{
    Ebpf, EbpfLoader, Pod,
    maps::{Array, HashMap, Map, MapData, PerCpuArray},
    programs::SchedClassifier,
};
use netpold_dataplane::bpf::test_run::{self, Run, run};
use netpold_dataplane::{
    global_sections::{self, Section},
    ipv6_blocks::Ipv6Blocks,
    ipv6_hosts::Ipv6Hosts,
    names,
};
use netpold_ebpf::{
    judge::hook::PacketHook,
    layout::{
        ANY_OBSERVED, ANY_OVER_TCP, Counters, ENDPOINT_SLOTS, EP_OBSERVE, Endpoint, NameKey, Row,
        endpoint_slot, resolves,
    },
    reason::{Reason, counter},
};
use netpold_testkit::node::NodeTables;

pub(crate) use netpold_testkit::one_pod::{
    DENY_ROW, Direction, EGRESS_ROW, IFINDEX, INGRESS_ROW, tables,
};

use super::early;

/// Receiving interface of packets to the pod, except packets of the node itself.
pub(crate) const UPLINK: u32 = 2;
pub(crate) const PASS: u32 = u32::MAX;
pub(crate) const DROP: u32 = 2;

/// All programs of the object.
pub(crate) const PROGRAMS: [&str; 9] = [
    "netpold_ingress",
    "netpold_egress",
    "netpold_node",
    "netpold_node_ip",
    "netpold_bridge",
    "netpold_unmark",
    "netpold_tunnel",
    "netpold_clock",
    "netpold_empty",
];

pub(crate) struct World {
    pub(crate) host: NodeTables,
    pub(crate) bpf: Ebpf,
}

impl World {
    /// Creates a pod that admits the client to TCP 80 and UDP 53, and the friend to everything; it may reach the
    /// server on TCP 443, UDP 53 and by other protocols. `buckets` is the size of the flow tables.
    pub(crate) fn new(buckets: u32) -> Self {
        Self::with(tables(buckets), buckets)
    }

    /// Creates a world with tables of the pod behind [`IFINDEX`]; `buckets` is the size of its flow tables.
    pub(crate) fn with(host: NodeTables, buckets: u32) -> Self {
        let object = netpold_dataplane::object::object().expect("the eBPF object");
        Self::load(object, &PROGRAMS, host, buckets)
    }

    /// Creates the pod of [`World::new`] with the given programs of an object.
    pub(crate) fn of(object: &[u8], programs: &[&str], buckets: u32) -> Self {
        Self::load(object, programs, tables(buckets), buckets)
    }

    fn load(object: &[u8], programs: &[&str], host: NodeTables, buckets: u32) -> Self {
        let mut bpf = EbpfLoader::new()
            .map_max_entries("CT4", buckets)
            .map_max_entries("CT6", buckets)
            .load(object)
            .expect("maps");
        for name in programs {
            program(&mut bpf, name).load().unwrap_or_else(|error| panic!("{name}: {error:?}"));
        }
        let mut world = Self { host, bpf };
        world.prepare_early();
        world.write();
        world
    }

    /// Copies the host's tables into the kernel's.
    fn write(&mut self) {
        let Self { host, bpf } = self;
        set_section(bpf, global_sections::TRIE_ROOT, &host.policy.trie_root);
        set_all(bpf, "TRIE_BLOCKS", &host.policy.trie_blocks.to_vec([0; 256]));
        set_all(bpf, "ROWS", &host.policy.rows.to_vec(Row::EMPTY));
        set_all(bpf, "ROW_BLOCKS", &host.policy.row_blocks.to_vec([0; 256]));
        set_all(bpf, "PORT_BITMAPS", &host.policy.bitmaps.to_vec([0; 1024]));
        let hosts = Ipv6Hosts::open(bpf).expect("HOSTS6");
        host.flows.settings.ipv6_hosts_mask = hosts.mask();
        for (address, class) in &host.policy.hosts6 {
            let set = hosts.set(&host.flows.settings, *address, *class);
            assert_eq!(set.expect("HOSTS6"), Ok(()), "it has room");
        }
        let mut blocks = Ipv6Blocks::open(bpf).expect("BLOCKS6");
        for (net, class) in host.policy.blocks6() {
            blocks.set(net, class).expect("BLOCKS6");
        }
        host.flows.settings.ipv6_blocks_root = blocks.root();
        for ((list, name), groups) in &host.policy.names {
            let key = NameKey { list: *list, hash: names::hash(&host.flows.settings, name) };
            hash_map::<NameKey>(bpf, "NAMES").insert(key, groups, 0).expect("NAMES");
        }
        for (resolver, over_tcp) in &host.policy.resolvers {
            let mut resolvers = hash_map::<[u8; 16]>(bpf, "RESOLVERS");
            resolvers.insert(names::mapped(*resolver), resolves(*over_tcp), 0).expect("RESOLVERS");
        }
        self.write_endpoint();
    }

    fn write_endpoint(&mut self) {
        let (slot, twin) = early::twin(self.host.policy.slot(endpoint_slot(IFINDEX, 0)));
        let mut endpoints = vec![Endpoint::default(); ENDPOINT_SLOTS as usize];
        for (slot, endpoint) in &self.host.policy.endpoints {
            endpoints[*slot as usize] = *endpoint;
        }
        endpoints[slot] = twin;
        let is_observed = endpoints.iter().any(|endpoint| endpoint.flags & EP_OBSERVE != 0);
        let over_tcp = self.host.policy.resolvers.values().any(|over_tcp| *over_tcp);
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        self.host.flows.settings.any_endpoint =
            flag(is_observed, ANY_OBSERVED) | flag(over_tcp, ANY_OVER_TCP);
        set_section(&mut self.bpf, global_sections::ENDPOINTS, &endpoints);
        set_section(&mut self.bpf, global_sections::SETTINGS, &[self.host.flows.settings]);
    }

    /// Adds or replaces an endpoint.
    pub(crate) fn set_endpoint(&mut self, endpoint: Endpoint) {
        self.host.set_endpoint(endpoint);
        self.write_endpoint();
    }

    /// Replaces the pod's rows.
    pub(crate) fn set_rows(&mut self, ingress: u32, egress: u32) {
        self.host.endpoint_mut(IFINDEX).rows = Endpoint::pack_rows(ingress, egress);
        self.host.changed();
        self.write_endpoint();
    }

    /// Sets the flags of programs that run before or behind these.
    pub(crate) fn set_handover(&mut self, handover: u32) {
        self.host.flows.settings.handover = handover;
        self.write_endpoint();
    }

    /// Turns the pod into another pod, without the old pod's flows.
    pub(crate) fn next_pod(&mut self) {
        self.host.endpoint_mut(IFINDEX).id += 1;
        self.set_rows(INGRESS_ROW, EGRESS_ROW);
    }

    /// Judges a frame by the host's code and by the kernel's program, and asserts equal verdicts.
    pub(crate) fn judge(&mut self, direction: Direction, came_from: u32, frame: &[u8]) -> Reason {
        self.judge_and_read(direction, came_from, frame).0
    }

    /// [`World::judge`]; also whether the packet passes, see [`NodeTables::judge_by_names`].
    pub(crate) fn judge_and_read(
        &mut self,
        direction: Direction,
        came_from: u32,
        frame: &[u8],
    ) -> (Reason, bool) {
        let early = self.judge_early(direction, came_from, frame);
        let hook = PacketHook { ifindex: IFINDEX, ingress_ifindex: came_from };
        let (reason, passes) = self.host.judge_by_names(direction, hook, frame);
        let name = match direction {
            Direction::Ingress => "netpold_ingress",
            Direction::Egress => "netpold_egress",
        };
        let before = self.dropped(direction, reason);
        // The pod's own program has judged packets that return to the pod.
        let is_hairpin = direction == Direction::Ingress && came_from == IFINDEX;
        let mark = if is_hairpin { self.host.flows.settings.proof } else { 0 };
        let once = Run { ingress_ifindex: came_from, mark, ..Run::once(frame) };
        let fd = program(&mut self.bpf, name).fd().expect(name).as_fd().try_clone_to_owned();
        let answer = run(fd.expect(name).as_fd(), &once).expect(name);
        let expected = if passes { PASS } else { DROP };
        assert_eq!(answer.retval, expected, "{name}: on the host {reason:?}, of {frame:02x?}");
        if reason.is_drop() {
            assert_eq!(self.dropped(direction, reason), before + 1, "{name}: {reason:?} counted");
        }
        early.iter().for_each(|verdict| verdict.assert_agrees(reason, frame));
        (reason, passes)
    }

    pub(crate) fn ingress(&mut self, frame: &[u8]) -> Reason {
        self.judge(Direction::Ingress, UPLINK, frame)
    }

    pub(crate) fn egress(&mut self, frame: &[u8]) -> Reason {
        self.judge(Direction::Egress, IFINDEX, frame)
    }

    pub(crate) fn dropped(&self, direction: Direction, reason: Reason) -> u64 {
        self.counted(counter(direction == Direction::Egress, reason))
    }

    pub(crate) fn counted(&self, index: u32) -> u64 {
        let counters: PerCpuArray<&MapData, Counters> =
            PerCpuArray::try_from(self.bpf.map("COUNTERS").expect("COUNTERS")).expect("COUNTERS");
        let counters = counters.get(&0, 0).expect("COUNTERS");
        counters.iter().map(|cpu| cpu.packets[index as usize]).sum()
    }
}

pub(crate) fn program<'a>(bpf: &'a mut Ebpf, name: &str) -> &'a mut SchedClassifier {
    bpf.program_mut(name).expect(name).try_into().expect(name)
}

/// Writes a whole table at a fixed address. The table is too large for the stack, from which aya's maps take values.
fn set_section<T: Pod>(bpf: &mut Ebpf, section: Section, content: &[T]) {
    const MAP_UPDATE_ELEM: u32 = 2;
    let Some(Map::Array(map)) = bpf.map(section.section) else { panic!("{}", section.name) };
    let value_size = map.info().expect(section.name).value_size() as usize;
    assert_eq!(value_size, size_of_val(content), "{}", section.name);
    let (fd, index) = (map.fd().as_fd().as_raw_fd(), 0_u32);
    let mut attributes =
        [u64::from(fd.cast_unsigned()), (&raw const index) as u64, content.as_ptr() as u64, 0];
    // SAFETY: the attributes of BPF_MAP_UPDATE_ELEM; index and content have the sizes of the map.
    let result = unsafe { test_run::bpf(MAP_UPDATE_ELEM, &mut attributes) };
    assert_eq!(result.expect(section.name), 0);
}

fn hash_map<'b, K: Pod>(bpf: &'b mut Ebpf, name: &str) -> HashMap<&'b mut MapData, K, u32> {
    HashMap::try_from(bpf.map_mut(name).expect(name)).expect(name)
}

fn set<T: Pod>(bpf: &mut Ebpf, map: &str, index: u32, value: T) {
    let mut array: Array<&mut MapData, T> =
        Array::try_from(bpf.map_mut(map).expect(map)).expect(map);
    array.set(index, value, 0).expect(map);
}

fn set_all<T: Pod>(bpf: &mut Ebpf, map: &str, values: &[T]) {
    for (index, value) in values.iter().enumerate() {
        set(bpf, map, index as u32, *value);
    }
}
