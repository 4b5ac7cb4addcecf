//! Domain names of policy, and trusted resolvers: the maps by which programs accept DNS answers.

use std::collections::BTreeSet;
use std::io;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv6Addr};
use std::slice::ChunksExact;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aya::maps::{HashMap, MapData, MapError};
use aya::{Ebpf, Pod};
use netpold_core::model::DomainName;
use netpold_core::ops::Op;
use netpold_ebpf::layout::{
    ENDPOINT_SLOTS, NAME_BUSY, NAME_WAYS, NAME_WORDS, NameEntry, NameKey, Settings, doubt_time,
    resolves,
};
use netpold_ebpf::names::name::Points;
use netpold_ebpf::names::store::candidates;
use netpold_ebpf::names::tables::NameTable;
use nix::time::{ClockId, clock_gettime};

use super::maps::TableError;
use crate::bpf::mmap::{MappedArray, MmapError};

const NAMES: &str = "NAMES";
const RESOLVERS: &str = "RESOLVERS";
pub(super) const LEARNED: &str = "LEARNED";
pub(super) const DOUBTED_PODS: &str = "DOUBTED_PODS";

/// Names by list, and resolvers by address.
#[derive(Debug)]
pub(super) struct NameMaps {
    names: HashMap<MapData, NameKey, u32>,
    resolvers: HashMap<MapData, [u8; 16], u32>,
}

impl NameMaps {
    /// Takes the maps of a loaded object.
    pub(super) fn open(bpf: &mut Ebpf) -> Result<Self, TableError> {
        Ok(Self { names: open(bpf, NAMES)?, resolvers: open(bpf, RESOLVERS)? })
    }

    /// Applies an operation on a name or a resolver; names are hashed with the keys of the settings.
    #[expect(clippy::wildcard_enum_match_arm, reason = "of the operations, those on these tables")]
    pub(super) fn apply(&mut self, op: &Op, settings: &Settings) -> Result<(), TableError> {
        let (name, result) = match op {
            Op::Name { list, name, groups } => {
                (NAMES, self.names.insert(key(settings, *list, name), *groups, 0))
            }
            Op::NameGone(list, name) => {
                (NAMES, remove_if_present(&mut self.names, key(settings, *list, name)))
            }
            Op::Resolver(address, over_tcp) => {
                (RESOLVERS, self.resolvers.insert(mapped(*address), resolves(*over_tcp), 0))
            }
            Op::ResolverGone(address) => {
                (RESOLVERS, remove_if_present(&mut self.resolvers, mapped(*address)))
            }
            _ => return Ok(()),
        };
        result.map_err(|cause| TableError::Map { name, cause })
    }

    /// Groups of a name in the table.
    pub(super) fn groups(&self, settings: &Settings, list: u32, name: &DomainName) -> Option<u32> {
        self.names.get(&key(settings, list, name), 0).ok()
    }
}

fn open<K: Pod>(
    bpf: &mut Ebpf,
    name: &'static str,
) -> Result<HashMap<MapData, K, u32>, TableError> {
    HashMap::try_from(bpf.take_map(name).ok_or(TableError::Missing(name))?)
        .map_err(|cause| TableError::Map { name, cause })
}

/// Removes an entry if it exists.
fn remove_if_present<K: Pod>(map: &mut HashMap<MapData, K, u32>, key: K) -> Result<(), MapError> {
    if map.get(&key, 0).is_err() { Ok(()) } else { map.remove(&key) }
}

fn key(settings: &Settings, list: u32, name: &DomainName) -> NameKey {
    NameKey { list, hash: hash(settings, name) }
}

/// Keyed hash of a name, see [`NameKey::hash`].
#[must_use]
pub fn hash(settings: &Settings, name: &DomainName) -> [u32; 3] {
    let (points, canonical) = (Points::of(settings), name.canonical());
    if name.is_wildcard() { points.hash_below(&canonical) } else { points.hash(&canonical) }
}

/// An address that an endpoint resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// `Endpoint::id`
    pub endpoint: u32,
    /// [`hash`] of the name in the endpoint's rules.
    pub name: [u32; 3],
    /// The address.
    pub address: IpAddr,
    /// Time for which the address still matches the name.
    pub left: Duration,
}

/// Copies the addresses of another version's table, whose entries have the same form, to free ways of their candidate
/// buckets.
pub(super) fn adopt(
    learned: &MapData,
    former: &[AtomicU64],
    settings: &Settings,
) -> Result<(), MmapError> {
    let own = MappedArray::<NameEntry>::flat(learned)?;
    adopt_entries(own.words().unwrap_or_default(), former, settings);
    Ok(())
}

