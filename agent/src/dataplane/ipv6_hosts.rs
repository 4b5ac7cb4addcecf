//! The table of IPv6 addresses, written: see [`netpold_ebpf::tables::ipv6_hosts`].
//!
//! Nobody else writes it, and programs read it meanwhile. An entry never moves: a reader that looked
//! into one bucket before and into the other behind would miss it.

use std::mem::offset_of;
use std::net::Ipv6Addr;

use aya::Ebpf;
use aya::maps::MapData;
use netpold_ebpf::layout::{ClassId, HOST6_VALID, HOST6_WAYS, Host6, Hosts6Bucket, Settings};
use netpold_ebpf::packet::family::V6;
use netpold_ebpf::tables::ipv6_hosts::{self as hosts6, buckets};

use super::maps::{TableError, array, at};
use crate::bpf::mmap::{MappedArray, MmapError};

const NAME: &str = "HOSTS6";
const DISPLACED: usize = offset_of!(Hosts6Bucket, displaced);
/// Free entries of a bucket that is not looked at beside the other: of random addresses in a table that is half full,
/// one in eight then goes to its second bucket, and none finds no room.
const MOST: usize = 3;

/// Neither bucket of an address has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The table of IPv6 addresses.
#[derive(Debug)]
pub struct Ipv6Hosts {
    map: MappedArray<Hosts6Bucket>,
}

/// Buckets for so many addresses: half full at the most, so that hardly ever an address finds no room.
#[must_use]
pub fn buckets_for(addresses: u32) -> u32 {
    let buckets = addresses.max(1).div_ceil(HOST6_WAYS as u32) * 2;
    buckets.checked_next_power_of_two().unwrap_or(1 << 31)
}

/// Where an entry is: bucket, and offset in it.
#[derive(Clone, Copy)]
struct Place {
    bucket: u32,
    offset: usize,
}

impl Place {
    const fn new(bucket: u32, way: usize) -> Self {
        Self { bucket, offset: way * size_of::<Host6>() }
    }

    const fn state(self) -> usize {
        self.offset + offset_of!(Host6, state)
    }

    const fn address(self, half: usize) -> usize {
        self.offset + offset_of!(Host6, address) + half * 8
    }
}

fn words(address: Ipv6Addr) -> [u64; 2] {
    V6::words(&address.octets())
}

impl Ipv6Hosts {
    /// Takes the table of a loaded object.
    ///
    /// # Errors
    /// It is missing or cannot be mapped.
    pub fn open(bpf: &Ebpf) -> Result<Self, TableError> {
        Self::of(array(bpf, NAME)?)
    }

    /// The table in a map.
    ///
    /// # Errors
    /// The map is none, or cannot be mapped.
    pub fn of(map: &MapData) -> Result<Self, TableError> {
        MappedArray::new(map).map(|map| Self { map }).map_err(at(NAME))
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
        let found = self.find(settings, address).map_err(at(NAME))?;
        Ok(found.map(|(_, state)| hosts6::class(state)))
    }

    /// Enters an address, or changes its class by one word.
    ///
    /// # Errors
    /// The settings are not this table's.
    pub fn set(
        &self,
        settings: &Settings,
        address: Ipv6Addr,
        class: ClassId,
    ) -> Result<Result<(), Full>, TableError> {
        self.write(settings, address, class).map_err(at(NAME))
    }

    /// Takes an address out; whether it was there.
    ///
    /// # Errors
    /// The settings are not this table's.
    pub fn remove(&self, settings: &Settings, address: Ipv6Addr) -> Result<bool, TableError> {
        let removed = self.find(settings, address).and_then(|found| {
            let Some((place, state)) = found else { return Ok(false) };
            let state = hosts6::freed(state);
            self.map.store_u64(place.bucket, place.state(), state)?;
            let [first, _] = buckets(settings, words(address));
            if place.bucket != first {
                let displaced = self.map.load_u64(first, DISPLACED)?;
                self.map.store_u64(first, DISPLACED, displaced.saturating_sub(1))?;
            }
            Ok(true)
        });
        removed.map_err(at(NAME))
    }

    /// Has programs look for an address where it is; whether they did not.
    ///
    /// # Errors
    /// The settings are not this table's.
    pub fn reveal(&self, settings: &Settings, address: Ipv6Addr) -> Result<bool, TableError> {
        const MANY: u64 = 1 << 32;
        let [first, _] = buckets(settings, words(address));
        let revealed = self.find(settings, address).and_then(|found| {
            let hidden = found.is_some_and(|(place, _)| place.bucket != first)
                && self.map.load_u64(first, DISPLACED)? == 0;
            if hidden {
                // How many there are is not known.
                self.map.store_u64(first, DISPLACED, MANY)?;
            }
            Ok(hidden)
        });
        revealed.map_err(at(NAME))
    }

