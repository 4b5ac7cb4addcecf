use std::sync::atomic::{AtomicBool, Ordering};

use netpold_ebpf::flow::key::hash_keys;
use netpold_ebpf::host::HostMemory;

use super::*;
use crate::bpf::test_objects;

const BPF_F_MMAPABLE: u32 = 1 << 10;

fn table(buckets: u32) -> (Ipv6Hosts, Settings) {
    let map = |value, elements| {
        MapData::from_fd(test_objects::array(value, elements, BPF_F_MMAPABLE)).unwrap()
    };
    let filter = map(size_of::<u64>() as u32, filter_for(buckets));
    let table =
        Ipv6Hosts::open_maps(&map(size_of::<Hosts6Bucket>() as u32, buckets), &filter).unwrap();
    let (hash_keys, ipv6_hosts_mask) = (hash_keys(7), table.mask());
    let settings = Settings { hash_keys, ipv6_hosts_mask, ..Settings::default() };
    (table, settings)
}

fn address(number: u128) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xfd00_0000_0000_0000_0000_0000_0000_0000 | number << 48 | number)
}

/// Class of an address as a program finds it.
fn read(table: &Ipv6Hosts, settings: &Settings, address: Ipv6Addr) -> Option<ClassId> {
    let first = table.map.words().unwrap().as_ptr();
    let places = Places::new(settings, words(address));
    if table.filter.load_u64(places.filter(), 0).unwrap() & places.filter_bit() == 0 {
        return None;
    }
    for bucket in places.buckets {
        // SAFETY: a bucket of the table, where all words are atomic.
        let bucket = unsafe { first.add(bucket as usize * size_of::<Hosts6Bucket>() / 8) };
        let bucket: *mut u64 = bucket.cast_mut().cast();
        // SAFETY: as before.
        let found = unsafe { hosts6::find(&HostMemory, bucket, words(address)) };
        if found & hosts6::FOUND != 0 {
            return Some(found as ClassId);
        }
        // SAFETY: as before.
        if !unsafe { hosts6::goes_on(&HostMemory, bucket, places) } {
            return None;
        }
    }
    None
}

/// The table's nominal number of addresses, without neighbours.
#[test]
fn a_table_for_so_many_addresses_holds_them() {
    const ADDRESSES: u32 = 16_384;
    let (table, settings) = table(buckets_for(ADDRESSES));
    let class = |address: Ipv6Addr| address.to_bits() as u32 % 999;
    let enter = |address: &Ipv6Addr| table.set(&settings, *address, class(*address)).unwrap();
    let (held, refused): (Vec<_>, Vec<_>) =
        (0..ADDRESSES.into()).map(address).partition(|address| enter(address) == Ok(()));
    assert!(!refused.is_empty() && refused.len() < overflow_for(ADDRESSES) as usize);
    for address in &held {
        assert_eq!(read(&table, &settings, *address), Some(class(*address)));
    }
    for address in refused.iter().chain(&[address(ADDRESSES.into())]) {
        assert_eq!(read(&table, &settings, *address), None);
    }
    for address in held.iter().step_by(2) {
        assert!(table.remove(&settings, *address).unwrap());
        assert!(!table.remove(&settings, *address).unwrap(), "it existed exactly once");
    }
    let buckets = 0..=table.mask();
    let left: Vec<_> = buckets.flat_map(|n| table.bucket(n).unwrap().unwrap()).collect();
    assert_eq!(left.len(), held.len() / 2);
    assert_eq!(table.bucket(table.mask() + 1).unwrap(), None);
    assert_eq!(read(&table, &settings, held[2]), None);
    assert_eq!(read(&table, &settings, held[3]), Some(class(held[3])));
}

