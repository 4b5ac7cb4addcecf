//! How large the flow tables of a node are.

use netpold_ebpf::layout::{Ct4Bucket, Ct6Bucket};

/// Fewest and most buckets that a node may need: 17 and 134 MB for both families.
const BUCKETS: (u64, u64) = (1 << 16, 1 << 19);
/// IPv4 buckets for each processor. kube-proxy gives the node's conntrack 32,768 connections for each
/// (`--conntrack-max-per-core`), one of two local pods has two entries here, and a bucket holds four.
const FOR_EACH_CPU: u64 = 32_768 * 2 / 4;
/// Both tables take at most this part of the node's memory.
const PART_OF_MEMORY: u64 = 400;
/// Bytes of an IPv4 bucket and of its share of the IPv6 table, which has half as many.
const BYTES: u64 = (size_of::<Ct4Bucket>() + size_of::<Ct6Bucket>() / 2) as u64;

/// Of the buckets that a node may need, the part that its tables begin with.
const FIRST_PART: u32 = 4;

/// Buckets of the IPv4 flow table: powers of two, four flows each. The IPv6 table has half as many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Where no tables are pinned yet.
    pub first: u32,
    /// Once those have little room.
    pub most: u32,
}

impl Buckets {
    /// Tables that never grow.
    #[must_use]
    pub fn fixed(buckets: u32) -> Self {
        Self { first: buckets, most: buckets }
    }

    /// The sizes for this node. Tables that are there are never replaced by smaller ones.
    #[must_use]
    pub fn for_this_node() -> Self {
        let most = buckets_for_this_node();
        Self { first: most / FIRST_PART, most }
    }
}

fn buckets_for_this_node() -> u32 {
    let number = |name| {
        // SAFETY: it takes a number and gives one.
        u64::try_from(unsafe { libc::sysconf(name) }).unwrap_or(0)
    };
    // Of the node, whatever the container may have: so many connections pass.
    let memory = number(libc::_SC_PHYS_PAGES) * number(libc::_SC_PAGESIZE);
    buckets(number(libc::_SC_NPROCESSORS_ONLN), memory)
}

fn buckets(cpus: u64, memory: u64) -> u32 {
    let wanted = (cpus * FOR_EACH_CPU).min(memory / PART_OF_MEMORY / BYTES);
    let (least, most) = BUCKETS;
    let buckets = wanted.clamp(least, most);
    1 << buckets.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_as_large_as_the_node_needs() {
        let of = |cpus: u64, gibibytes: u64| buckets(cpus, gibibytes << 30);
        assert_eq!(of(1, 1), 65_536);
        assert_eq!(of(4, 16), 65_536);
        assert_eq!(of(8, 16), 131_072);
        assert_eq!(of(12, 64), 131_072, "a power of two");
        assert_eq!(of(32, 8), 65_536, "little memory");
        assert_eq!(of(32, 256), 524_288);
        assert_eq!(of(256, 2048), 524_288);
        assert_eq!(of(0, 0), 65_536, "the kernel does not say");
    }

    #[test]
    fn this_node_says_how_large_it_is() {
        let Buckets { first, most } = Buckets::for_this_node();
        assert!(first.is_power_of_two() && most.is_power_of_two() && first < most);
    }
}
