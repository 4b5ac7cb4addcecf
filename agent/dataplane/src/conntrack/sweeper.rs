//! The mapped flow tables, and a pass over them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::Pod;
use aya::maps::MapData;
use netpold_ebpf::flow::control::Control;
use netpold_ebpf::flow::key::FlowTableKey;
use netpold_ebpf::flow::sweep::{displaced, renew, sweep};
use netpold_ebpf::host::HostMemory;
use netpold_ebpf::layout::{CT_REPLIED, CT_WAYS, Ct4Bucket, Ct6Bucket, Settings};
use serde::Serialize;

use super::sighting::Sighting;
use crate::bpf::mmap::{MappedArray, MmapError};

/// Age in seconds at which a claimed way belongs to a CPU that will not finish: publishing takes nanoseconds.
const STALE_CLAIM: u32 = 60;
/// Fraction of the buckets, one in this many, that is examined for the fill of a table.
const LOOKED_AT: usize = 8;

/// Result of one pass over the table of one address family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FlowCounts {
    /// Number of ways.
    pub capacity: u64,
    /// Flows with packets in one direction.
    pub one_way: u64,
    /// Flows with packets in both directions.
    pub two_way: u64,
    /// Ended TCP flows, kept for a moment.
    pub closed: u64,
    /// Ways that a CPU is writing.
    pub busy: u64,
    /// Expired flows removed by this pass.
    pub removed: u64,
    /// Flows of removed endpoints that this pass removed.
    pub orphaned: u64,
    /// Buckets without a free way: a further flow there evicts an unreplied one or is refused.
    pub full_buckets: u64,
}

/// Fill of a table, estimated from a part of it: keys are hashed with a seed, so all parts have about the same fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// Ways that are not free, expired ones included.
    pub used: usize,
    /// Ways examined.
    pub ways: usize,
}

/// Result of one pass over both tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PassResult {
    /// Result for IPv4.
    pub v4: FlowCounts,
    /// Result for IPv6.
    pub v6: FlowCounts,
}

impl FlowCounts {
    /// Returns the number of ways that are not free.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.one_way + self.two_way + self.closed + self.busy
    }
}

impl PassResult {
    /// Returns whether the tables have no flow.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.v4.used() + self.v6.used() == 0
    }
}

/// The mapped flow tables. Generations share them until larger ones are needed.
#[derive(Debug)]
pub struct Sweeper {
    pub(super) four: MappedArray<Ct4Bucket>,
    pub(super) six: MappedArray<Ct6Bucket>,
    pub(super) settings: Settings,
    pub(super) hz: u32,
}

impl Sweeper {
    /// Maps both tables. `settings` are the kernel program's.
    ///
    /// # Errors
    /// A table has another layout or cannot be mapped.
    pub fn new(
        four: &MapData,
        six: &MapData,
        settings: Settings,
        hz: u32,
    ) -> Result<Self, MmapError> {
        let (four, six) = (MappedArray::new(four)?, MappedArray::new(six)?);
        Ok(Self { four, six, settings, hz })
    }