#[test]
fn neighbours_share_an_entry() {
    let (table, settings) = table(1);
    let neighbours: Vec<_> =
        (0..12).map(|number| Ipv6Addr::from_bits(0xfd << 120 | number)).collect();
    for (class, address) in (1..).zip(&neighbours) {
        assert_eq!(table.get(&settings, *address).unwrap(), None);
        assert_eq!(read(&table, &settings, *address), None);
        assert_eq!(table.set(&settings, *address, class).unwrap(), Ok(()));
    }
    assert_eq!(table.set(&settings, address(9), 1).unwrap(), Err(HostsFull));
    assert_eq!(table.set(&settings, neighbours[6], 1 << 30 | 5).unwrap(), Ok(()));
    for address in &neighbours[4..6] {
        assert!(table.remove(&settings, *address).unwrap());
        assert_eq!(read(&table, &settings, *address), None);
    }
    assert!(!table.remove(&settings, neighbours[5]).unwrap());
    assert_eq!(table.get(&settings, neighbours[5]).unwrap(), None);
    let classes = [1, 2, 3, 4, 1 << 30 | 5, 8, 9, 10, 11, 12];
    let seen = neighbours.iter().filter_map(|address| read(&table, &settings, *address));
    assert_eq!(seen.collect::<Vec<_>>(), classes);
    let gotten = neighbours.iter().filter_map(|address| table.get(&settings, *address).unwrap());
    assert_eq!(gotten.collect::<Vec<_>>(), classes);
    let mut listed = table.bucket(0).unwrap().unwrap();
    listed.sort();
    assert_eq!(listed, [&neighbours[..4], &neighbours[6..]].concat());
    // The place of an entry is reused once its last address is removed.
    for address in &neighbours[6..8] {
        assert_eq!(table.set(&settings, Ipv6Addr::LOCALHOST, 1).unwrap(), Err(HostsFull));
        assert!(table.remove(&settings, *address).unwrap());
    }
    assert_eq!(table.set(&settings, Ipv6Addr::LOCALHOST, 77).unwrap(), Ok(()));
    assert_eq!(read(&table, &settings, Ipv6Addr::LOCALHOST), Some(77));
    assert_eq!(read(&table, &settings, Ipv6Addr::UNSPECIFIED), None, "its neighbour is absent");
}

/// Addresses with first bucket 0 of two, and with this filter bit.
fn of_first_bucket(settings: &Settings, bit: u32) -> impl Iterator<Item = Ipv6Addr> {
    let places = |address: &Ipv6Addr| Places::new(settings, words(*address));
    let has_bit = move |address: &Ipv6Addr| {
        let Places { buckets, bit: own } = places(address);
        buckets == [0, 1] && own == bit
    };
    (0..).map(address).filter(has_bit)
}

#[test]
fn buckets_say_whether_addresses_are_in_their_second_one() {
    let (table, settings) = table(2);
    let addresses: Vec<_> = of_first_bucket(&settings, 5).take(6).collect();
    for address in &addresses {
        assert_eq!(table.set(&settings, *address, 7).unwrap(), Ok(()));
    }
    let displaced = || table.map.load_u64(0, DISPLACED).unwrap();
    let seen = || addresses.iter().filter(|it| read(&table, &settings, **it).is_some()).count();
    assert_eq!((displaced(), seen()), (3 << 10, 6));
    table.map.store_u64(0, DISPLACED, 2 << 8).unwrap();
    assert_eq!(seen(), 3, "another bit's addresses are there");
    let revealed = addresses.iter().filter(|it| table.reveal(&settings, **it).unwrap());
    assert_eq!((revealed.count(), seen()), (1, 6), "one look is enough for all");
    table.map.store_u64(0, DISPLACED, 2 << 10).unwrap();
    for address in &addresses {
        assert!(table.remove(&settings, *address).unwrap());
    }
    assert_eq!((displaced(), seen()), (0, 0));
}

