//! Writes to the table of IPv6 addresses, see [`netpold_ebpf::tables::ipv6_hosts`].
//!
//! Only this module writes the table, while programs read it. An entry (up to four neighbouring addresses) never moves:
//! a reader between the lookups in its two buckets could miss a moving entry.

use std::mem::offset_of;
use std::net::Ipv6Addr;

use aya::Ebpf;
use aya::maps::MapData;
use netpold_ebpf::layout::{
    ClassId, HOSTS6_FILTER_BITS, HOSTS6_FILTERED, HOSTS6_GROUP, HOSTS6_MANY, HOSTS6_WAYS,
    Hosts6Bucket, Hosts6Entry, Settings,
};
use netpold_ebpf::packet::family::V6;
use netpold_ebpf::tables::ipv6_hosts::{self as hosts6, Places};

use super::maps::{TableError, array, at};
use crate::bpf::mmap::{MappedArray, MmapError};

const NAME: &str = "HOSTS6";
const FILTER: &str = "HOSTS6_FILTER";
const DISPLACED: usize = offset_of!(Hosts6Bucket, displaced);
/// Number of free entries at which the second bucket is not considered: of 100,000 random addresses in a table for
/// 131,072, one in seven then goes to its second bucket, and two in a thousand find no room.
const MOST: usize = 2;

/// Error: neither bucket of an address's entry has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostsFull;

/// The table of IPv6 addresses.
#[derive(Debug)]
pub struct Ipv6Hosts {
    map: MappedArray<Hosts6Bucket>,
    /// Filter words, each for [`HOSTS6_FILTERED`] consecutive buckets.
    filter: MappedArray<u64>,
}

/// Number of buckets for this many addresses, of which at most [`overflow_for`] find no room.
#[must_use]
pub fn buckets_for(addresses: u32) -> u32 {
    addresses.div_ceil(2).max(1).checked_next_power_of_two().unwrap_or(1 << 31)
}

/// Maximum number of addresses without room among this many, if none of them are neighbours: 12 in a thousand are
/// expected.
#[must_use]
pub const fn overflow_for(addresses: u32) -> u32 {
    addresses.div_ceil(32)
}

/// Number of filter words for this many buckets.
#[must_use]
pub const fn filter_for(buckets: u32) -> u32 {
    buckets.div_ceil(HOSTS6_FILTERED)
}

/// Place of an entry: bucket, and offset in it.
#[derive(Clone, Copy)]
struct EntryPosition {
    bucket: u32,
    offset: usize,
}

impl EntryPosition {
    const fn new(bucket: u32, way: usize) -> Self {
        Self { bucket, offset: way * size_of::<Hosts6Entry>() }
    }

    const fn state(self) -> usize {
        self.offset + offset_of!(Hosts6Entry, state)
    }

    const fn address(self, half: usize) -> usize {
        self.offset + offset_of!(Hosts6Entry, address) + half * 8
    }

    /// Offset of the word with an address's class, and shift in that word.
    const fn class(self, member: usize) -> (usize, usize) {
        let offset = self.offset + offset_of!(Hosts6Entry, classes);
        (offset + member / 2 * 8, member % 2 * 32)
    }
}

fn words(address: Ipv6Addr) -> [u64; 2] {
    V6::words(&address.octets())
}

impl Ipv6Hosts {
    /// Opens the table of a loaded object.
    ///
    /// # Errors
    /// A map is missing or cannot be mapped.
    pub fn open(bpf: &Ebpf) -> Result<Self, TableError> {
        Self::open_maps(array(bpf, NAME)?, array(bpf, FILTER)?)
    }

    /// The table in two maps: buckets and filter.
    ///
    /// # Errors
    /// A map has another layout, or cannot be mapped.
    pub fn open_maps(buckets: &MapData, filter: &MapData) -> Result<Self, TableError> {
        let map = MappedArray::new(buckets).map_err(at(NAME))?;
        MappedArray::new(filter).map(|filter| Self { map, filter }).map_err(at(FILTER))
    }

    /// [`Settings::ipv6_hosts_mask`] of this table.
    #[must_use]
    pub fn mask(&self) -> u32 {
        self.map.elements() - 1
    }

