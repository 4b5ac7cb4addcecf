//! Keyed hash of flows and addresses: no difference between two keys helps an attacker who does not have the hash's
//! key.

use netpold_ebpf::{
    flow::key::{FlowTableKey, choices, hash, hash_keys},
    layout::Settings,
};

const SEEDS: u64 = 1_000;
/// Bits of a bucket index in these tests.
const BITS: u32 = 8;
/// Limit of collisions: the mean is 4, and fewer than 1 in 10^15 runs exceed this by chance.
const MOST: u32 = 35;

fn all_settings() -> Vec<Settings> {
    let settings = |seed| Settings { hash_keys: hash_keys(seed), ..Settings::default() };
    (0..SEEDS).map(|seed| settings(seed.wrapping_mul(0x2545_f491_4f6c_dd1d))).collect()
}

/// Number of seeds under which two keys have equal hash bits: low ones, high ones (the first and the second bucket),
/// all.
fn collisions<K: FlowTableKey>(all: &[Settings], a: &K, b: &K) -> [u32; 3] {
    all.iter().fold([0; 3], |count, settings| {
        let (a, b) = (hash(settings, a), hash(settings, b));
        let same = [a as u8 == b as u8, (a >> 32) as u8 == (b >> 32) as u8, a == b];
        std::array::from_fn(|index| count[index] + u32::from(same[index]))
    })
}

fn holds<K: FlowTableKey + std::fmt::Debug>(all: &[Settings], a: &K, b: &K) {
    const { assert!(BITS == u8::BITS) };
    let [low, high, whole] = collisions(all, a, b);
    assert!(low <= MOST && high <= MOST && whole == 0, "{a:x?} {b:x?}: {low} {high} {whole}");
}

/// A key with some bits flipped.
fn turned<const N: usize>(mut key: [u64; N], bits: &[usize]) -> [u64; N] {
    bits.iter().for_each(|bit| key[bit / 64] ^= 1 << (bit % 64));
    key
}

/// Typical keys, with endpoint, ports, address and protocol; and all-zero ones.
const KEYS4: [[u64; 2]; 2] = [[0x0a00_0107_0000_0005, 0x6_9c40_0050], [0; 2]];
const KEYS6: [[u64; 4]; 2] =
    [[0x9c40_0050_0000_0005, 0x0100_00fd, 0x0200_0000_0000_0000, 6], [0; 4]];

#[test]
fn one_bit_and_two() {
    let all = all_settings();
    for key in KEYS4 {
        for one in 0..128 {
            holds(&all, &key, &turned(key, &[one]));
            (one + 1..128).for_each(|two| holds(&all, &key, &turned(key, &[one, two])));
        }
    }
    for key in KEYS6 {
        for one in 0..256 {
            holds(&all, &key, &turned(key, &[one]));
            // All pairs in different words at some distances, including equal bits of two words.
            (one + 1..256)
                .filter(|two| (two - one) % 32 == 0 || two % 7 == 0)
                .for_each(|two| holds(&all, &key, &turned(key, &[one, two])));
        }
    }
}

#[test]
fn three_bits() {
    let all = all_settings();
    let mut random = 1_u64;
    let mut bit = |bits: usize| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % bits
    };
    for _ in 0..4_000 {
        let bits = [bit(128), bit(128), bit(128)];
        if bits[0] != bits[1] && bits[1] != bits[2] && bits[0] != bits[2] {
            holds(&all, &KEYS4[0], &turned(KEYS4[0], &bits));
        }
        let bits = [bit(256), bit(256), bit(256)];
        if bits[0] != bits[1] && bits[1] != bits[2] && bits[0] != bits[2] {
            holds(&all, &KEYS6[0], &turned(KEYS6[0], &bits));
        }
    }
}

/// The top bit of each 32-bit half, in every set of halves: multiplications shift these out, and the previous hash
/// ignored them in three bytes of an IPv6 address.
#[test]
fn top_bits() {
    let all = all_settings();
    for halves in 1..16_usize {
        let bits: Vec<usize> =
            (0..4).filter(|n| halves >> n & 1 != 0).map(|n| n * 32 + 31).collect();
        KEYS4.iter().for_each(|key| holds(&all, key, &turned(*key, &bits)));
    }
    for halves in 1..256_usize {
        let bits: Vec<usize> =
            (0..8).filter(|n| halves >> n & 1 != 0).map(|n| n * 32 + 31).collect();
        KEYS6.iter().for_each(|key| holds(&all, key, &turned(*key, &bits)));
    }
    let mut octets = [0xfd; 16];
    let words = |octets: [u8; 16]| {
        let [low, high] =
            [0, 8].map(|at| u64::from_ne_bytes(std::array::from_fn(|i| octets[at + i])));
        ([low, high], [5, low, high, 6])
    };
    let (address, flow) = words(octets);
    [7, 11, 15].into_iter().for_each(|byte: usize| octets[byte] ^= 0x80);
    let (other, other_flow) = words(octets);
    holds(&all, &address, &other);
    holds(&all, &flow, &other_flow);
}

/// Neighbouring keys spread over the buckets like random ones.
#[test]
fn counted_keys_spread() {
    const BUCKETS: usize = 1 << 12;
    for settings in &all_settings()[..20] {
        for shift in [0, 16, 32, 48] {
            let mut counts = vec![0_u32; BUCKETS];
            for number in 0..BUCKETS as u64 * 4 {
                let key = [5 ^ number << shift, 0x6_9c40_0050];
                let [first, second] = choices(hash(settings, &key), BUCKETS as u32 - 1);
                counts[first as usize] += 1;
                counts[second as usize] += 1;
            }
            // The mean is eight; the fullest of 4,096 buckets has about 20.
            let fullest = counts.iter().max().copied().unwrap_or_default();
            let empty = counts.iter().filter(|count| **count == 0).count();
            assert!(fullest < 40 && empty < 30, "shift {shift}: {fullest}, {empty} empty");
        }
    }
}
