//! Imports flows tracked elsewhere into the tables.

use aya::Pod;
use netpold_ebpf::flow::control::Control;
use netpold_ebpf::flow::key::{FlowTableKey, choices, hash, key6_words, words4};
use netpold_ebpf::flow::relocate::{make_place, shift};
use netpold_ebpf::flow::table::{BucketsFull, Flow};
use netpold_ebpf::host::HostMemory;
use netpold_ebpf::layout::CT_WAYS;

use super::key::FlowKey;
use super::sweeper::Sweeper;
use crate::bpf::mmap::MappedArray;

/// A flow tracked elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackedFlow {
    /// Key of the flow.
    pub key: FlowKey,
    /// State of the flow as `CT_*` flags.
    pub flags: u16,
    /// Time of the last packet, in jiffies.
    pub seen: u32,
}

impl Sweeper {
    /// Returns the time stamp of a flow that the kernel forgets in `remaining` seconds (`None`: unknown), so that the
    /// entry expires at the same time. `now` is in jiffies.
    #[must_use]
    pub fn stamp(&self, flow: &TrackedFlow, remaining: Option<u32>, now: u32) -> u32 {
        let timeout = Control::new(0, 0, flow.flags).timeout(flow.key.protocol());
        let timeout = self.settings.timeouts[timeout];
        let remaining = remaining.map_or(timeout, |seconds| seconds.saturating_mul(self.hz));
        now.wrapping_sub(timeout.saturating_sub(remaining))
    }

    /// Adds a flow, or completes its entry.
    ///
    /// # Errors
    /// [`BucketsFull`] if its buckets have no room.
    pub fn import(&self, flow: &TrackedFlow, now: u32) -> Result<(), BucketsFull> {
        self.add(flow, now, false)
    }

    /// Adds a flow of another table by which programs judged, or completes its entry. The entry gets the flow's initiator.
    ///
    /// # Errors
    /// As [`Sweeper::import`].
    pub fn migrate(&self, flow: &TrackedFlow, now: u32) -> Result<(), BucketsFull> {
        self.add(flow, now, true)
    }

    fn add(&self, flow: &TrackedFlow, now: u32, judged: bool) -> Result<(), BucketsFull> {
        match &flow.key {
            FlowKey::V4(key) => {
                let (key, mask) = (words4(key), self.settings.ct4_mask);
                self.add_to(&self.four, mask, key, flow, now, judged)
            }
            FlowKey::V6(key) => {
                let (key, mask) = (key6_words(key), self.settings.ct6_mask);
                self.add_to(&self.six, mask, key, flow, now, judged)
            }
        }
    }

    fn add_to<K: FlowTableKey, B: Pod>(
        &self,
        table: &MappedArray<B>,
        mask: u32,
        key: K,
        flow: &TrackedFlow,
        now: u32,
        judged: bool,
    ) -> Result<(), BucketsFull> {
        let size = CT_WAYS * K::STRIDE;
        let words = table.words().unwrap_or_default();
        let bucket = |index: u32| {
            let start = index as usize * size;
            let words = words.get(start..start + size).ok_or(BucketsFull)?;
            Ok(words.as_ptr().cast_mut().cast::<u64>())
        };
        let hash = hash(&self.settings, &key);
        let [first, second] = choices(hash, mask);
        let flow_in = Flow { key, hash, buckets: [bucket(first)?, bucket(second)?] };
        let (settings, seen) = (&self.settings, flow.seen);
        // SAFETY: whole buckets of this family's table, mapped for writing while self lives.
        let adopt =
            || unsafe { flow_in.adopt(&HostMemory, flow.flags, settings, now, seen, judged) };
        adopt().or_else(|full| {
            let made = make_place([first, second], |index, place, takes| {
                let from = (index, place, mask);
                // SAFETY: as above.
                unsafe { shift::<K, _>(&HostMemory, settings, from, takes, |i| bucket(i).ok()) }
            });
            if made { adopt() } else { Err(full) }
        })
    }
}