    /// Class of an address.
    ///
    /// # Errors
    /// The settings are not this table's.
    pub fn get(
        &self,
        settings: &Settings,
        address: Ipv6Addr,
    ) -> Result<Option<ClassId>, TableError> {
        let read = || {
            let member = hosts6::member(words(address));
            let found = self.find(Places::new(settings, words(address)), address)?;
            let Some((place, _)) = found.filter(|(_, state)| hosts6::has(*state, member)) else {
                return Ok(None);
            };
            let (offset, shift) = place.class(member);
            let both = self.map.load_u64(place.bucket, offset)?;
            Ok(Some((both >> shift) as ClassId))
        };
        read().map_err(at(NAME))
    }

    /// Adds an address, or changes its class by one word.
    ///
    /// # Errors
    /// The settings are not this table's.
    pub fn set(
        &self,
        settings: &Settings,
        address: Ipv6Addr,
        class: ClassId,
    ) -> Result<Result<(), HostsFull>, TableError> {
        self.write(settings, address, class).map_err(at(NAME))
    }

    /// Removes an address; returns whether it existed.
    ///
    /// # Errors
    /// The settings are not this table's.
    pub fn remove(&self, settings: &Settings, address: Ipv6Addr) -> Result<bool, TableError> {
        self.take_out(settings, address).map_err(at(NAME))
    }

    fn take_out(&self, settings: &Settings, address: Ipv6Addr) -> Result<bool, MmapError> {
        let member = hosts6::member(words(address));
        let places = Places::new(settings, words(address));
        let found = self.find(places, address)?;
        let Some((place, state)) = found.filter(|(_, state)| hosts6::has(*state, member)) else {
            return Ok(false);
        };
        let state = hosts6::without(state, member);
        self.map.store_u64(place.bucket, place.state(), state)?;
        if !hosts6::is_free(state) {
            return Ok(true);
        }
        let [first, _] = places.buckets;
        if place.bucket != first {
            let count = places.displaced(self.map.load_u64(first, DISPLACED)?);
            // Once the count is saturated, the actual number is unknown.
            if count != HOSTS6_MANY {
                self.set_displaced(places, count.saturating_sub(1))?;
            }
        }
        self.filter_anew(settings, first)?;
        Ok(true)
    }

    /// Repairs the filter and the first bucket's count, so that programs find an address; returns whether they did not
    /// find it before.
    ///
    /// # Errors
    /// The settings are not this table's.
    pub fn reveal(&self, settings: &Settings, address: Ipv6Addr) -> Result<bool, TableError> {
        let places = Places::new(settings, words(address));
        let [first, _] = places.buckets;
        let revealed = self.find(places, address).and_then(|found| {
            let Some((place, _)) = found else { return Ok(false) };
            let hidden = place.bucket != first
                && places.displaced(self.map.load_u64(first, DISPLACED)?) == 0;
            if hidden {
                self.set_displaced(places, HOSTS6_MANY)?;
            }
            Ok(self.let_through(places)? || hidden)
        });
        revealed.map_err(at(NAME))
    }

    /// Repairs the filter bits of a bucket to those of its entries; returns whether they were wrong.
    ///
    /// # Errors
    /// The map has no such bucket.
    pub fn check_filter(&self, settings: &Settings, bucket: u32) -> Result<bool, TableError> {
        self.filter_anew(settings, bucket).map_err(at(FILTER))
    }

    fn filter_anew(&self, settings: &Settings, bucket: u32) -> Result<bool, MmapError> {
        let displaced = self.map.load_u64(bucket, DISPLACED)?;
        let in_second = |bit: &u32| hosts6::displaced(displaced, *bit) != 0;
        let displaced = (0..HOSTS6_FILTER_BITS).filter(in_second);
        let ways = self.map.read(bucket)?.ways;
        let valid = ways.iter().filter(|entry| !hosts6::is_free(entry.state));
        let places = valid.map(|entry| Places::new(settings, V6::words(&entry.address)));
        let own = places.filter(|places| places.buckets[0] == bucket).map(|places| places.bit);
        let bits = own.chain(displaced).fold(0, |bits, bit| bits | 1 << bit);
        let shift = hosts6::filter_shift(bucket);
        let mask = (u64::MAX >> (u64::BITS - HOSTS6_FILTER_BITS)) << shift;
        let word = bucket / HOSTS6_FILTERED;
        let before = self.filter.load_u64(word, 0)?;
        let after = before & !mask | bits << shift;
        if after != before {
            self.filter.store_u64(word, 0, after)?;
        }
        Ok(after != before)
    }

    /// Sets an entry's bit in the filter; returns whether it was missing.
    fn let_through(&self, places: Places) -> Result<bool, MmapError> {
        let before = self.filter.load_u64(places.filter(), 0)?;
        if before & places.filter_bit() != 0 {
            return Ok(false);
        }
        self.filter.store_u64(places.filter(), 0, before | places.filter_bit()).map(|()| true)
    }