/// The work of [`adopt`] on the words of both tables.
fn adopt_entries(own: &[AtomicU64], former: &[AtomicU64], settings: &Settings) {
    const UNTIL: usize = offset_of!(NameEntry, until) / 8;
    const BUCKET: usize = NAME_WAYS * NAME_WORDS;
    for from in former.chunks_exact(NAME_WORDS) {
        let until = from[UNTIL].load(Ordering::Acquire);
        if [0, NAME_BUSY].contains(&until) {
            continue;
        }
        let word = |index: usize| from[index].load(Ordering::Acquire);
        let entry = NameEntry {
            address: [word(0), word(1)],
            name: [word(2), word(3)],
            asked: word(4),
            until,
        };
        let buckets = candidates(settings, NameTable::Learned, &entry).map(|index| {
            let first = index as usize * BUCKET;
            own.get(first..first + BUCKET).unwrap_or_default().chunks_exact(NAME_WORDS)
        });
        let claim = |to: &&[AtomicU64]| {
            let (free, busy) = (Ordering::AcqRel, Ordering::Relaxed);
            to[UNTIL].compare_exchange(0, NAME_BUSY, free, busy).is_ok()
        };
        let known = |to: &[AtomicU64]| {
            (0..UNTIL)
                .all(|word| to[word].load(Ordering::Acquire) == from[word].load(Ordering::Acquire))
        };
        if buckets.iter().cloned().flatten().any(known) {
            continue;
        }
        let is_free = |to: &&[AtomicU64]| to[UNTIL].load(Ordering::Acquire) == 0;
        let [first, second] = buckets;
        let room = |ways: &ChunksExact<'_, AtomicU64>| ways.clone().filter(is_free).count();
        let mut roomier = if room(&second) > room(&first) { second } else { first };
        let Some(to) = roomier.find(claim) else { continue };
        let words = to.iter().zip(from).enumerate().filter(|(index, _)| *index != UNTIL);
        words.for_each(|(_, (to, from))| to.store(from.load(Ordering::Acquire), Ordering::Release));
        // A program may have replaced the entry meanwhile.
        let is_whole = from[UNTIL].load(Ordering::Acquire) == until;
        to[UNTIL].store(if is_whole { until } else { 0 }, Ordering::Release);
    }
}

/// Removes the addresses of endpoints other than these.
pub(super) fn sweep(learned: &MapData, endpoints: &BTreeSet<u32>) -> Result<(), MmapError> {
    let entries = MappedArray::<NameEntry>::flat(learned)?;
    let at = offset_of!(NameEntry, until);
    for index in 0..entries.elements() {
        let until = entries.load_u64(index, at)?;
        if [0, NAME_BUSY].contains(&until) {
            continue;
        }
        let endpoint = (entries.load_u64(index, offset_of!(NameEntry, name) + 8)? >> 32) as u32;
        if !endpoints.contains(&endpoint) {
            // If a program changed the entry meanwhile, the next sweep removes it.
            entries.swap_u64(index, at, until, 0)?;
        }
    }
    Ok(())
}

/// Marks all connections of these endpoints to resolvers as doubted, at `now` (jiffies).
pub(super) fn end_streams(
    doubted: &MapData,
    endpoints: &BTreeSet<u32>,
    now: u32,
) -> Result<(), MmapError> {
    let doubted = MappedArray::<u64>::flat(doubted)?;
    endpoints.iter().try_for_each(|endpoint| {
        doubted.store_u64(endpoint & (ENDPOINT_SLOTS - 1), 0, doubt_time(now))
    })
}

/// All 64 bits of the kernel's jiffies: of the numbers with these lower bits, the one nearest to the time since the
/// boot.
///
/// # Errors
/// The clock cannot be read.
pub(super) fn jiffies(low: u32, settings: &Settings) -> io::Result<u64> {
    let since_boot = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
    Ok(widened(low, settings.refresh_after, since_boot))
}

/// See [`jiffies`]. Jiffies begin 300 seconds before their lower half wraps (`INITIAL_JIFFIES` of
/// `include/linux/jiffies.h`). `second`: number of jiffies per second.
fn widened(low: u32, second: u32, since_boot: Duration) -> u64 {
    let first = u64::from(300_u32.wrapping_mul(second).wrapping_neg());
    let about = first + (since_boot.as_millis() * u128::from(second) / 1000) as u64;
    let beyond = low.wrapping_sub(about as u32).cast_signed();
    about.saturating_add_signed(beyond.into())
}