#[test]
fn the_filter_has_the_bits_of_the_addresses_that_are_there() {
    let (table, settings) = table(2);
    let filter = || table.filter.load_u64(0, 0).unwrap();
    let mut addresses = Vec::new();
    for (bit, count) in [(3, 2), (9, 3), (31, 1)] {
        addresses.extend(of_first_bucket(&settings, bit).take(count));
    }
    for address in &addresses {
        assert_eq!(table.set(&settings, *address, 7).unwrap(), Ok(()));
    }
    let all = 1 << 3 | 1 << 9 | 1 << 31;
    assert_eq!(filter(), all);
    table.filter.store_u64(0, 0, 1 << 7).unwrap();
    let read = |address: &Ipv6Addr| read(&table, &settings, *address);
    assert_eq!(addresses.iter().find_map(read), None);
    assert!(table.check_filter(&settings, 0).unwrap(), "it lacks bits and has one too many");
    assert!(!table.check_filter(&settings, 0).unwrap());
    assert_eq!(filter(), all);
    table.filter.store_u64(0, 0, 0).unwrap();
    assert!(table.reveal(&settings, addresses[0]).unwrap());
    assert!(!table.reveal(&settings, addresses[1]).unwrap(), "they have one bit");
    assert_eq!(filter(), 1 << 3);
    assert!(table.check_filter(&settings, 0).unwrap());
    // Each bit is cleared with its last address, in either bucket.
    let mut left = Vec::new();
    for address in &addresses {
        assert!(table.remove(&settings, *address).unwrap());
        left.push(filter());
    }
    assert_eq!(left[..2], [all, all & !(1 << 3)]);
    assert_eq!(left[4..], [1 << 31, 0]);
}

/// More of a bit's addresses are in the second bucket than the count shows: the bit stays set.
#[test]
fn an_uncounted_address_is_let_through() {
    let (table, settings) = table(2);
    let addresses: Vec<_> = of_first_bucket(&settings, 12).take(2 * HOSTS6_WAYS).collect();
    for address in &addresses {
        assert_eq!(table.set(&settings, *address, 7).unwrap(), Ok(()));
    }
    for (place, address) in addresses.iter().enumerate() {
        for left in &addresses[place..] {
            assert_eq!(read(&table, &settings, *left), Some(7));
        }
        assert!(table.remove(&settings, *address).unwrap());
    }
}

#[test]
fn a_full_bucket_refuses_and_changes_classes() {
    let (table, settings) = table(1);
    for number in 0..HOSTS6_WAYS as u128 {
        assert_eq!(table.set(&settings, address(number), 1).unwrap(), Ok(()));
    }
    assert_eq!(table.set(&settings, address(9), 1).unwrap(), Err(HostsFull));
    assert_eq!(table.set(&settings, address(2), 1 << 30 | 5).unwrap(), Ok(()));
    assert_eq!(table.get(&settings, address(2)).unwrap(), Some(1 << 30 | 5));
    assert!(table.remove(&settings, address(0)).unwrap());
    assert_eq!(table.set(&settings, address(9), 2).unwrap(), Ok(()));
    assert_eq!(read(&table, &settings, address(9)), Some(2));
}

/// More addresses than places, two of them in one entry, are added and removed in turn: concurrent readers find an
/// address's class or none.
#[test]
fn readers_never_see_the_class_of_another_address() {
    const TURNS: u128 = 400_000;
    let (table, settings) = table(1);
    let done = AtomicBool::new(false);
    let address =
        |number: u128| Ipv6Addr::from_bits(0xfd << 120 | (number / 2) << 64 | (number % 2));
    let class = |number: u128| number as u32 * 7 + 1;
    let found = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut found = 0_u64;
            while !done.load(Ordering::Acquire) {
                for number in 0..10 {
                    if let Some(seen) = read(&table, &settings, address(number)) {
                        assert_eq!(seen, class(number));
                        found += 1;
                    }
                }
            }
            found
        });
        for turn in 0..TURNS {
            let (comes, goes) = (turn % 10, (turn + 5) % 10);
            table.remove(&settings, address(goes)).unwrap();
            assert_eq!(table.set(&settings, address(comes), class(comes)).unwrap(), Ok(()));
        }
        done.store(true, Ordering::Release);
        reader.join().unwrap()
    });
    assert!(found > 0, "the reader found nothing");
}
