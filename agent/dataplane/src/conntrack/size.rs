//! Size of a node's flow tables.

use netpold_ebpf::layout::{Ct4Bucket, Ct6Bucket};

/// Minimum and maximum number of buckets of a node: 17 and 134 MB for both families.
const BUCKETS: (u64, u64) = (1 << 16, 1 << 19);
/// IPv4 buckets per processor. kube-proxy gives the node's conntrack 32,768 connections per processor
/// (`--conntrack-max-per-core`); a connection of two local pods has two entries here, and a bucket holds four.
const FOR_EACH_CPU: u64 = 32_768 * 2 / 4;
/// Maximum memory for both tables: 1/`PART_OF_MEMORY` of the node's memory.
const PART_OF_MEMORY: u64 = 400;
/// Bytes of an IPv4 bucket and of its share of the IPv6 table, which has half as many buckets.
const BYTES: u64 = (size_of::<Ct4Bucket>() + size_of::<Ct6Bucket>() / 2) as u64;

/// Initial size of the tables: 1/`FIRST_PART` of the node's maximum number of buckets.
const FIRST_PART: u32 = 4;

/// Number of IPv4 buckets, four flows each: powers of two. The IPv6 table has half as many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Size where no tables are pinned yet.
    pub first: u32,
    /// Size once the first tables have little room.
    pub most: u32,
}

impl Buckets {
    /// Returns a size that never grows.
    #[must_use]
    pub fn fixed(buckets: u32) -> Self {
        Self { first: buckets, most: buckets }
    }

    /// Returns the sizes for this node. Existing tables are never replaced by smaller ones.
    #[must_use]
    pub fn for_this_node() -> Self {
        let most = buckets_for_this_node();
        Self { first: most / FIRST_PART, most }
    }
}

fn buckets_for_this_node() -> u32 {
    let number = |name| {
        // SAFETY: the call takes and returns a number.
        u64::try_from(unsafe { libc::sysconf(name) }).unwrap_or(0)
    };
    // Memory of the node, not of the container: connections scale with the node.
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
