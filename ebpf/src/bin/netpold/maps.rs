//! Maps of the programs. Their names are the interface to the agent, which sets the sizes at load time; the layouts
//! are in `netpold_ebpf::layout`.

use core::{cell::UnsafeCell, mem::zeroed};

use aya_ebpf::{
    bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC},
    macros::map,
    maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf},
};
use netpold_ebpf::{
    judge::{connection::Tuple, reject::TOKEN_WORDS},
    layout::{
        Blocks6Node, Counters, Ct4Bucket, Ct6Bucket, DOUBT_BLOCKS, DoubtBlock, ENDPOINT_SLOTS,
        Endpoint, FragmentKey, FragmentPorts, Hosts6Bucket, LEARNED_BUCKETS, NameBucket, NameKey,
        OBSERVED4_BUCKETS, OBSERVED6_BUCKETS, PortBitmap, QUESTION_BUCKETS, RESOLVER_SLOTS, Row,
        RowBlock, STREAM_BUCKETS, STREAM_WAYS, Settings, StreamBucket, StreamBytes, TrieBlock,
        TrieRoot, Unproven,
    },
    names::work::NameWork,
    packet::{
        bytes::MAX_WINDOW,
        family::{V4, V6},
        parse::Fragment,
        parsed::ParsedPacket,
        rejection::{Ends, RejectionFrame},
    },
};

/// Written by the agent through mmap while packets are judged.
const SHARED: u32 = BPF_F_MMAPABLE;

/// A table at a fixed address, which the programs read without a lookup: a data section, which is a map of one element.
/// The agent replaces it with an mmapable map.
#[repr(transparent)]
pub(crate) struct Direct<T>(UnsafeCell<T>);

// SAFETY: only raw pointers are handed out; readers read whole words through them.
unsafe impl<T> Sync for Direct<T> {}

impl<T> Direct<T> {
    /// Address of the table.
    #[inline(always)]
    pub(crate) const fn get(&self) -> *mut T {
        self.0.get()
    }
}

/// A [`Direct`] table in a section of its own, all zero.
macro_rules! direct {
    ($name:ident: $type:ty, $section:literal) => {
        #[unsafe(link_section = $section)]
        #[unsafe(no_mangle)]
        // SAFETY: the types consist of integers, for which zero is valid.
        pub(crate) static $name: Direct<$type> = Direct(UnsafeCell::new(unsafe { zeroed() }));
    };
}

direct!(SETTINGS: Settings, ".bss.settings");
direct!(ENDPOINTS: [Endpoint; ENDPOINT_SLOTS as usize], ".bss.endpoints");
direct!(TRIE_ROOT: TrieRoot, ".bss.trie_root");

#[map]
pub(crate) static TRIE_BLOCKS: Array<TrieBlock> = Array::with_max_entries(16_384, SHARED);
#[map]
pub(crate) static HOSTS6: Array<Hosts6Bucket> = Array::with_max_entries(65_536, SHARED);
/// One word for [`HOSTS6_FILTERED`](netpold_ebpf::layout::HOSTS6_FILTERED) buckets of [`HOSTS6`].
#[map]
pub(crate) static HOSTS6_FILTER: Array<u64> = Array::with_max_entries(32_768, SHARED);
#[map]
pub(crate) static BLOCKS6: Array<Blocks6Node> = Array::with_max_entries(65_536, SHARED);
/// Endpoint slots by pod address.
#[map]
pub(crate) static LOCALS4: HashMap<u32, u32> =
    HashMap::with_max_entries(4 * ENDPOINT_SLOTS, BPF_F_NO_PREALLOC);
#[map]
pub(crate) static LOCALS6: HashMap<[u64; 2], u32> =
    HashMap::with_max_entries(4 * ENDPOINT_SLOTS, BPF_F_NO_PREALLOC);
#[map]
pub(crate) static ROWS: Array<Row> = Array::with_max_entries(2_048, SHARED);
#[map]
pub(crate) static ROW_BLOCKS: Array<RowBlock> = Array::with_max_entries(8_192, SHARED);
#[map]
pub(crate) static PORT_BITMAPS: Array<PortBitmap> = Array::with_max_entries(1_024, SHARED);
#[map]
pub(crate) static CT4: Array<Ct4Bucket> = Array::with_max_entries(131_072, SHARED);
#[map]
pub(crate) static CT6: Array<Ct6Bucket> = Array::with_max_entries(65_536, SHARED);
#[map]
pub(crate) static FRAGMENTS: LruHashMap<FragmentKey, FragmentPorts> =
    LruHashMap::with_max_entries(8_192, 0);
/// Domain names in policies, with a bit for each group of rules.
#[map]
pub(crate) static NAMES: HashMap<NameKey, u32> =
    HashMap::with_max_entries(16_384, BPF_F_NO_PREALLOC);
/// Trusted resolvers, IPv4 as `::ffff:0:0/96`.
#[map]
pub(crate) static RESOLVERS: HashMap<[u64; 2], u32> =
    HashMap::with_max_entries(RESOLVER_SLOTS, BPF_F_NO_PREALLOC);
