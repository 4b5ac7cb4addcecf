//! Policy and endpoints that somebody else keeps in memory, before the packet path on the host.

use std::collections::BTreeMap;

use crate::{
    conntrack::Memory,
    family::{Family as _, V6},
    host::{HostMemory, HostTables},
    layout::{
        ClassId, ENDPOINT_ADDRS, ENDPOINT_SLOTS, EP_ADDR4_SHIFT, EP_ADDR6_SHIFT, Endpoint,
        FragmentKey, FragmentPorts, PortWord, Settings,
    },
    policy::PolicyTables,
    tables::{EndpointRef, Tables},
    uplink::Locals,
};

/// A node's tables: what policy compiles to, and the flows beside it.
#[derive(Debug)]
pub struct NodeTables<'a, P> {
    /// Classes and rows.
    pub policy: &'a P,
    /// Endpoints by slot.
    pub endpoints: &'a BTreeMap<u32, Endpoint>,
    /// Flows, fragments, settings and the clock.
    pub flows: &'a HostTables,
}

/// What a slot without an endpoint holds.
static FREE: Endpoint = Endpoint {
    ifindex: 0,
    id: 0,
    rows: 0,
    flags: 0,
    reserved: 0,
    uid_hash: 0,
    addr4: [0; ENDPOINT_ADDRS],
    addr6: [[0; 16]; ENDPOINT_ADDRS],
    #[cfg(feature = "other-layout")]
    other: 0,
};

impl<P> NodeTables<'_, P> {
    /// The only endpoint slot with a valid address slot for which this holds.
    fn slot_of(&self, holds: impl Fn(usize, &Endpoint) -> bool, shift: u32) -> Option<u32> {
        let valid = |endpoint: &Endpoint, slot: usize| {
            endpoint.flags >> (shift + slot as u32) & 1 != 0 && holds(slot, endpoint)
        };
        let owns = |endpoint: &Endpoint| (0..ENDPOINT_ADDRS).any(|slot| valid(endpoint, slot));
        let mut all = self.endpoints.iter().filter(|(_, endpoint)| owns(endpoint));
        let (slot, _) = all.next()?;
        all.next().is_none().then_some(*slot)
    }
}

impl<P> Locals for NodeTables<'_, P> {
    fn local4(&self, address: u32) -> Option<u32> {
        self.slot_of(|slot, endpoint| endpoint.addr4[slot] == address, EP_ADDR4_SHIFT)
    }

    fn local6(&self, address: [u64; 2]) -> Option<u32> {
        let address = V6::octets(address);
        self.slot_of(|slot, endpoint| endpoint.addr6[slot] == address, EP_ADDR6_SHIFT)
    }
}

impl<P: PolicyTables> PolicyTables for NodeTables<'_, P> {
    fn trie_root(&self, index: u16) -> u32 {
        self.policy.trie_root(index)
    }

    fn trie_block(&self, block: u32, index: u8) -> u32 {
        self.policy.trie_block(block, index)
    }

    fn host6(&self, address: &[u8; 16]) -> Option<ClassId> {
        self.policy.host6(address)
    }

    fn cidr6(&self, address: &[u8; 16]) -> Option<ClassId> {
        self.policy.cidr6(address)
    }

    fn row_first(&self, row: u32, class: u8) -> PortWord {
        self.policy.row_first(row, class)
    }

    fn row_blocks(&self, row: u32, index: u8) -> u32 {
        self.policy.row_blocks(row, index)
    }

    fn row_block(&self, block: u32, index: u8) -> PortWord {
        self.policy.row_block(block, index)
    }

    fn bitmap(&self, bitmap: u32, word: u16) -> u64 {
        self.policy.bitmap(bitmap, word)
    }
}

impl<P> Memory for NodeTables<'_, P> {
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

impl<P: PolicyTables> Tables for NodeTables<'_, P> {
    fn settings(&self) -> Option<&Settings> {
        self.flows.settings()
    }

    fn endpoint(&self, slot: u32) -> Option<EndpointRef> {
        let endpoint = self.endpoints.get(&slot).unwrap_or(&FREE);
        // SAFETY: lives as long as the tables.
        (slot < ENDPOINT_SLOTS).then(|| unsafe { EndpointRef::new(endpoint) })
    }

    fn bucket4(&self, index: u32) -> Option<*mut u64> {
        self.flows.bucket4(index)
    }

    fn bucket6(&self, index: u32) -> Option<*mut u64> {
        self.flows.bucket6(index)
    }

    fn now(&self) -> u32 {
        self.flows.now()
    }

    fn revision(&self) -> u32 {
        self.flows.revision()
    }

    fn fragment(&self, key: &FragmentKey) -> Option<FragmentPorts> {
        self.flows.fragment(key)
    }

    fn remember_fragment(&self, key: &FragmentKey, ports: &FragmentPorts) {
        self.flows.remember_fragment(key, ports);
    }
}
