//! The agent's side of conntrack: counts and tidies the flow tables in their mapped memory.
//!
//! The kernel program treats an expired entry as absent, so sweeping decides nothing: it frees ways
//! before they are needed and knows how full the tables are. An entry is freed by
//! compare-and-swap of its whole control word, time stamp included: a flow that has a packet at
//! that moment stays. A way that stayed free until the next pass becomes unused again, so that programs look
//! for no flow behind it.

mod entry;
mod import;
mod sighting;
mod size;
pub mod timeouts;
mod walk;

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aya::Pod;
use aya::maps::MapData;
use netpold_ebpf::flow::control::Control;
use netpold_ebpf::flow::key::Key;
use netpold_ebpf::flow::sweep::{displaced, renew, sweep};
use netpold_ebpf::host::HostMemory;
use netpold_ebpf::layout::{CT_REPLIED, CT_WAYS, Ct4Bucket, Ct6Bucket, Settings};
use serde::Serialize;

pub use self::entry::Place;
pub use self::import::{FlowKey, Tracked};
pub use self::sighting::{FlowTuple, Sighting};
pub use self::size::Buckets;
use crate::bpf::mmap::{MappedArray, MmapError};

/// The values of `CONFIG_HZ` that a kernel can be configured with on the machines we run on.
const TICKS_PER_SECOND: [u32; 4] = [100, 250, 300, 1000];
/// Long enough to tell 250 from 300 with a tick of error at each end.
const CLOCK_SAMPLE: Duration = Duration::from_millis(200);
const CLOCK_ATTEMPTS: u32 = 5;
/// A way that has been claimed for that many seconds belongs to a CPU that will not finish:
/// publishing takes nanoseconds.
const STALE_CLAIM: u32 = 60;
/// Of so many buckets one is looked at to know how full a table is.
const LOOKED_AT: usize = 8;

/// Ticks a second of the kernel's jiffies, as the resolution of its coarse clock says, which is one
/// tick (`clock_getres(2)`); `None` if that is no rate a kernel has.
#[must_use]
pub fn tick_rate() -> Option<u32> {
    let mut resolution = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes the one structure.
    let failed = unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &raw mut resolution) };
    let nanoseconds = (failed == 0 && resolution.tv_sec == 0).then_some(resolution.tv_nsec)?;
    nearest_hz(1e9 / nanoseconds as f64)
}

/// Ticks a second of the kernel's jiffies, from two readings. Takes about 200 ms, blocking.
///
/// # Errors
/// The clock cannot be read, or never goes at a rate a kernel has.
pub fn measure_hz(mut jiffies: impl FnMut() -> io::Result<u32>) -> io::Result<u32> {
    for _ in 0..CLOCK_ATTEMPTS {
        let (start, first) = (Instant::now(), jiffies()?);
        std::thread::sleep(CLOCK_SAMPLE);
        let ticks = jiffies()?.wrapping_sub(first);
        let rate = f64::from(ticks) / start.elapsed().as_secs_f64();
        // An interruption between reading the one clock and the other spoils the sample.
        if let Some(hz) = nearest_hz(rate) {
            return Ok(hz);
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel's clock goes at no known rate"))
}

/// The configurable rate within 8 percent of a measured one (250 and 300 are 18 percent apart).
fn nearest_hz(rate: f64) -> Option<u32> {
    TICKS_PER_SECOND.into_iter().find(|&hz| (rate / f64::from(hz) - 1.0).abs() < 0.08)
}

/// What one pass found in the table of one address family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Census {
    /// Ways in the table.
    pub capacity: u64,
    /// Flows of which one direction was seen.
    pub one_way: u64,
    /// Flows of which both directions were seen.
    pub two_way: u64,
    /// TCP flows that are over, kept for a moment.
    pub closed: u64,
    /// Ways a CPU was just writing.
    pub busy: u64,
    /// Expired flows that this pass removed.
    pub removed: u64,
    /// Flows of endpoints that are gone, which this pass removed.
    pub orphaned: u64,
    /// Buckets without a free way: a further flow there evicts an unreplied one or is refused.
    pub full_buckets: u64,
}

/// How much of a table is in use, by a part of it: keys are hashed with a seed, so all parts are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// Ways that are not free, expired ones too.
    pub used: usize,
    /// Ways that were looked at.
    pub ways: usize,
}

/// What one pass found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pass {
    /// IPv4
    pub v4: Census,
    /// IPv6
    pub v6: Census,
}

