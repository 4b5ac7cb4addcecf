//! Read-only tables, for an early judgement that leaves all records to the pod's hook.

use crate::{
    endpoint::EndpointRef,
    flow::{control::Timeouts, memory::Memory, table::BucketsFull},
    layout::{ClassId, FragmentKey, FragmentPorts, PortWord, Settings},
    tables::{Tables, policy::PolicyTables},
};

/// Read-only view of tables: writes have no effect and report success.
#[derive(Debug)]
pub(crate) struct Observer<'a, T>(pub(crate) &'a T);

impl<T: Memory> Timeouts for Observer<'_, T> {}

impl<T: Memory> Memory for Observer<'_, T> {
    #[inline(always)]
    unsafe fn load(&self, word: *const u64) -> u64 {
        // SAFETY: as the caller promises.
        unsafe { self.0.load(word) }
    }

    #[inline(always)]
    unsafe fn store(&self, _word: *mut u64, _value: u64) {}

    #[inline(always)]
    unsafe fn swap(&self, _word: *mut u64, old: u64, _new: u64) -> u64 {
        old
    }

    #[inline(always)]
    fn opaque(&self, index: usize, noise: u64) -> usize {
        self.0.opaque(index, noise)
    }
}

impl<T: PolicyTables> PolicyTables for Observer<'_, T> {
    #[inline(always)]
    fn trie_root(&self, index: u16) -> u32 {
        self.0.trie_root(index)
    }

    #[inline(always)]
    fn trie_block(&self, block: u32, index: u8) -> u32 {
        self.0.trie_block(block, index)
    }

    #[inline(always)]
    fn host6(&self, address: &[u8; 16]) -> Option<ClassId> {
        self.0.host6(address)
    }

    #[inline(always)]
    fn block6(&self, address: &[u8; 16]) -> Option<ClassId> {
        self.0.block6(address)
    }

    #[inline(always)]
    fn row_first(&self, row: u32, class: u8) -> PortWord {
        self.0.row_first(row, class)
    }

    #[inline(always)]
    fn row_blocks(&self, row: u32, index: u8) -> u32 {
        self.0.row_blocks(row, index)
    }

    #[inline(always)]
    fn row_block(&self, block: u32, index: u8) -> PortWord {
        self.0.row_block(block, index)
    }

    #[inline(always)]
    fn bitmap(&self, bitmap: u32, word: u16) -> u64 {
        self.0.bitmap(bitmap, word)
    }
}

impl<T: Tables> Tables for Observer<'_, T> {
    #[inline(always)]
    fn settings(&self) -> Option<&Settings> {
        self.0.settings()
    }

    #[inline(always)]
    fn endpoint(&self, slot: u32) -> Option<EndpointRef> {
        self.0.endpoint(slot)
    }

    #[inline(always)]
    fn bucket4(&self, index: u32) -> Option<*mut u64> {
        self.0.bucket4(index)
    }

    #[inline(always)]
    fn bucket6(&self, index: u32) -> Option<*mut u64> {
        self.0.bucket6(index)
    }

    #[inline(always)]
    fn now(&self) -> u32 {
        self.0.now()
    }

    #[inline(always)]
    fn revision(&self) -> u32 {
        self.0.revision()
    }

    #[inline(always)]
    fn fragment(&self, _key: &FragmentKey) -> Option<FragmentPorts> {
        None
    }

    #[inline(always)]
    fn class6(&self, address: [u64; 2]) -> ClassId {
        self.0.class6(address)
    }

    #[inline(always)]
    fn insert4(&self, _key: [u64; 2], _hash: u64, _flags: u16) -> Result<(), BucketsFull> {
        Ok(())
    }

    #[inline(always)]
    fn insert6(&self, _key: [u64; 4], _hash: u64, _flags: u16) -> Result<(), BucketsFull> {
        Ok(())
    }

    #[inline(always)]
    fn make_room(&self, _is_v6: bool, _endpoint: u32, _hash: u64) -> bool {
        false
    }

    #[inline(always)]
    fn remember_fragment(&self, _key: &FragmentKey, _ports: &FragmentPorts) {}
}
