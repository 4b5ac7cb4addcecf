//! Read-only walk over the flows of the tables.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use aya::Pod;
use netpold_ebpf::flow::control::Control;
use netpold_ebpf::flow::key::FlowTableKey;
use netpold_ebpf::host::HostMemory;

use super::sighting::Sighting;
use super::sweeper::Sweeper;
use crate::bpf::mmap::MappedArray;

impl Sweeper {
    /// Calls `show` for the flows that have not expired at `now` (jiffies), from the way number `from`
    /// ([`Sighting::way`]) on and in the order of ways, until it breaks. A flow that the packet path moves meanwhile
    /// may appear twice or not at all.
    pub fn walk(
        &self,
        now: u32,
        from: u32,
        mut show: impl FnMut(&Sighting<'_>) -> ControlFlow<()>,
    ) {
        let stopped = self.walk_table::<[u64; 2], _>(&self.four, now, (0, from), &mut show);
        if let ControlFlow::Continue(first) = stopped {
            let _ = self.walk_table::<[u64; 4], _>(&self.six, now, (first, from), &mut show);
        }
    }

    /// Walks one family's table, with ways numbered from `first` on; returns the number after its last way.
    fn walk_table<K: FlowTableKey, B: Pod>(
        &self,
        table: &MappedArray<B>,
        now: u32,
        (first, from): (u32, u32),
        show: &mut impl FnMut(&Sighting<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<(), u32> {
        let words = table.words().unwrap_or_default();
        let ways = words.len() / K::STRIDE;
        let skipped = from.saturating_sub(first) as usize;
        let left = (first..).zip(words.chunks_exact(K::STRIDE)).skip(skipped);
        for (way, words) in left {
            let control = Control(words[0].load(Ordering::Acquire));
            if !control.is_valid() {
                continue;
            }
            let at = Sighting { way, control, now, hz: self.hz, words };
            let lives = |protocol| !control.is_expired(&HostMemory, protocol, &self.settings, now);
            if at.tuple().is_some_and(|tuple| lives(tuple.protocol)) {
                show(&at)?;
            }
        }
        ControlFlow::Continue(first + ways as u32)
    }
}
