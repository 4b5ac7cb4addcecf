//! Single entries of the flow tables.

use aya::Pod;
use netpold_ebpf::flow::control::Control;
use netpold_ebpf::flow::key::{FlowTableKey, choices, hash, key6_words, words4};
use netpold_ebpf::layout::CT_WAYS;
use std::sync::atomic::{AtomicU64, Ordering};

use super::key::FlowKey;
use super::sweeper::Sweeper;
use crate::bpf::mmap::MappedArray;

/// State of a flow's two buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketState {
    /// The flow has an entry.
    Taken,
    /// The flow has no entry, and a way is free without moving another entry.
    Free,
    /// The flow has no entry, and no way is free.
    Full,
}

impl Sweeper {
    /// Returns whether a flow has an entry, or room for one.
    #[must_use]
    pub fn place(&self, key: &FlowKey) -> BucketState {
        match key {
            FlowKey::V4(key) => place(words4(key), &self.buckets4(words4(key))),
            FlowKey::V6(key) => place(key6_words(key), &self.buckets6(key6_words(key))),
        }
    }

    /// Removes the entry of a flow, if any.
    pub fn remove(&self, key: &FlowKey) {
        match key {
            FlowKey::V4(key) => remove(words4(key), &self.buckets4(words4(key))),
            FlowKey::V6(key) => remove(key6_words(key), &self.buckets6(key6_words(key))),
        }
    }

    fn buckets4(&self, key: [u64; 2]) -> Vec<&[AtomicU64]> {
        buckets(&self.four, key, choices(hash(&self.settings, &key), self.settings.ct4_mask))
    }

    fn buckets6(&self, key: [u64; 4]) -> Vec<&[AtomicU64]> {
        buckets(&self.six, key, choices(hash(&self.settings, &key), self.settings.ct6_mask))
    }
}

/// Returns the ways of a flow's buckets.
fn buckets<K: FlowTableKey, B: Pod>(
    table: &MappedArray<B>,
    _: K,
    numbers: [u32; 2],
) -> Vec<&[AtomicU64]> {
    let words = table.words().unwrap_or_default();
    let size = CT_WAYS * K::STRIDE;
    let bucket = |number: u32| words.get(number as usize * size..(number as usize + 1) * size);
    numbers.into_iter().filter_map(bucket).flat_map(|it| it.chunks_exact(K::STRIDE)).collect()
}

/// Returns whether a way holds the flow, and the control word of the way.
fn has<K: FlowTableKey>(key: &K, way: &[AtomicU64]) -> (bool, Control) {
    let control = Control(way[0].load(Ordering::Acquire));
    let same = (0..K::WORDS).all(|at| way[1 + at].load(Ordering::Acquire) == key.word(at));
    (control.is_valid() && same, control)
}

fn place<K: FlowTableKey>(key: K, ways: &[&[AtomicU64]]) -> BucketState {
    let found: Vec<(bool, Control)> = ways.iter().map(|way| has(&key, way)).collect();
    match () {
        () if found.iter().any(|(has, _)| *has) => BucketState::Taken,
        () if found.iter().any(|(_, control)| control.is_vacant()) => BucketState::Free,
        () => BucketState::Full,
    }
}

fn remove<K: FlowTableKey>(key: K, ways: &[&[AtomicU64]]) {
    for way in ways {
        let (has, control) = has(&key, way);
        if has {
            // Frees the way as a sweep does; a flow with a packet since then stays.
            let free = control.freed().0;
            let _ = way[0].compare_exchange(control.0, free, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}