    /// Makes one pass over both tables: removes flows that have expired at `now` (jiffies) and flows of endpoints
    /// outside `endpoints` (`None`: the endpoints are unknown), and counts the rest. Reads one or two words of each
    /// way; a table of 16 MiB takes a few milliseconds. Calls `meet` for every flow before a removal.
    #[must_use]
    pub fn pass(
        &self,
        now: u32,
        endpoints: Option<&BTreeSet<u32>>,
        mut meet: impl FnMut(&Sighting<'_>),
    ) -> PassResult {
        let v4 = self.census::<[u64; 2], _>(&self.four, (now, 0), endpoints, &mut meet);
        let behind = v4.capacity as u32;
        let v6 = self.census::<[u64; 4], _>(&self.six, (now, behind), endpoints, &mut meet);
        PassResult { v4, v6 }
    }

    /// Returns the fill of the tables, IPv4 and IPv6.
    #[must_use]
    pub fn occupancy(&self) -> [Occupancy; 2] {
        [occupancy::<[u64; 2], _>(&self.four), occupancy::<[u64; 4], _>(&self.six)]
    }

    fn census<K: FlowTableKey, B: Pod>(
        &self,
        table: &MappedArray<B>,
        (now, first): (u32, u32),
        endpoints: Option<&BTreeSet<u32>>,
        meet: &mut impl FnMut(&Sighting<'_>),
    ) -> FlowCounts {
        let mut census = FlowCounts::default();
        let words = table.words().unwrap_or_default();
        let buckets = || words.chunks_exact(CT_WAYS * K::STRIDE);
        // For each bucket: whether a formerly used way is free, and whether the bucket is the first choice of a flow
        // that is in its second.
        let (mut used, mut is_first) = (vec![false; buckets().len()], vec![false; buckets().len()]);
        let mask = (buckets().len() as u32).wrapping_sub(1);
        for (index, bucket) in buckets().enumerate() {
            let number = first + census.capacity as u32;
            census.capacity += CT_WAYS as u64;
            if occupied::<K>(bucket).next().is_some() {
                let place = (bucket[0].as_ptr(), index as u32);
                let meet_first = |first: u32| is_first[first as usize] = true;
                // SAFETY: one whole bucket of this family, mapped while self lives.
                unsafe {
                    displaced::<K, _>(&HostMemory, place, (&self.settings, mask), meet_first);
                }
                for (way, words) in (number..).zip(bucket.chunks_exact(K::STRIDE)) {
                    let control = Control(words[0].load(Ordering::Acquire));
                    if control.is_valid() {
                        meet(&Sighting { way, control, now, hz: self.hz, words });
                    }
                }
                self.tidy::<K>(bucket, now, endpoints, &mut census);
            }
            used[index] = controls::<K>(bucket).any(|it| it.is_vacant() && !it.is_unused());
        }
        for (bucket, is_first) in
            buckets().zip(is_first).zip(used).filter_map(|(it, used)| used.then_some(it))
        {
            // SAFETY: as in `tidy`.
            unsafe { renew::<K, _>(&HostMemory, bucket[0].as_ptr(), (now, self.hz), is_first) };
        }
        census
    }

    fn tidy<K: FlowTableKey>(
        &self,
        bucket: &[AtomicU64],
        now: u32,
        endpoints: Option<&BTreeSet<u32>>,
        census: &mut FlowCounts,
    ) {
        let lives = |endpoint| endpoints.is_none_or(|all| all.contains(&endpoint));
        let stale = STALE_CLAIM * self.hz;
        // SAFETY: one whole bucket of this family (the slice is CT_WAYS ways long), mapped for writing while self
        // lives, and changed by atomic operations only.
        let swept = unsafe {
            sweep::<K, _>(&HostMemory, bucket[0].as_ptr(), &self.settings, now, stale, lives)
        };
        census.removed += u64::from(swept.removed);
        census.orphaned += u64::from(swept.orphaned);
        let mut used = 0;
        for control in occupied::<K>(bucket) {
            used += 1;
            *match control {
                _ if !control.is_valid() => &mut census.busy,
                _ if control.is_closed() => &mut census.closed,
                _ if control.flags() & CT_REPLIED != 0 => &mut census.two_way,
                _ => &mut census.one_way,
            } += 1;
        }
        census.full_buckets += u64::from(used == CT_WAYS);
    }
}

fn occupancy<K: FlowTableKey, B: Pod>(table: &MappedArray<B>) -> Occupancy {
    let words = table.words().unwrap_or_default();
    let buckets = words.len() / (CT_WAYS * K::STRIDE);
    let part = &words[..buckets.div_ceil(LOOKED_AT) * CT_WAYS * K::STRIDE];
    Occupancy { used: occupied::<K>(part).count(), ways: part.len() / K::STRIDE }
}

/// Returns the control words of all ways in these buckets.
fn controls<K: FlowTableKey>(bucket: &[AtomicU64]) -> impl Iterator<Item = Control> {
    bucket.iter().step_by(K::STRIDE).map(|word| Control(word.load(Ordering::Relaxed)))
}

/// Returns the control words of the ways in these buckets that are not free.
fn occupied<K: FlowTableKey>(bucket: &[AtomicU64]) -> impl Iterator<Item = Control> {
    controls::<K>(bucket).filter(|control| !control.is_vacant())
}
