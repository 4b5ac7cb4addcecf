use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use netpold_ebpf::host::HostMemory;
use netpold_ebpf::layout::Blocks6Node;
use netpold_ebpf::packet::family::V6;
use netpold_ebpf::tables::ipv6_blocks;
use proptest::prelude::*;

use super::*;
use crate::bpf::test_objects;

const BPF_F_MMAPABLE: u32 = 1 << 10;

/// A map of this many nodes.
fn map(nodes: u32) -> MapData {
    let size = size_of::<Blocks6Node>() as u32;
    MapData::from_fd(test_objects::array(size, nodes, BPF_F_MMAPABLE)).unwrap()
}

/// A tree with this many nodes.
fn tree(nodes: u32, wait: fn()) -> Ipv6Blocks {
    Ipv6Blocks::empty_in(&map(nodes), wait).unwrap()
}

/// Wait without readers.
fn nobody() {}

fn net(bits: u128, len: u8) -> Ipv6Net {
    Ipv6Net::new(bits.into(), len).unwrap().trunc()
}

/// Class of an address as a program finds it, starting at the root word.
fn read(map: &[AtomicU64], root: u32, address: u128) -> ClassId {
    let node = |node: u32| {
        let words = size_of::<Blocks6Node>() / 8;
        map.get(node as usize * words..(node as usize + 1) * words).map(|it| it.as_ptr().cast())
    };
    let address = V6::words(&Ipv6Addr::from_bits(address).octets());
    // SAFETY: nodes of the tree, where all words are atomic.
    unsafe { ipv6_blocks::class(&HostMemory, root, address, node) }
}

fn read_class(blocks: &Ipv6Blocks, address: u128) -> ClassId {
    read(blocks.nodes.map().words().unwrap(), blocks.root(), address)
}

/// Longest match by a naive search.
fn naive(prefixes: &BTreeMap<PrefixKey, ClassId>, address: u128) -> ClassId {
    let holds = |&(&(bits, len), _): &(&PrefixKey, &ClassId)| {
        (address ^ bits).checked_shr(128 - u32::from(len)).unwrap_or(0) == 0
    };
    let longest = prefixes.iter().filter(holds).max_by_key(|((_, len), _)| *len);
    longest.map_or(0, |(_, class)| *class)
}

/// Nested prefixes, adjacent ones, and ones far apart.
fn any_net() -> impl Strategy<Value = Ipv6Net> {
    let far = any::<u128>();
    let near = (0u128..4, 0u128..3, 0u128..6).prop_map(|(a, b, c)| {
        0x2a00 << 112 | a << 126 | b << 80 | c << 64 | b << 63 | c << 62 | a << 1 | c & 1
    });
    let edge = (0u32..128, any::<bool>())
        .prop_map(|(bit, all)| if all { u128::MAX << bit } else { u128::MAX >> bit });
    let bits = prop_oneof![1 => far, 6 => near, 1 => edge];
    let len = prop_oneof![
        4 => 0u8..=128,
        2 => Just(64u8),
        1 => 62u8..=66,
        1 => 126u8..=128,
        1 => Just(48u8)
    ];
    (bits, len).prop_map(|(bits, len)| net(bits, len))
}

/// Addresses at the borders of a prefix, next to it and in its middle.
fn probes(net: Ipv6Net) -> [u128; 5] {
    let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
    [first, last, first.wrapping_sub(1), last.wrapping_add(1), first + (last - first) / 2]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_address_has_the_class_of_its_longest_prefix(
        steps in prop::collection::vec((any_net(), 0u32..5), 1..120),
        others in prop::collection::vec(any::<u128>(), 8),
    ) {
        let mut blocks = tree(nodes_for(150), nobody);
        let mut prefixes = BTreeMap::new();
        let mut seen = others;
        for (net, class) in steps {
            seen.extend(probes(net));
            // Few classes, so that neighbours are often equal; class 0 removes the prefix.
            if class == 0 {
                let was = prefixes.remove(&key(net)).is_some();
                prop_assert_eq!(blocks.remove(net).unwrap(), was);
            } else {
                blocks.set(net, class).unwrap();
                prefixes.insert(key(net), class);
            }
            for address in seen.iter().rev().take(60) {
                prop_assert_eq!(read_class(&blocks, *address), naive(&prefixes, *address));
            }
        }
        for address in &seen {
            prop_assert_eq!(read_class(&blocks, *address), naive(&prefixes, *address));
        }
        let all: Vec<PrefixKey> = prefixes.keys().copied().collect();
        for (bits, len) in all {
            prop_assert!(blocks.remove(net(bits, len)).unwrap());
        }
        prop_assert_eq!((blocks.root(), blocks.nodes.in_use()), (0, 0));
    }
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state ^ *state >> 29
}

