//! Compiled tables as input of `decide`, the judgement that the kernel's programs run.

use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;

use netpold_core::compile::DesiredTables;
use netpold_core::model::Direction;
use netpold_ebpf::direction::{Egress, Ingress};
use netpold_ebpf::endpoint::{EndpointRef, Rows};
use netpold_ebpf::flow::control::Timeouts;
use netpold_ebpf::flow::memory::Memory;
use netpold_ebpf::host::HostMemory;
use netpold_ebpf::judge::decide::decide;
use netpold_ebpf::judge::hook::PacketHook;
use netpold_ebpf::layout::{
    CT_WAYS, ClassId, Ct6Way, ENDPOINT_SLOTS, Endpoint, FragmentKey, FragmentPorts, PortWord,
    Settings,
};
use netpold_ebpf::tables::Tables;
use netpold_ebpf::tables::policy::PolicyTables;
use netpold_ebpf::verdict::PacketVerdict;

/// Words of a conntrack bucket of the larger family.
const BUCKET: usize = CT_WAYS * size_of::<Ct6Way>() / 8;
/// Content of a slot without an endpoint.
static FREE: LazyLock<Endpoint> = LazyLock::new(Endpoint::default);

/// Compiled tables of a node, with an empty flow table.
#[derive(Debug)]
pub struct CompiledTables<'a> {
    policy: DesiredTables<'a>,
    settings: Settings,
    bucket: [AtomicU64; BUCKET],
}

impl<'a> CompiledTables<'a> {
    /// Creates the tables with the installed settings.
    #[must_use]
    pub fn new(policy: DesiredTables<'a>, settings: Settings) -> Self {
        let settings = Settings {
            ct4_mask: 0,
            ct6_mask: 0,
            // The first slot of an endpoint may be occupied.
            endpoint_probes: netpold_ebpf::layout::ENDPOINT_PROBES,
            ..settings
        };
        Self { policy, settings, bucket: [const { AtomicU64::new(0) }; BUCKET] }
    }

    /// Judges a frame at an interface; `came_by` is [`PacketHook::ingress_ifindex`].
    pub fn judge(
        &self,
        direction: Direction,
        ifindex: u32,
        came_by: u32,
        frame: &[u8],
    ) -> PacketVerdict {
        let hook = PacketHook { ifindex, ingress_ifindex: came_by };
        match direction {
            Direction::Ingress => decide::<Ingress, _, _>(&frame, self, hook),
            Direction::Egress => decide::<Egress, _, _>(&frame, self, hook),
        }
    }

    /// Whether rules for the egress of an endpoint have domain names. Only the programs' tables have the addresses that
    /// pods resolved.
    #[must_use]
    pub fn has_names(&self, direction: Direction, slot: Option<u32>) -> bool {
        let endpoint = slot.and_then(|slot| self.policy.endpoint(slot));
        direction == Direction::Egress
            && endpoint.is_some_and(|endpoint| Rows(endpoint.rows).has_names())
    }

    fn bucket(&self, index: u32) -> Option<*mut u64> {
        (index == 0).then(|| self.bucket.as_ptr().cast_mut().cast())
    }
}

impl PolicyTables for CompiledTables<'_> {
    fn trie_root(&self, index: u16) -> u32 {
        self.policy.trie_root(index)
    }

    fn trie_block(&self, block: u32, index: u8) -> u32 {
        self.policy.trie_block(block, index)
    }

    fn host6(&self, address: &[u8; 16]) -> Option<ClassId> {
        self.policy.host6(address)
    }

    fn block6(&self, address: &[u8; 16]) -> Option<ClassId> {
        self.policy.block6(address)
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

impl Timeouts for CompiledTables<'_> {}

impl Memory for CompiledTables<'_> {
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

impl Tables for CompiledTables<'_> {
    fn settings(&self) -> Option<&Settings> {
        Some(&self.settings)
    }

    fn endpoint(&self, slot: u32) -> Option<EndpointRef> {
        let endpoint = self.policy.endpoint(slot).unwrap_or(&FREE);
        // SAFETY: the endpoint lives as long as the tables.
        (slot < ENDPOINT_SLOTS).then(|| unsafe { EndpointRef::new(endpoint) })
    }

    fn bucket4(&self, index: u32) -> Option<*mut u64> {
        self.bucket(index)
    }

    fn bucket6(&self, index: u32) -> Option<*mut u64> {
        self.bucket(index)
    }

    fn now(&self) -> u32 {
        0
    }

    fn revision(&self) -> u32 {
        self.settings.revision
    }

    fn fragment(&self, _: &FragmentKey) -> Option<FragmentPorts> {
        None
    }

    fn remember_fragment(&self, _: &FragmentKey, _: &FragmentPorts) {}
}
