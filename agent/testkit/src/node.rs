//! All tables of a node in memory: compiled policy and flows.

use std::borrow::{Borrow, BorrowMut};
use std::sync::LazyLock;
use std::sync::atomic::Ordering;

use netpold_core::model::Direction;
use netpold_ebpf::direction::{Egress, Ingress};
use netpold_ebpf::endpoint::EndpointRef;
use netpold_ebpf::flow::control::Timeouts;
use netpold_ebpf::flow::memory::Memory;
use netpold_ebpf::host::HostMemory;
use netpold_ebpf::judge::decide::decide;
use netpold_ebpf::judge::hook::PacketHook;
use netpold_ebpf::layout::{
    ClassId, ENDPOINT_ADDRS, ENDPOINT_SLOTS, EP_ADDR4_SHIFT, EP_ADDR6_SHIFT, Endpoint, FragmentKey,
    FragmentPorts, PortWord, Settings, endpoint_slot,
};
use netpold_ebpf::observe::{self, RecordResult, Records, Unrecorded};
use netpold_ebpf::packet::bytes::Bytes;
use netpold_ebpf::packet::family::{Family as _, V4, V6};
use netpold_ebpf::reason::Reason;
use netpold_ebpf::tables::local_endpoints::LocalEndpoints;
use netpold_ebpf::tables::policy::PolicyTables;
use netpold_ebpf::tables::{Tables, find_slot};
use netpold_ebpf::verdict::PacketVerdict;

use crate::flows::MemoryFlowTables;
use crate::memory::MemoryTables;

/// A node's tables, owned or borrowed.
#[derive(Debug)]
pub struct NodeTables<P = MemoryTables, F = MemoryFlowTables> {
    /// Classes, rows and endpoints.
    pub policy: P,
    /// Flows, fragments, settings and the clock.
    pub flows: F,
}

/// Content of a free slot.
static FREE: LazyLock<Endpoint> = LazyLock::new(Endpoint::default);

impl NodeTables {
    /// Tables to fill by hand, with the reserved elements and `buckets` conntrack buckets (a power of two).
    #[must_use]
    pub fn new(buckets: u32) -> Self {
        Self { policy: MemoryTables::with_reserved(), flows: MemoryFlowTables::new(buckets) }
    }
}

impl<P: BorrowMut<MemoryTables>, F: BorrowMut<MemoryFlowTables>> NodeTables<P, F> {
    /// Writes an endpoint to the first slot of its interface.
    pub fn set_endpoint(&mut self, endpoint: Endpoint) {
        let slot = endpoint_slot(endpoint.ifindex, 0);
        self.policy.borrow_mut().endpoints.insert(slot, endpoint);
        self.changed();
    }

    /// The endpoint of an interface, for changes in place.
    ///
    /// # Panics
    /// There is no such endpoint.
    pub fn endpoint_mut(&mut self, ifindex: u32) -> &mut Endpoint {
        let mut endpoints = self.policy.borrow_mut().endpoints.values_mut();
        endpoints.find(|endpoint| endpoint.ifindex == ifindex).expect("an endpoint")
    }

    /// Must be called after changes of policy: invalidates the verdicts in conntrack entries.
    pub fn changed(&mut self) {
        let settings = &mut self.flows.borrow_mut().settings;
        settings.revision = settings.revision.wrapping_add(1);
    }
}

impl<P: Borrow<MemoryTables>, F: Borrow<MemoryFlowTables>> NodeTables<P, F> {
    /// Verdict of a pod's hook about a frame.
    pub fn judge(&self, direction: Direction, hook: PacketHook, frame: &[u8]) -> PacketVerdict {
        match direction {
            Direction::Ingress => decide::<Ingress, _, _>(&frame, self, hook),
            Direction::Egress => decide::<Egress, _, _>(&frame, self, hook),
        }
    }

    /// Verdict of a pod's hook about a frame, which is recorded as the kernel's programs do.
    pub fn judge_and_record(
        &self,
        direction: Direction,
        hook: PacketHook,
        frame: &[u8],
    ) -> PacketVerdict {
        let verdict = self.judge(direction, hook, frame);
        let endpoint = find_slot(self, hook.ifindex);
        if verdict.reason() == Reason::NotIsolated
            && endpoint.is_some_and(|(_, endpoint)| observe::is_due(endpoint))
        {
            match direction {
                Direction::Ingress => self.record::<Ingress>(hook, frame),
                Direction::Egress => self.record::<Egress>(hook, frame),
            }
        }
        verdict
    }

    fn record<D: netpold_ebpf::direction::PodDirection>(&self, hook: PacketHook, frame: &[u8]) {
        let Some((slot, endpoint)) = find_slot(self, hook.ifindex) else { return };
        let origin = |flags| observe::with_origin(flags, hook, self.settings());
        let added = match observe::find_record::<D, _, _>(&frame, self, endpoint) {
            RecordResult::Done | RecordResult::Deferred => true,
            RecordResult::New4(new) => {
                let new = Unrecorded { flags: origin(new.flags), ..new };
                observe::add::<V4, _, _>(self, (slot, endpoint), new)
            }
            RecordResult::New6(new) => {
                let new = Unrecorded { flags: origin(new.flags), ..new };
                observe::add::<V6, _, _>(self, (slot, endpoint), new)
            }
        };
        if !added {
            self.flows().count_unrecorded();
        }
    }

    fn policy(&self) -> &MemoryTables {
        self.policy.borrow()
    }

    fn flows(&self) -> &MemoryFlowTables {
        self.flows.borrow()
    }

