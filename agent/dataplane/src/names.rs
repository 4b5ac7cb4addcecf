//! Domain names of policy, and trusted resolvers: the maps by which programs accept DNS answers.

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aya::maps::{HashMap, MapData, MapError};
use aya::{Ebpf, Pod};
use netpold_core::model::DomainName;
use netpold_core::ops::Op;
use netpold_ebpf::layout::{
    ENDPOINT_SLOTS, NAME_BUSY, NAME_WAYS, NAME_WORDS, NameEntry, NameKey, Settings, resolves,
};
use netpold_ebpf::names::conversation::MOST;
use netpold_ebpf::names::name::Points;

use super::maps::TableError;
use crate::bpf::mmap::{MappedArray, MmapError};

const NAMES: &str = "NAMES";
const RESOLVERS: &str = "RESOLVERS";
pub(super) const LEARNED: &str = "LEARNED";
pub(super) const DOUBTED_PODS: &str = "DOUBTED_PODS";

/// Names by list, and resolvers by address.
#[derive(Debug)]
pub(super) struct Names {
    names: HashMap<MapData, NameKey, u32>,
    resolvers: HashMap<MapData, [u8; 16], u32>,
}

impl Names {
    /// Takes the maps of a loaded object.
    pub(super) fn open(bpf: &mut Ebpf) -> Result<Self, TableError> {
        Ok(Self { names: open(bpf, NAMES)?, resolvers: open(bpf, RESOLVERS)? })
    }

    /// Applies an operation on a name or a resolver; names are hashed with the keys of the settings.
    #[expect(clippy::wildcard_enum_match_arm, reason = "of the operations, those on these tables")]
    pub(super) fn apply(&mut self, op: &Op, settings: &Settings) -> Result<(), TableError> {
        let (name, result) = match op {
            Op::Name(list, name, groups) => {
                (NAMES, self.names.insert(key(settings, *list, name), *groups, 0))
            }
            Op::NameGone(list, name) => (NAMES, gone(&mut self.names, key(settings, *list, name))),
            Op::Resolver(address, over_tcp) => {
                (RESOLVERS, self.resolvers.insert(mapped(*address), resolves(*over_tcp), 0))
            }
            Op::ResolverGone(address) => (RESOLVERS, gone(&mut self.resolvers, mapped(*address))),
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
fn gone<K: Pod>(map: &mut HashMap<MapData, K, u32>, key: K) -> Result<(), MapError> {
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

/// Copies the addresses of another version's table with the same layout to free ways of the same buckets.
pub(super) fn adopt(learned: &MapData, former: &[AtomicU64]) -> Result<(), MmapError> {
    const UNTIL: usize = offset_of!(NameEntry, until) / 8;
    let own = MappedArray::<NameEntry>::flat(learned)?;
    let own = own.words().filter(|own| own.len() == former.len()).unwrap_or_default();
    const BUCKET: usize = NAME_WAYS * NAME_WORDS;
    let ways = former.chunks_exact(NAME_WORDS).enumerate();
    for (index, from) in ways {
        let until = from[UNTIL].load(Ordering::Acquire);
        if [0, NAME_BUSY].contains(&until) {
            continue;
        }
        let bucket = index / NAME_WAYS * BUCKET;
        let claim = |to: &&[AtomicU64]| {
            let (free, busy) = (Ordering::AcqRel, Ordering::Relaxed);
            to[UNTIL].compare_exchange(0, NAME_BUSY, free, busy).is_ok()
        };
        let known = |to: &[AtomicU64]| {
            (0..UNTIL)
                .all(|word| to[word].load(Ordering::Acquire) == from[word].load(Ordering::Acquire))
        };
        let mut free = own[bucket..bucket + BUCKET].chunks_exact(NAME_WORDS);
        if free.clone().any(known) {
            continue;
        }
        let Some(to) = free.find(claim) else { continue };
        let words = to.iter().zip(from).enumerate().filter(|(index, _)| *index != UNTIL);
        words.for_each(|(_, (to, from))| to.store(from.load(Ordering::Acquire), Ordering::Release));
        // A program may have replaced the entry meanwhile.
        let is_whole = from[UNTIL].load(Ordering::Acquire) == until;
        to[UNTIL].store(if is_whole { until } else { 0 }, Ordering::Release);
    }
    Ok(())
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
    endpoints
        .iter()
        .try_for_each(|endpoint| doubted.store_u64(endpoint & (ENDPOINT_SLOTS - 1), 0, now.into()))
}

/// Reads the addresses that have not expired at `now` (jiffies).
pub(super) fn resolutions(
    learned: &MapData,
    settings: &Settings,
    now: u32,
) -> Result<Vec<Resolution>, MmapError> {
    let entries = MappedArray::<NameEntry>::flat(learned)?;
    let until = |index| entries.load_u64(index, offset_of!(NameEntry, until)).ok();
    let read = |index| {
        let before = until(index).filter(|until| ![0, NAME_BUSY].contains(until))?;
        let NameEntry { address, name, .. } = entries.read(index).ok()?;
        // A program may have replaced the entry meanwhile.
        until(index).filter(|after| *after == before)?;
        let left = u32::try_from((before as u32).wrapping_sub(now).cast_signed()).ok()?;
        // A refresh is due after one second.
        let left = Duration::from_secs_f64(f64::from(left) / f64::from(settings.refresh_after));
        // A longer time means that the entry expired so long ago that the counter has wrapped.
        if left > Duration::from_secs(MOST.into()) {
            return None;
        }
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