/// The flow tables, mapped. Generations share them until larger ones are needed.
#[derive(Debug)]
pub struct Sweeper {
    four: MappedArray<Ct4Bucket>,
    six: MappedArray<Ct6Bucket>,
    settings: Settings,
    hz: u32,
}

impl Sweeper {
    /// Maps both tables. `settings` are those the kernel program runs with.
    ///
    /// # Errors
    /// A table is of another layout or cannot be mapped.
    pub fn new(
        four: &MapData,
        six: &MapData,
        settings: Settings,
        hz: u32,
    ) -> Result<Self, MmapError> {
        let (four, six) = (MappedArray::new(four)?, MappedArray::new(six)?);
        Ok(Self { four, six, settings, hz })
    }

    /// One pass over both tables: removes what has expired at `now` (jiffies) and flows of endpoints
    /// whose number is none of these (`None`: nothing is known of endpoints), counts the rest. Reads a
    /// word or two of each way; a table of 16 MiB takes a few milliseconds. `meet` is told of every flow
    /// before it may be removed.
    #[must_use]
    pub fn pass(
        &self,
        now: u32,
        endpoints: Option<&BTreeSet<u32>>,
        mut meet: impl FnMut(&Sighting<'_>),
    ) -> Pass {
        let v4 = self.census::<[u64; 2], _>(&self.four, (now, 0), endpoints, &mut meet);
        let behind = v4.capacity as u32;
        let v6 = self.census::<[u64; 4], _>(&self.six, (now, behind), endpoints, &mut meet);
        Pass { v4, v6 }
    }

    /// How much of the tables is in use, IPv4 and IPv6.
    #[must_use]
    pub fn occupancy(&self) -> [Occupancy; 2] {
        [occupancy::<[u64; 2], _>(&self.four), occupancy::<[u64; 4], _>(&self.six)]
    }

    fn census<K: Key, B: Pod>(
        &self,
        table: &MappedArray<B>,
        (now, first): (u32, u32),
        endpoints: Option<&BTreeSet<u32>>,
        meet: &mut impl FnMut(&Sighting<'_>),
    ) -> Census {
        let mut census = Census::default();
        let words = table.words().unwrap_or_default();
        let buckets = || words.chunks_exact(CT_WAYS * K::STRIDE);
        // Of each bucket: whether a way is free that was used, and whether it is the first of a flow in its second.
        let (mut used, mut is_first) = (vec![false; buckets().len()], vec![false; buckets().len()]);
        let mask = (buckets().len() as u32).wrapping_sub(1);
        for (index, bucket) in buckets().enumerate() {
            let number = first + census.capacity as u32;
            census.capacity += CT_WAYS as u64;
            if occupied::<K>(bucket).next().is_some() {
                let place = (bucket[0].as_ptr(), index as u32);
                let meet_first = |first: u32| is_first[first as usize] = true;
                // SAFETY: a whole bucket of this family, mapped while self lives.
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

    fn tidy<K: Key>(
        &self,
        bucket: &[AtomicU64],
        now: u32,
        endpoints: Option<&BTreeSet<u32>>,
        census: &mut Census,
    ) {
        let lives = |endpoint| endpoints.is_none_or(|all| all.contains(&endpoint));
        let stale = STALE_CLAIM * self.hz;
        // SAFETY: a whole bucket of this family (the slice is CT_WAYS ways long), mapped for
        // writing while self lives, and changed by atomic operations only.
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

fn occupancy<K: Key, B: Pod>(table: &MappedArray<B>) -> Occupancy {
    let words = table.words().unwrap_or_default();
    let buckets = words.len() / (CT_WAYS * K::STRIDE);
    let part = &words[..buckets.div_ceil(LOOKED_AT) * CT_WAYS * K::STRIDE];
    Occupancy { used: occupied::<K>(part).count(), ways: part.len() / K::STRIDE }
}

/// The control words of buckets' ways.
fn controls<K: Key>(bucket: &[AtomicU64]) -> impl Iterator<Item = Control> {
    bucket.iter().step_by(K::STRIDE).map(|word| Control(word.load(Ordering::Relaxed)))
}

/// The control words of buckets' ways that are not free.
fn occupied<K: Key>(bucket: &[AtomicU64]) -> impl Iterator<Item = Control> {
    controls::<K>(bucket).filter(|control| !control.is_vacant())
}

#[cfg(test)]
mod tests;