    /// The endpoint slot with a valid address slot for which `holds` is true, if it is the only one.
    fn slot_of(&self, holds: impl Fn(usize, &Endpoint) -> bool, shift: u32) -> Option<u32> {
        let valid = |endpoint: &Endpoint, slot: usize| {
            endpoint.flags >> (shift + slot as u32) & 1 != 0 && holds(slot, endpoint)
        };
        let owns = |endpoint: &Endpoint| (0..ENDPOINT_ADDRS).any(|slot| valid(endpoint, slot));
        let mut all = self.policy().endpoints.iter().filter(|(_, endpoint)| owns(endpoint));
        let (slot, _) = all.next()?;
        all.next().is_none().then_some(*slot)
    }
}

impl<P: Borrow<MemoryTables>, F: Borrow<MemoryFlowTables>> LocalEndpoints for NodeTables<P, F> {
    fn local4(&self, address: u32) -> Option<u32> {
        self.slot_of(|slot, endpoint| endpoint.addr4[slot] == address, EP_ADDR4_SHIFT)
    }

    fn local6(&self, address: [u64; 2]) -> Option<u32> {
        let address = V6::octets(address);
        self.slot_of(|slot, endpoint| endpoint.addr6[slot] == address, EP_ADDR6_SHIFT)
    }
}

impl<P: Borrow<MemoryTables>, F> PolicyTables for NodeTables<P, F> {
    fn trie_root(&self, index: u16) -> u32 {
        PolicyTables::trie_root(self.policy.borrow(), index)
    }

    fn trie_block(&self, block: u32, index: u8) -> u32 {
        self.policy.borrow().trie_block(block, index)
    }

    fn host6(&self, address: &[u8; 16]) -> Option<ClassId> {
        self.policy.borrow().host6(address)
    }

    fn block6(&self, address: &[u8; 16]) -> Option<ClassId> {
        self.policy.borrow().block6(address)
    }

    fn row_first(&self, row: u32, class: u8) -> PortWord {
        self.policy.borrow().row_first(row, class)
    }

    fn row_blocks(&self, row: u32, index: u8) -> u32 {
        PolicyTables::row_blocks(self.policy.borrow(), row, index)
    }

    fn row_block(&self, block: u32, index: u8) -> PortWord {
        self.policy.borrow().row_block(block, index)
    }

    fn bitmap(&self, bitmap: u32, word: u16) -> u64 {
        self.policy.borrow().bitmap(bitmap, word)
    }
}

impl<P, F> Timeouts for NodeTables<P, F> {}

impl<P, F> Memory for NodeTables<P, F> {
    unsafe fn load(&self, word: *const u64) -> u64 {
        // SAFETY: as the caller promises.
        unsafe { HostMemory.load(word) }
    }

    unsafe fn store(&self, word: *mut u64, value: u64) {
        // SAFETY: as the caller promises.
        unsafe { HostMemory.store(word, value) }
    }

    unsafe fn swap(&self, word: *mut u64, old: u64, new: u64) -> u64 {
        // SAFETY: as the caller promises.
        unsafe { HostMemory.swap(word, old, new) }
    }
}

impl<P: Borrow<MemoryTables>, F: Borrow<MemoryFlowTables>> Tables for NodeTables<P, F> {
    fn doubted_at(&self, endpoint: u32) -> Option<*mut u64> {
        self.flows().doubted_at(endpoint)
    }

    fn settings(&self) -> Option<&Settings> {
        Some(&self.flows().settings)
    }

    fn endpoint(&self, slot: u32) -> Option<EndpointRef> {
        let endpoint = self.policy().endpoints.get(&slot).unwrap_or(&FREE);
        // SAFETY: lives as long as the tables.
        (slot < ENDPOINT_SLOTS).then(|| unsafe { EndpointRef::new(endpoint) })
    }

    fn bucket4(&self, index: u32) -> Option<*mut u64> {
        self.flows().bucket4(index)
    }

    fn bucket6(&self, index: u32) -> Option<*mut u64> {
        self.flows().bucket6(index)
    }

    fn now(&self) -> u32 {
        self.flows().now.load(Ordering::Acquire)
    }

    fn revision(&self) -> u32 {
        self.flows().settings.revision
    }

    fn fragment(&self, key: &FragmentKey) -> Option<FragmentPorts> {
        self.flows().fragment(key)
    }

    fn remember_fragment(&self, key: &FragmentKey, ports: &FragmentPorts) {
        self.flows().remember_fragment(key, ports);
    }
}

impl<P: Borrow<MemoryTables>, F: Borrow<MemoryFlowTables>> Records for NodeTables<P, F> {
    fn record_bucket4(&self, index: u32) -> Option<*mut u64> {
        self.flows().record_bucket4(index)
    }

    fn record_bucket6(&self, index: u32) -> Option<*mut u64> {
        self.flows().record_bucket6(index)
    }

    fn added(&self, slot: u32) -> Option<*mut u64> {
        self.flows().added(slot)
    }
}

/// A frame as XDP reads it: plain packets, also with VLAN tags.
#[derive(Clone, Copy, Debug)]
pub struct Plain<'a>(pub &'a [u8]);

impl<'a> Bytes for Plain<'a> {
    const PLAIN: bool = true;
    const TAGS: bool = true;
    const SCTP: bool = true;
    type Window = &'a [u8];

    fn length(&self) -> u32 {
        self.0.length()
    }

    fn window<const N: usize>(&self, offset: u32) -> Option<&'a [u8]> {
        self.0.window::<N>(offset)
    }
}