/// Addresses that pods resolved.
#[map]
pub(crate) static LEARNED: Array<NameBucket> = Array::with_max_entries(LEARNED_BUCKETS, SHARED);
/// Questions that pods asked.
#[map]
pub(crate) static ASKED: Array<NameBucket> = Array::with_max_entries(QUESTION_BUCKETS, SHARED);
/// Connections of pods to resolvers.
#[map]
pub(crate) static STREAMS: Array<StreamBucket> = Array::with_max_entries(STREAM_BUCKETS, SHARED);
/// Times of the last doubt about all of a pod's connections, by endpoint number.
#[map]
pub(crate) static DOUBTED_PODS: Array<u64> = Array::with_max_entries(ENDPOINT_SLOTS, SHARED);
/// Doubts about connections to resolvers, by the pod's port.
#[map]
pub(crate) static DOUBTS: Array<DoubtBlock> = Array::with_max_entries(DOUBT_BLOCKS, SHARED);
/// Start of each connection's incomplete message.
#[map]
pub(crate) static STREAM_BYTES: Array<StreamBytes> =
    Array::with_max_entries(STREAM_BUCKETS * STREAM_WAYS as u32, 0);
#[map]
pub(crate) static NAME_WORK: PerCpuArray<NameWork> = PerCpuArray::with_max_entries(1, 0);
/// Data that would overflow the stack.
#[map]
pub(crate) static SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(1, 0);
#[map]
pub(crate) static COUNTERS: PerCpuArray<Counters> = PerCpuArray::with_max_entries(1, 0);
#[map]
pub(crate) static UNPROVEN: Array<Unproven> = Array::with_max_entries(ENDPOINT_SLOTS, SHARED);
/// Answers to denied packets in this second: words of [`take_token`](netpold_ebpf::judge::reject::take_token).
#[map]
pub(crate) static REJECTIONS: Array<u64> = Array::with_max_entries(TOKEN_WORDS, 0);
/// Records of the flows of pods that no policy selects, see [`netpold_ebpf::observe`].
#[map]
pub(crate) static OBSERVED4: Array<Ct4Bucket> = Array::with_max_entries(OBSERVED4_BUCKETS, SHARED);
#[map]
pub(crate) static OBSERVED6: Array<Ct6Bucket> = Array::with_max_entries(OBSERVED6_BUCKETS, SHARED);
/// Records added in this second by endpoint slot.
#[map]
pub(crate) static OBSERVED_ADDED: Array<u64> = Array::with_max_entries(ENDPOINT_SLOTS, 0);
#[map]
pub(crate) static EVENTS: RingBuf = RingBuf::with_byte_size(256 * 1024, 0);

/// Working memory of this CPU for one packet: the hooks run with softirqs disabled, so no other packet interferes.
#[repr(C)]
pub(crate) struct Scratch {
    /// Key of [`FRAGMENTS`].
    pub(crate) fragment: FragmentKey,
    /// Key of the IPv6 flow to insert.
    pub(crate) key6: [u64; 4],
    /// Flow to insert after the judgement, see [`Pending`].
    pub(crate) pending: Pending,
    /// Conntrack tuples of the packet.
    pub(crate) connection: [Tuple; 2],
    /// Copied bytes of the packet.
    pub(crate) window: [u64; MAX_WINDOW / 8],
    /// Fragment that the extension headers of an IPv6 packet name.
    pub(crate) followed: Fragment,
    /// [`PacketHook::ingress_ifindex`](netpold_ebpf::judge::hook::PacketHook) of the packet.
    pub(crate) ingress_ifindex: u64,
    /// Rows to judge by; 0: the rows in force.
    pub(crate) rows: u64,
    /// [`JudgingRows::revision`](netpold_ebpf::judge::evaluator::JudgingRows) of `rows`.
    pub(crate) revision: u64,
    /// The endpoint's egress row, from which the rows of its groups of names are found.
    pub(crate) names_row: u64,
    /// Bit of the group whose row was chosen, see [`netpold_ebpf::names::choice::query`].
    pub(crate) names_group: u64,
    /// Bits of the groups whose rows were not chosen yet.
    pub(crate) names_left: u64,
    /// Parsed IPv4 packet, between the functions that parse and judge it.
    pub(crate) parsed4: ParsedPacket<V4>,
    /// Parsed IPv6 packet, between the functions that parse and judge it.
    pub(crate) parsed6: ParsedPacket<V6>,
    /// Answer to a denied packet.
    pub(crate) answer_frame: RejectionFrame,
    /// RST forwarded in place of a denied segment.
    pub(crate) reset_frame: RejectionFrame,
    /// Ends of a denied packet before its translation, if `has_original_ends` is not 0.
    pub(crate) original_ends4: Ends<u32>,
    pub(crate) original_ends6: Ends<[u64; 2]>,
    pub(crate) has_original_ends: u64,
    /// `struct bpf_fib_lookup` of a route.
    pub(crate) route: [u32; 16],
}

/// Flow to insert. The program's entry inserts it, not the judging function, because stack frames add up along a call.
#[repr(C)]
pub(crate) struct Pending {
    /// Key of the flow; IPv4 in the first two words.
    pub(crate) key: [u64; 4],
    /// Hash of the key.
    pub(crate) hash: u64,
    /// Flags of the flow, and [`Pending::IPV4`] or [`Pending::IPV6`].
    pub(crate) what: u64,
}

impl Pending {
    pub(crate) const IPV4: u64 = 1 << 32;
    pub(crate) const IPV6: u64 = 1 << 33;
}