    /// Writes the number of entries with the same filter bit that are in their second bucket.
    fn set_displaced(&self, places: Places, count: u64) -> Result<(), MmapError> {
        let [first, _] = places.buckets;
        let shift = places.bit * 2;
        let word = self.map.load_u64(first, DISPLACED)? & !(HOSTS6_MANY << shift);
        self.map.store_u64(first, DISPLACED, word | count << shift)
    }

    /// Addresses of a bucket; `None` after the last bucket.
    ///
    /// # Errors
    /// Never, since the bucket is in the map.
    pub fn bucket(&self, bucket: u32) -> Result<Option<Vec<Ipv6Addr>>, TableError> {
        if bucket > self.mask() {
            return Ok(None);
        }
        let ways = self.map.read(bucket).map_err(at(NAME))?.ways;
        let addresses = ways.iter().flat_map(|entry| {
            let first = u128::from_be_bytes(entry.address);
            let valid = (0..HOSTS6_GROUP).filter(|member| hosts6::has(entry.state, *member));
            valid.map(move |member| Ipv6Addr::from_bits(first | member as u128))
        });
        Ok(Some(addresses.collect()))
    }

    /// Entry of an address's group, and its state.
    fn find(
        &self,
        places: Places,
        address: Ipv6Addr,
    ) -> Result<Option<(EntryPosition, u64)>, MmapError> {
        let wanted = hosts6::group(words(address));
        for bucket in places.buckets {
            for way in 0..HOSTS6_WAYS {
                let place = EntryPosition::new(bucket, way);
                let state = self.map.load_u64(bucket, place.state())?;
                let half = |half| self.map.load_u64(bucket, place.address(half));
                if !hosts6::is_free(state) && [half(0)?, half(1)?] == wanted {
                    return Ok(Some((place, state)));
                }
            }
        }
        Ok(None)
    }

    fn write(
        &self,
        settings: &Settings,
        address: Ipv6Addr,
        class: ClassId,
    ) -> Result<Result<(), HostsFull>, MmapError> {
        let member = hosts6::member(words(address));
        let places = Places::new(settings, words(address));
        if let Some((place, state)) = self.find(places, address)? {
            self.set_class(place, member, class)?;
            let state = hosts6::with(state, member);
            return self.map.store_u64(place.bucket, place.state(), state).map(Ok);
        }
        let Some((place, state)) = self.room(places.buckets)? else {
            return Ok(Err(HostsFull));
        };
        let [first, _] = places.buckets;
        if place.bucket != first {
            let count = places.displaced(self.map.load_u64(first, DISPLACED)?);
            self.set_displaced(places, HOSTS6_MANY.min(count + 1))?;
        }
        self.let_through(places)?;
        for (half, word) in hosts6::group(words(address)).into_iter().enumerate() {
            self.map.store_u64(place.bucket, place.address(half), word)?;
        }
        self.set_class(place, member, class)?;
        let state = hosts6::taken(state, member);
        self.map.store_u64(place.bucket, place.state(), state).map(Ok)
    }

    /// Writes the class of one address of an entry, by one store.
    fn set_class(
        &self,
        place: EntryPosition,
        member: usize,
        class: ClassId,
    ) -> Result<(), MmapError> {
        let (offset, shift) = place.class(member);
        let others = self.map.load_u64(place.bucket, offset)? & !(u64::from(ClassId::MAX) << shift);
        self.map.store_u64(place.bucket, offset, others | u64::from(class) << shift)
    }

    /// A free entry and its state: in the first bucket if most of it is free, else in the emptier one.
    fn room(&self, buckets: [u32; 2]) -> Result<Option<(EntryPosition, u64)>, MmapError> {
        let mut best: Option<(usize, EntryPosition, u64)> = None;
        for bucket in buckets {
            let mut free = Vec::new();
            for way in 0..HOSTS6_WAYS {
                let place = EntryPosition::new(bucket, way);
                let state = self.map.load_u64(bucket, place.state())?;
                if hosts6::is_free(state) {
                    free.push((place, state));
                }
            }
            let emptier = best.is_none_or(|(count, ..)| count < MOST && free.len() > count);
            if let Some(&(place, state)) = free.first().filter(|_| emptier) {
                best = Some((free.len(), place, state));
            }
        }
        Ok(best.map(|(_, place, state)| (place, state)))
    }
}

#[cfg(test)]
mod tests;