/// Reads the addresses that have not expired at `now` (jiffies).
pub(super) fn resolutions(
    learned: &MapData,
    settings: &Settings,
    now: u64,
) -> Result<Vec<Resolution>, MmapError> {
    let entries = MappedArray::<NameEntry>::flat(learned)?;
    let until = |index| entries.load_u64(index, offset_of!(NameEntry, until)).ok();
    let read = |index| {
        let before = until(index).filter(|until| ![0, NAME_BUSY].contains(until))?;
        let NameEntry { address, name, .. } = entries.read(index).ok()?;
        // A program may have replaced the entry meanwhile.
        until(index).filter(|after| *after == before)?;
        let left = u32::try_from(before.checked_sub(now)?).ok()?;
        // A refresh is due after one second.
        let left = Duration::from_secs_f64(f64::from(left) / f64::from(settings.refresh_after));
        let mut octets = [0; 16];
        let words = address.map(u64::to_ne_bytes);
        octets.iter_mut().zip(words.as_flattened()).for_each(|(octet, byte)| *octet = *byte);
        Some(Resolution {
            endpoint: (name[1] >> 32) as u32,
            name: [name[0] as u32, (name[0] >> 32) as u32, name[1] as u32],
            address: Ipv6Addr::from(octets).to_canonical(),
            left,
        })
    };
    Ok((0..entries.elements()).filter_map(read).collect())
}

/// An address as in an IPv6 header, IPv4 as `::ffff:0:0/96`.
#[must_use]
pub fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use netpold_ebpf::flow::key::hash_keys;
    use netpold_ebpf::layout::LEARNED_BUCKETS;

    use super::*;

    const BUCKET: usize = NAME_WAYS * NAME_WORDS;

    fn table() -> Vec<AtomicU64> {
        let words = LEARNED_BUCKETS as usize * BUCKET;
        std::iter::repeat_with(AtomicU64::default).take(words).collect()
    }

    /// The words of all entries in use, with their buckets.
    fn entries(table: &[AtomicU64]) -> Vec<(usize, Vec<u64>)> {
        let word = |word: &AtomicU64| word.load(Ordering::Acquire);
        let ways = table.chunks_exact(NAME_WORDS).map(|way| way.iter().map(word).collect());
        let all = ways.enumerate().map(|(index, way)| (index / NAME_WAYS, way));
        all.filter(|(_, way): &(usize, Vec<u64>)| ![0, NAME_BUSY].contains(&way[NAME_WORDS - 1]))
            .collect()
    }

    /// The lower half wraps five minutes after the boot, then every 49.7 days at 1,000 Hz.
    #[test]
    fn jiffies_are_those_nearest_to_the_time_since_the_boot() {
        for second in [100, 250, 300, 1_000] {
            for seconds in [0, 299, 301, 4_294_000, 4_295_500, 42_949_672, 900_000_000] {
                let first = (1_u64 << 32) - 300 * u64::from(second);
                let now = first + seconds * u64::from(second);
                for skew in [-60_i64, 0, 3_600] {
                    let clock = seconds.saturating_add_signed(skew);
                    let found = widened(now as u32, second, Duration::from_secs(clock));
                    assert_eq!(found, now, "{seconds} s at {second} Hz, {skew} s ahead");
                }
            }
        }
    }

    /// Layouts up to 13 have one bucket for an address.
    #[test]
    fn addresses_of_a_former_table_move_to_their_candidate_buckets() {
        let settings = Settings { hash_keys: hash_keys(7), ..Settings::default() };
        let (own, former) = (table(), table());
        for address in 0..80_000_u64 {
            let entry = NameEntry {
                address: [0, address],
                name: [3, 5 << 32],
                asked: 0,
                until: 1_000 + address,
            };
            let [first, _] = candidates(&settings, NameTable::Learned, &entry);
            let ways = former[first as usize * BUCKET..][..BUCKET].chunks_exact(NAME_WORDS);
            let is_free = |way: &&[AtomicU64]| way[5].load(Ordering::Acquire) == 0;
            let Some(way) = ways.into_iter().find(is_free) else { continue };
            let words = [0, address, 3, 5 << 32, 0, entry.until];
            way.iter().zip(words).for_each(|(to, from)| to.store(from, Ordering::Release));
        }
        former[5].store(NAME_BUSY, Ordering::Release);
        // Adopts twice, as a migration does.
        for _ in 0..2 {
            adopt_entries(&own, &former, &settings);
        }
        let keys = |table| entries(table).into_iter().map(|(_, way)| way).collect::<BTreeSet<_>>();
        assert_eq!(keys(&own), keys(&former));
        assert_eq!(entries(&own).len(), entries(&former).len(), "each once");
        for (bucket, way) in entries(&own) {
            let entry = NameEntry { address: [0, way[1]], name: [3, 5 << 32], asked: 0, until: 1 };
            let candidates = candidates(&settings, NameTable::Learned, &entry);
            assert!(candidates.contains(&(bucket as u32)), "{way:?}");
        }
    }
}