    /// The addresses in a bucket; `None` behind the last one.
    ///
    /// # Errors
    /// None, as the bucket is one of the map's.
    pub fn bucket(&self, bucket: u32) -> Result<Option<Vec<Ipv6Addr>>, TableError> {
        if bucket > self.mask() {
            return Ok(None);
        }
        let ways = self.map.read(bucket).map_err(at(NAME))?.ways;
        let valid = ways.iter().filter(|entry| entry.state & HOST6_VALID != 0);
        Ok(Some(valid.map(|entry| entry.address.into()).collect()))
    }

    fn find(
        &self,
        settings: &Settings,
        address: Ipv6Addr,
    ) -> Result<Option<(Place, u64)>, MmapError> {
        let wanted = words(address);
        for bucket in buckets(settings, wanted) {
            for way in 0..HOST6_WAYS {
                let place = Place::new(bucket, way);
                let state = self.map.load_u64(bucket, place.state())?;
                let half = |half| self.map.load_u64(bucket, place.address(half));
                if state & HOST6_VALID != 0 && [half(0)?, half(1)?] == wanted {
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
    ) -> Result<Result<(), Full>, MmapError> {
        if let Some((place, state)) = self.find(settings, address)? {
            let state = hosts6::with_class(state, class);
            return self.map.store_u64(place.bucket, place.state(), state).map(Ok);
        }
        let [first, second] = buckets(settings, words(address));
        let Some((place, state)) = self.room([first, second])? else {
            return Ok(Err(Full));
        };
        if place.bucket != first {
            let displaced = self.map.load_u64(first, DISPLACED)?;
            self.map.store_u64(first, DISPLACED, displaced + 1)?;
        }
        for (half, word) in words(address).into_iter().enumerate() {
            self.map.store_u64(place.bucket, place.address(half), word)?;
        }
        let state = hosts6::taken(state, class);
        self.map.store_u64(place.bucket, place.state(), state).map(Ok)
    }

    /// A free entry, and its state: of the first bucket while most of that is free, else of the emptier one.
    fn room(&self, buckets: [u32; 2]) -> Result<Option<(Place, u64)>, MmapError> {
        let mut best: Option<(usize, Place, u64)> = None;
        for bucket in buckets {
            let mut free = Vec::new();
            for way in 0..HOST6_WAYS {
                let place = Place::new(bucket, way);
                let state = self.map.load_u64(bucket, place.state())?;
                if state & HOST6_VALID == 0 {
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
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use netpold_ebpf::flow::key::hash_keys;
    use netpold_ebpf::host::HostMemory;

    use super::*;
    use crate::bpf::sys::test_objects;

    const BPF_F_MMAPABLE: u32 = 1 << 10;

    fn table(buckets: u32) -> (Ipv6Hosts, Settings) {
        let fd = test_objects::array(size_of::<Hosts6Bucket>() as u32, buckets, BPF_F_MMAPABLE);
        let table = Ipv6Hosts::of(&MapData::from_fd(fd).unwrap()).unwrap();
        let (hash_keys, ipv6_hosts_mask) = (hash_keys(7), table.mask());
        let settings = Settings { hash_keys, ipv6_hosts_mask, ..Settings::default() };
        (table, settings)
    }

    fn address(number: u128) -> Ipv6Addr {
        Ipv6Addr::from_bits(0xfd00_0000_0000_0000_0000_0000_0000_0000 | number << 48 | number)
    }

    /// As a program reads it.
    fn read(table: &Ipv6Hosts, settings: &Settings, address: Ipv6Addr) -> Option<ClassId> {
        let first = table.map.words().unwrap().as_ptr();
        for bucket in buckets(settings, words(address)) {
            // SAFETY: a bucket of the table, whose words are all atomic.
            let bucket = unsafe { first.add(bucket as usize * size_of::<Hosts6Bucket>() / 8) };
            let bucket: *mut u64 = bucket.cast_mut().cast();
            // SAFETY: as before.
            let state = unsafe { hosts6::state(&HostMemory, bucket, words(address)) };
            if state & HOST6_VALID != 0 {
                return Some(hosts6::class(state));
            }
            // SAFETY: as before.
            if !unsafe { hosts6::goes_on(&HostMemory, bucket) } {
                return None;
            }
        }
        None
    }

    #[test]
    fn a_table_for_so_many_addresses_holds_them() {
        const ADDRESSES: u32 = 10_000;
        let (table, settings) = table(buckets_for(ADDRESSES));
        let numbers = || 0..u128::from(ADDRESSES);
        for number in numbers() {
            assert_eq!(table.set(&settings, address(number), number as u32).unwrap(), Ok(()));
        }
        for number in numbers() {
            assert_eq!(read(&table, &settings, address(number)), Some(number as u32));
        }
        assert_eq!(read(&table, &settings, address(numbers().end)), None);
        for number in numbers().step_by(2) {
            assert!(table.remove(&settings, address(number)).unwrap());
            assert!(!table.remove(&settings, address(number)).unwrap(), "it was there once");
        }
        let buckets = 0..=table.mask();
        let left: Vec<_> = buckets.flat_map(|n| table.bucket(n).unwrap().unwrap()).collect();
        assert_eq!(left.len(), ADDRESSES as usize / 2);
        assert_eq!(table.bucket(table.mask() + 1).unwrap(), None);
        assert_eq!(read(&table, &settings, address(2)), None);
        assert_eq!(read(&table, &settings, address(3)), Some(3));
    }

    #[test]
    fn buckets_say_whether_addresses_are_in_their_second_one() {
        let (table, settings) = table(2);
        let other = |number| {
            let [first, second] = buckets(&settings, words(address(number)));
            first == 0 && second == 1
        };
        let numbers: Vec<u128> = (0..).filter(|number| other(*number)).take(6).collect();
        for number in &numbers {
            assert_eq!(table.set(&settings, address(*number), 1 + *number as u32).unwrap(), Ok(()));
        }
        let displaced = || table.map.load_u64(0, DISPLACED).unwrap();
        let seen = || {
            let read = |number: &&u128| read(&table, &settings, address(**number)).is_some();
            numbers.iter().filter(read).count()
        };
        assert_eq!((displaced(), seen()), (3, 6));
        table.map.store_u64(0, DISPLACED, 0).unwrap();
        assert_eq!(seen(), 3);
        let revealed = numbers.iter().filter(|n| table.reveal(&settings, address(**n)).unwrap());
        assert_eq!((revealed.count(), seen()), (1, 6), "one look is enough for all");
        table.map.store_u64(0, DISPLACED, 3).unwrap();
        for number in &numbers {
            assert!(table.remove(&settings, address(*number)).unwrap());
        }
        assert_eq!((displaced(), seen()), (0, 0));
    }

    #[test]
    fn a_full_bucket_refuses_and_changes_classes() {
        let (table, settings) = table(1);
        for number in 0..HOST6_WAYS as u128 {
            assert_eq!(table.set(&settings, address(number), 1).unwrap(), Ok(()));
        }
        assert_eq!(table.set(&settings, address(9), 1).unwrap(), Err(Full));
        assert_eq!(table.set(&settings, address(3), 1 << 30 | 5).unwrap(), Ok(()));
        assert_eq!(table.get(&settings, address(3)).unwrap(), Some(1 << 30 | 5));
        assert!(table.remove(&settings, address(0)).unwrap());
        assert_eq!(table.set(&settings, address(9), 2).unwrap(), Ok(()));
        assert_eq!(read(&table, &settings, address(9)), Some(2));
    }

    /// More addresses than places take turns: whoever reads one meanwhile finds its class or nothing.
    #[test]
    fn readers_never_see_the_class_of_another_address() {
        const TURNS: u128 = 400_000;
        let (table, settings) = table(1);
        let done = AtomicBool::new(false);
        let class = |number: u128| number as u32 * 7 + 1;
        let found = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut found = 0_u64;
                while !done.load(Ordering::Acquire) {
                    for number in 0..8 {
                        if let Some(seen) = read(&table, &settings, address(number)) {
                            assert_eq!(seen, class(number));
                            found += 1;
                        }
                    }
                }
                found
            });
            for turn in 0..TURNS {
                let (comes, goes) = (turn % 8, (turn + 4) % 8);
                table.remove(&settings, address(goes)).unwrap();
                assert_eq!(table.set(&settings, address(comes), class(comes)).unwrap(), Ok(()));
            }
            done.store(true, Ordering::Release);
            reader.join().unwrap()
        });
        assert!(found > 0, "the reader found nothing");
    }
}