/// Name of a kind of prefixes, and a function that returns its n-th prefix, from n and from n spread over all
/// addresses.
type Kind = (&'static str, fn(u32, u128) -> Ipv6Net);

/// A table for a number of prefixes holds them in any arrangement, added and removed in any order.
#[test]
fn a_table_for_so_many_prefixes_holds_them() {
    const PREFIXES: u32 = 3000;
    let spread = |n: u32| u128::from(n.wrapping_mul(0x9e37_79b1)) << 96;
    let kinds: [Kind; 6] = [
        ("ascending", |n, _| net(u128::from(2 * n) << 80, 48)),
        ("random", |_, spread| net(spread, 32)),
        ("each in a /64 of its own", |n, spread| net(spread | u128::from(n) << 20, 120)),
        ("single addresses side by side", |n, _| net(7 << 100 | u128::from(3 * n), 128)),
        ("nested", |n, spread| net(spread | spread >> 64, (n % 128) as u8)),
        ("descending", |n, _| net(u128::from(PREFIXES - n) << 64, 64)),
    ];
    for (kind, each) in kinds {
        let mut blocks = tree(nodes_for(PREFIXES), nobody);
        let nets: Vec<_> = (0..PREFIXES).map(|n| (each(n, spread(n)), n % 7 + 1)).collect();
        let mut prefixes = BTreeMap::new();
        for (net, class) in &nets {
            blocks.set(*net, *class).unwrap();
            prefixes.insert(key(*net), *class);
        }
        for (net, _) in nets.iter().step_by(97) {
            for address in probes(*net) {
                assert_eq!(read_class(&blocks, address), naive(&prefixes, address), "{kind}");
            }
        }
        // Removes all but every tenth prefix, which leaves nodes as empty as possible.
        for (index, (net, _)) in nets.iter().enumerate().filter(|(index, _)| index % 10 != 0) {
            blocks.remove(*net).unwrap();
            prefixes.remove(&key(*net));
            if index % 97 == 0 {
                let address = net.network().to_bits();
                assert_eq!(read_class(&blocks, address), naive(&prefixes, address), "{kind}");
            }
        }
        let (used, may) = (blocks.nodes.in_use(), nodes_for(prefixes.len() as u32) as usize);
        assert!(used <= may - 2 * NEEDED, "{kind}: {used} nodes of {may}");
    }
}

#[test]
fn a_full_table_refuses_and_stays_as_it_is() {
    let mut blocks = tree(NEEDED as u32 + 40, nobody);
    let block = |n: u128| net(n << 90, 40);
    let held =
        (0..1000).take_while(|n| blocks.set(block(*n), 1 + *n as u32).is_ok()).count() as u128;
    assert!(held > 30, "{held}");
    let full = blocks.set(block(held), 9).unwrap_err();
    assert!(full.to_string().contains("no element is free"), "{full}");
    assert_eq!((0..held).filter(|n| read_class(&blocks, *n << 90) != 1 + *n as u32).count(), 0);
    assert_eq!(read_class(&blocks, held << 90), 0);
}

/// An edit of one block writes only the nodes on the way to it.
#[test]
fn an_edit_writes_few_nodes() {
    const PREFIXES: u32 = 20_000;
    static WAITS: AtomicU32 = AtomicU32::new(0);
    let mut blocks = tree(nodes_for(PREFIXES), || {
        WAITS.fetch_add(1, Ordering::Relaxed);
    });
    let mut state = 5;
    let mut any = || net(u128::from(random(&mut state)) << 64, 32 + (state >> 40) as u8 % 33);
    let nets: Vec<_> = (0..PREFIXES).map(|_| any()).collect();
    for (index, net) in nets.iter().enumerate() {
        blocks.set(*net, index as u32 % 200).unwrap();
    }
    let (mut most, mut all) = (0, 0);
    for net in nets.iter().step_by(20) {
        blocks.nodes.begin(NEEDED).unwrap();
        blocks.remove(*net).unwrap();
        most = most.max(blocks.nodes.leaving());
        all += blocks.nodes.leaving();
        blocks.set(*net, 7).unwrap();
        most = most.max(blocks.nodes.leaving());
        all += blocks.nodes.leaving();
    }
    let edits = 2 * nets.iter().step_by(20).count();
    assert!(most <= 24 && all < 3 * edits, "{most} nodes at the most, {all} in {edits} edits");
    assert!(WAITS.load(Ordering::Relaxed) < 50, "waits for readers come seldom");
}

#[test]
fn what_somebody_else_writes_is_put_right() {
    let mut blocks = tree(nodes_for(1000), nobody);
    for n in 0..1000u32 {
        blocks.set(net(u128::from(n) << 100, 44), n + 1).unwrap();
    }
    let lost = |blocks: &Ipv6Blocks| {
        (0..1000u32).filter(|n| read_class(blocks, u128::from(*n) << 100) != n + 1).count()
    };
    let audit = |blocks: &mut Ipv6Blocks| (0..100).map(|_| blocks.audit(10).unwrap()).sum::<u64>();
    assert_eq!((lost(&blocks), audit(&mut blocks)), (0, 0));
    for node in blocks.nodes.map().words().unwrap().chunks_exact(16) {
        node[8].store(0, Ordering::Relaxed);
    }
    // This node points to itself.
    blocks.nodes.map().store_u64(0, 64, 1 << 63 | 1 << 31).unwrap();
    assert!(lost(&blocks) > 0);
    while audit(&mut blocks) > 0 {}
    assert_eq!(lost(&blocks), 0);
}

/// Blocks are added and removed in nodes that are reused all the time: concurrent readers find the block's class, or
/// that of the block around it.
#[test]
fn readers_never_see_the_class_of_another_block() {
    const TURNS: u32 = 40_000;
    const BLOCKS: u64 = 64;
    /// Odd while the reader searches.
    static LOOKS: AtomicU64 = AtomicU64::new(0);
    fn wait() {
        let now = LOOKS.load(Ordering::SeqCst);
        while now % 2 == 1 && LOOKS.load(Ordering::SeqCst) == now {
            std::hint::spin_loop();
        }
    }
    // Every block is a /48, a /64 or a /112.
    let block = |n: u64| {
        let bits = u128::from(n) << 80 | u128::from(n % 2) << 64 | u128::from(n) << 16;
        net(0x2a << 120 | bits, [48, 64, 112][n as usize % 3])
    };
    let around = net(0x2a << 120, 8);
    let map = map(NEEDED as u32 + 120);
    let mut blocks = Ipv6Blocks::empty_in(&map, wait).unwrap();
    blocks.set(around, 1).unwrap();
    let map = MappedArray::<Blocks6Node>::new(&map).unwrap();
    let root = AtomicU32::new(blocks.root());
    let done = AtomicBool::new(false);
    let found = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let words = map.words().unwrap();
            let mut found = [0_u64; 2];
            while !done.load(Ordering::Acquire) {
                for n in 0..BLOCKS {
                    let address = block(n).network().to_bits() + 5;
                    LOOKS.fetch_add(1, Ordering::SeqCst);
                    let seen = read(words, root.load(Ordering::SeqCst), address);
                    LOOKS.fetch_add(1, Ordering::SeqCst);
                    assert!(seen == 1 || seen == 100 + n as u32, "block {n}: class {seen}");
                    found[usize::from(seen == 1)] += 1;
                }
            }
            found
        });
        let mut state = 3;
        for _ in 0..TURNS {
            let n = random(&mut state) >> 20 & (BLOCKS - 1);
            if blocks.get(block(n)).is_some() {
                blocks.remove(block(n)).unwrap();
            } else {
                blocks.set(block(n), 100 + n as u32).unwrap();
            }
            root.store(blocks.root(), Ordering::SeqCst);
        }
        done.store(true, Ordering::Release);
        reader.join().unwrap()
    });
    assert!(found.iter().all(|found| *found > 0), "the reader saw too little: {found:?}");
}
