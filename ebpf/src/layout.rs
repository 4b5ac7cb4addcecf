//! The maps' contents, word for word as the kernel program and the agent both see them.
//!
//! Everything here is `repr(C)`, has no implicit padding and a size that is asserted below, because
//! the agent writes most of these tables with plain aligned stores through mmap (`BPF_F_MMAPABLE`,
//! kernel 5.5) while packets are being judged. A change to anything in this file is a new
//! [`LAYOUT_VERSION`]: another version's maps are never reused, they are replaced as a generation.
//!
//! Reading order for one packet: [`Endpoint`] by interface index, class of the remote address
//! ([`TrieRoot`] and [`TrieBlock`], or the IPv6 tables), [`Row`] (and [`RowBlock`]) of the endpoint's
//! direction, which holds a [`PortSet`], and rarely [`PortBitmap`]. Identifiers never change meaning
//! while they are in use.

use crate::reason::COUNTERS;

/// Version of everything in this file; part of the pin path. The feature `other-layout` makes a second
/// agent for the upgrade test, which lays out endpoints, flows and their flags differently.
pub const LAYOUT_VERSION: u32 = if cfg!(feature = "other-layout") { 1009 } else { 9 };

/// Number of the set of peers an address belongs to. Class 0 is "no set at all".
pub type ClassId = u32;
/// A class word (in the trie, the IPv6 tables) with this bit set: packets to the address may be
/// translated on their way, as those to a Service or to the own node, so what the source's row allows
/// is judged again where the packet reaches a local pod or leaves the node. Not part of the number.
pub const CLASS_TRANSLATED: ClassId = 1 << 30;
/// A class word with this bit set beside [`CLASS_TRANSLATED`]: the addresses are Services' cluster
/// addresses, from which nobody begins a flow. Not part of the number.
pub const CLASS_SERVICE: ClassId = 1 << 29;
/// The class whose column says what is allowed behind the place of translation: of one with
/// [`CLASS_TRANSLATED`], whose number is even, the next, of any other the same. A packet that has an
/// address of such a class there was not translated, so it is judged by what was granted literally.
#[must_use]
#[inline(always)]
pub const fn untranslated(class: ClassId) -> ClassId {
    class | class >> CLASS_TRANSLATED.trailing_zeros() & 1
}
/// Highest number of classes: 256 blocks of 256 columns in a [`Row`].
pub const MAX_CLASSES: u32 = 65_536;

/// First level of the IPv4 trie: indexed by the upper 16 address bits.
pub type TrieRoot = [u32; 65_536];
/// Second and third level of the IPv4 trie: indexed by the next 8 address bits.
pub type TrieBlock = [u32; 256];
/// A trie word with this bit set points to the [`TrieBlock`] in its other bits; without it the
/// word is the [`ClassId`].
pub const TRIE_POINTER: u32 = 1 << 31;

/// Keys of a [`Blocks6Node`].
pub const BLOCKS6_KEYS: usize = 7;
/// A word of the tree of IPv6 blocks with this bit set leads to the node whose number is in its low bits;
/// without it the word is the [`ClassId`].
pub const BLOCKS6_POINTER: u32 = 1 << 31;
/// Beside [`BLOCKS6_POINTER`]: that node is the root of a tree over the address's lower half.
pub const BLOCKS6_LOWER: u32 = 1 << 30;
/// Highest number of nodes of the tree of IPv6 blocks.
pub const BLOCKS6_NODES: u32 = 1 << 24;

/// A node of the tree of IPv6 blocks ([`crate::tables::ipv6_blocks`]), two cache lines: intervals of keys, which
/// are the upper 63 bits of one half of an address.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocks6Node {
    /// Where intervals begin, in ascending order, but for the first one; `1 << 63` where there are no more.
    pub keys: [u64; BLOCKS6_KEYS],
    /// Zero.
    pub reserved: u64,
    /// What each interval leads to, by the half's last bit: a class, a tree over the lower half, or, both the same, the
    /// node below.
    pub values: [[u32; 2]; BLOCKS6_KEYS + 1],
}

/// Entries of a bucket of the table of IPv6 addresses.
pub const HOST6_WAYS: usize = 5;
/// [`Host6::state`]: the address may be compared.
pub const HOST6_VALID: u64 = 1 << 32;

/// One IPv6 address and its class.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Host6 {
    /// From the top: 31 bits that change whenever the entry is another address', [`HOST6_VALID`], and
    /// the [`ClassId`]. Only the agent writes it.
    pub state: u64,
    /// Address, network byte order.
    pub address: [u8; 16],
}

/// A bucket of the table of IPv6 addresses: two cache lines. An address is in one of two, by its hash
/// ([`crate::tables::ipv6_hosts`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hosts6Bucket {
    /// The entries.
    pub ways: [Host6; HOST6_WAYS],
    /// How many addresses, of which this is the first bucket, are in their second one: while it is zero, nobody
    /// looks there. Only the agent writes it.
    pub displaced: u64,
}

/// What one distinct policy allows, by class. Most clusters have less than 256 classes, so the
/// words of the first 256 are at hand; those of the others are in [`RowBlock`]s.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The [`PortWord`]s of classes below 256.
    pub first: RowBlock,
    /// Of a class from 256: word `class >> 8` is the index of the [`RowBlock`] that holds it. Word 0
    /// is not used. Block 0 is always empty: nothing allowed.
    pub blocks: [u32; 256],
}

impl Row {
    /// A row that allows nothing.
    pub const EMPTY: Self = Self { first: [0; 256], blocks: [0; 256] };
}

/// Word `class & 255` says what is allowed.
pub type RowBlock = [PortWord; 256];
/// Row number that means "this direction is not isolated".
pub const ROW_NOT_ISOLATED: u32 = 0;

/// A [`PortSet`] in one word, see [`PortSet::word`]. 0 allows nothing.
pub type PortWord = u64;
/// Bits of a protocol's part of a [`PortWord`].
pub const PORT_BITS: u32 = 21;
/// The word that allows every protocol and port.
pub const PORTS_EVERY: PortWord =
    PortSet { tcp: PORTS_ALL, udp: PORTS_ALL, sctp: PORTS_ALL, other: PORTS_ALL }.word();

/// No port of the protocol.
pub const PORTS_NONE: u32 = 0;
/// Every port of the protocol.
pub const PORTS_ALL: u32 = 1;
/// First [`PortBitmap`] index that may be allocated; smaller numbers are the two words above.
pub const PORTS_FIRST_BITMAP: u32 = 2;
/// With this bit, one port of the protocol: the low 16 bits. Indexes of bitmaps are below it.
pub const PORTS_ONE: u32 = 1 << 20;

/// What is allowed of each protocol: [`PORTS_NONE`], [`PORTS_ALL`], [`PORTS_ONE`] with the port, or
/// the index of a [`PortBitmap`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortSet {
    /// TCP destination ports.
    pub tcp: u32,
    /// UDP destination ports.
    pub udp: u32,
    /// SCTP destination ports.
    pub sctp: u32,
    /// Every other protocol, ICMP included: [`PORTS_NONE`] or [`PORTS_ALL`].
    pub other: u32,
}

impl PortSet {
    /// As the tables hold it: TCP in the lowest [`PORT_BITS`], then UDP, SCTP, and one bit for all
    /// others.
    #[must_use]
    pub const fn word(self) -> PortWord {
        self.tcp as u64
            | (self.udp as u64) << PORT_BITS
            | (self.sctp as u64) << (2 * PORT_BITS)
            | (self.other as u64) << (3 * PORT_BITS)
    }
}

/// The number of a protocol in a [`PortWord`]: [`PORTS_NONE`], [`PORTS_ALL`], a port with [`PORTS_ONE`], or a bitmap.
#[must_use]
#[inline(always)]
pub const fn ports_of(word: PortWord, protocol: u8) -> u32 {
    let shift = match protocol {
        6 => 0,
        17 => PORT_BITS,
        132 => 2 * PORT_BITS,
        _ => 3 * PORT_BITS,
    };
    (word >> shift) as u32 & ((1 << PORT_BITS) - 1)
}

/// One bit a port: bit `port & 63` of word `port >> 6`.
pub type PortBitmap = [u64; 1024];

/// Number of address slots in an [`Endpoint`], per family. A pod uses at most half of them, so
/// that a changed address is written beside the old one before it is flipped in.
pub const ENDPOINT_ADDRS: usize = 4;
/// [`Endpoint::flags`]: bit n says that `addr4[n]` is one of the endpoint's addresses.
pub const EP_ADDR4_SHIFT: u32 = 0;
/// [`Endpoint::flags`]: bit 4 + n says that `addr6[n]` is one of the endpoint's addresses.
pub const EP_ADDR6_SHIFT: u32 = 4;
/// [`Endpoint::flags`]: the pod has its addresses and no others. What it sends from another, or in
/// another's name, drops; what comes for another is not its traffic.
pub const EP_CHECK_SOURCE: u32 = 1 << 8;

/// Highest number of endpoint slots; see [`endpoint_slot`].
pub const ENDPOINT_SLOTS: u32 = 8192;
/// How many consecutive slots are probed for an interface index.
pub const ENDPOINT_PROBES: u32 = 4;

/// A local pod's interface under policy. Free slots are all zero (interface index 0 is no
/// interface). `rows` is one aligned word so that both directions change at once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// Moves everything behind it, for the upgrade test.
    #[cfg(feature = "other-layout")]
    pub other: u64,
    /// Interface index of the host side of the veth; 0: free slot. Written last, cleared first.
    pub ifindex: u32,
    /// Number of this pod instance, never reused within one conntrack table: conntrack keys carry
    /// it, so that nothing is inherited with an address or an interface index.
    pub id: u32,
    /// Row of pod ingress in the low half, row of pod egress in the high half;
    /// [`ROW_NOT_ISOLATED`] in a half: that direction is not isolated.
    pub rows: u64,
    /// `EP_*` bits.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
    /// First half of the pod's UID hash: lets a new agent recognise the pod, see `id`.
    pub uid_hash: u64,
    /// The pod's IPv4 addresses, as `u32::from_be_bytes`.
    pub addr4: [u32; ENDPOINT_ADDRS],
    /// The pod's IPv6 addresses, network byte order.
    pub addr6: [[u8; 16]; ENDPOINT_ADDRS],
}

impl Endpoint {
    /// The `rows` word of an ingress and an egress row number.
    #[must_use]
    pub const fn pack_rows(ingress: u32, egress: u32) -> u64 {
        ingress as u64 | (egress as u64) << 32
    }

    /// The ingress row number of a `rows` word.
    #[must_use]
    pub const fn ingress_row(rows: u64) -> u32 {
        rows as u32
    }

    /// The egress row number of a `rows` word.
    #[must_use]
    pub const fn egress_row(rows: u64) -> u32 {
        (rows >> 32) as u32
    }
}

/// First slot to probe for an interface index. Indexes are handed out in sequence, so live ones
/// rarely share a slot; [`ENDPOINT_PROBES`] consecutive slots are tried.
#[must_use]
#[inline(always)]
pub const fn endpoint_slot(ifindex: u32, probe: u32) -> u32 {
    ifindex.wrapping_add(probe) & (ENDPOINT_SLOTS - 1)
}

/// How many bits of a mark number its slot.
const MARK_SLOT_BITS: u32 = 13;
/// The other bits of a mark are the endpoint's number modulo this, plus 1: a mark ends with its
/// endpoint, not with the endpoint's slot. In [`answer_mark`] this is added once more.
const MARK_NUMBERS: u32 = 3;
const _: () = assert!(1 << MARK_SLOT_BITS == ENDPOINT_SLOTS);

/// A mark: the 16 bits of `skb->tc_index` that a packet takes along through routing, bridging and
/// NAT, and that name the endpoint whose pod sent it: its slot and its number ([`Endpoint::id`]). A
/// pod can write this field itself, so it counts only beside [`Settings::proof`].
#[must_use]
#[inline(always)]
pub const fn mark(slot: u32, id: u32) -> u32 {
    (id % MARK_NUMBERS + 1) << MARK_SLOT_BITS | slot & (ENDPOINT_SLOTS - 1)
}

/// The [`mark`] of a packet that is an answer: what it goes to once began the flow, at an address that the
/// node may translate now. [`crate::judge::connection`] says whether it goes back there.
#[must_use]
#[inline(always)]
pub const fn answer_mark(mark: u32) -> u32 {
    mark + (MARK_NUMBERS << MARK_SLOT_BITS)
}

/// A mark in its two parts: the [`mark`], and whether it is the [`answer_mark`] of that.
#[must_use]
#[inline(always)]
pub const fn parts_of(mark: u32) -> (u32, bool) {
    let answer = mark >> MARK_SLOT_BITS > MARK_NUMBERS;
    (if answer { mark - (MARK_NUMBERS << MARK_SLOT_BITS) } else { mark }, answer)
}

/// What a packet carries in place of a [`mark`] that came by a device which leads to another namespace
/// and is no endpoint's.
pub const STRANGER: u32 = 1;

/// What [`Settings::witness`] is one of: below every mark, above [`STRANGER`], and with the lowest bits zero,
/// which choose a queue where a device has the qdisc `gred`.
pub const WITNESSES: core::ops::RangeInclusive<u32> =
    1..=(1 << (MARK_SLOT_BITS - WITNESS_SHIFT)) - 1;
/// See [`WITNESSES`].
pub const WITNESS_SHIFT: u32 = 4;

/// Packets of an endpoint that an exit misses something at, see [`crate::judge::proof`]: at
/// [`endpoint_slot`] of the interface that they came by, probe 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unproven {
    /// The proof is missing, and the witness shows that the endpoint's program has seen the packet.
    pub erased: u64,
    /// The proof is missing, and nothing shows that.
    pub skipped: u64,
    /// The proof is there, and what the program left in `skb->tc_index` is not.
    pub unmarked: u64,
}

/// Whether `skb->tc_index` holds a [`mark`], or the [`answer_mark`] of one.
#[must_use]
#[inline(always)]
pub const fn is_mark(tc_index: u32) -> bool {
    tc_index >> MARK_SLOT_BITS != 0
}

/// The endpoint slot that a [`mark`] names.
#[must_use]
#[inline(always)]
pub const fn marked_slot(mark: u32) -> u32 {
    mark & (ENDPOINT_SLOTS - 1)
}

/// Settings the program reads, one element, written by the agent before anything is attached.
/// Times are in jiffies.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Seed of the hashes; as old as the conntrack table, never changed while it lives.
    pub hash_seed: u64,
    /// What the hashes are made with: [`crate::flow::key::hash_keys`] of the seed.
    pub hash_keys: [u64; HASH_KEYS],
    /// Buckets in the IPv4 conntrack table less one (a power of two less one).
    pub ct4_mask: u32,
    /// Buckets in the IPv6 conntrack table less one.
    pub ct6_mask: u32,
    /// Idle time after which a flow is forgotten, indexed by `TIMEOUT_*`. The agent changes these
    /// while packets are judged, each by one store, as the kernel's own conntrack has them.
    pub timeouts: [u32; TIMEOUTS],
    /// Age of an entry's time stamp from which a packet refreshes it, a second; less than any timeout,
    /// so that a younger entry needs no look at those.
    pub refresh_after: u32,
    /// Events a CPU may emit per `event_window`.
    pub event_burst: u32,
    /// Length of the event rate window.
    pub event_window: u32,
    /// The word that the tree of IPv6 blocks begins with: see [`Blocks6Node`]. The agent changes it while packets are
    /// judged.
    pub blocks6_root: u32,
    /// Not zero while another layout's programs, behind these, are still the ones that judge: flows
    /// are recorded, everything passes on.
    pub watch_only: u32,
    /// Number of the policy that is in force. What an entry of the flow table remembers of its flow's
    /// judgement holds for the revision that was read before policy was: the agent changes it after
    /// the last word of an update, and each generation has numbers of its own.
    pub revision: u32,
    /// Buckets in the table of IPv6 addresses less one.
    pub hosts6_mask: u32,
    /// The bit of `skb->mark` that says that one of these programs has judged the packet where it
    /// came from a pod. The kernel clears `skb->mark` on the way out of a network namespace
    /// (`skb_scrub_packet`), so no pod can write it.
    pub proof: u32,
    /// Not zero if what comes from an endpoint without [`Settings::proof`] has got round its programs,
    /// and is judged where it leaves. Zero until they are attached.
    pub demands_proof: u32,
    /// Port of a UDP socket at 127.0.0.1 that is connected to itself, network byte order in the low 16
    /// bits. The agent holds it: while it is there, the agent lives. 0: there is none.
    pub agent_port: u32,
    /// What programs leave in `skb->tc_index` of a pod's packet that has no mark: one of [`WITNESSES`]
    /// shifted by [`WITNESS_SHIFT`], of the agent's choice at random. It tells of a packet without proof whether the
    /// program at its veth has seen it. 0: none.
    pub witness: u32,
    /// How many slots from [`endpoint_slot`] on hold an interface at the most, up to [`ENDPOINT_PROBES`]: one,
    /// unless two share a slot; 0: not known. The agent raises it before it writes such an endpoint.
    pub probes: u32,
    /// The cookie of the node's network namespace, where programs can compare it with that of a
    /// packet's socket; else 0.
    pub netns_cookie: u64,
    /// Bridges with pods, by interface index, of whose ports each has a program that leaves the proof, with
    /// [`BRIDGE_ISOLATED`] and [`BRIDGE_OPEN`]; [`BRIDGE_GONE`]: none here; 0: none here nor after it. What
    /// such a bridge hands to the node without [`Settings::proof`] went round one of these programs, or came by
    /// a port that the agent does not know yet. The agent changes these while packets are judged, each by
    /// one store.
    pub bridges: [u32; BRIDGES],
}

/// How many bridges [`Settings::bridges`] has room for.
pub const BRIDGES: usize = 16;
/// [`Settings::bridges`]: policy isolates one of the bridge's pods for egress.
pub const BRIDGE_ISOLATED: u32 = 1 << 31;
/// [`Settings::bridges`]: the bridge got a port that has no program yet. All of its endpoints have theirs.
pub const BRIDGE_OPEN: u32 = 1 << 30;
/// [`Settings::bridges`]: none, but others may follow.
pub const BRIDGE_GONE: u32 = BRIDGE_ISOLATED;
/// The interface index of a word of [`Settings::bridges`]; 0: none.
#[must_use]
#[inline(always)]
pub const fn bridge_ifindex(word: u32) -> u32 {
    word & !(BRIDGE_ISOLATED | BRIDGE_OPEN)
}

/// Words of a hash's key: one for each word of the longest key that is hashed.
pub const HASH_KEYS: usize = 4;

/// [`Settings::timeouts`]: TCP, no reply seen (SYN sent or an adopted flow).
pub const TIMEOUT_TCP_OPENING: usize = 0;
/// [`Settings::timeouts`]: TCP, the SYN was answered, and that was all.
pub const TIMEOUT_TCP_ANSWERED: usize = 1;
/// [`Settings::timeouts`]: TCP, both directions seen.
pub const TIMEOUT_TCP_ESTABLISHED: usize = 2;
/// [`Settings::timeouts`]: TCP, one side sent FIN. So long is a flow of which a FIN or RST was seen
/// protected at the least, too, unless the pod itself ended it.
pub const TIMEOUT_TCP_HALF_CLOSED: usize = 3;
/// [`Settings::timeouts`]: TCP, both sides sent FIN.
pub const TIMEOUT_TCP_FINISHED: usize = 4;
/// [`Settings::timeouts`]: TCP and SCTP, the pod sent RST, or one answered the opening. So long is a
/// flow that both sides finished protected.
pub const TIMEOUT_TCP_CLOSED: usize = 5;
/// [`Settings::timeouts`]: TCP, an RST came to the pod. It may be forged, so the flow's next packet
/// must find its entry.
pub const TIMEOUT_TCP_RESET: usize = 6;
/// [`Settings::timeouts`]: UDP and other protocols, no reply seen.
pub const TIMEOUT_ONE_WAY: usize = 7;
/// [`Settings::timeouts`]: UDP, answered, but no [`CT_STREAM`].
pub const TIMEOUT_UDP_ANSWERED: usize = 8;
/// [`Settings::timeouts`]: UDP with [`CT_STREAM`].
pub const TIMEOUT_UDP_STREAM: usize = 9;
/// [`Settings::timeouts`]: other protocols, both directions seen.
pub const TIMEOUT_OTHER: usize = 10;
/// [`Settings::timeouts`]: SCTP, before the association is established.
pub const TIMEOUT_SCTP_OPENING: usize = 11;
/// [`Settings::timeouts`]: SCTP, both directions seen.
pub const TIMEOUT_SCTP_ESTABLISHED: usize = 12;
/// [`Settings::timeouts`]: ICMP echo and its kin.
pub const TIMEOUT_ECHO: usize = 13;
/// [`Settings::timeouts`]: the first fragment's ports.
pub const TIMEOUT_FRAGMENT: usize = 14;
/// [`Settings::timeouts`]: an established flow that has been idle for so long gives way to a new one
/// that finds no other room.
pub const TIMEOUT_IDLE: usize = 15;
/// Number of timeouts.
pub const TIMEOUTS: usize = 16;

/// Conntrack key of an IPv4 flow, as the endpoint sees it: one key for both directions.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ct4Key {
    /// [`Endpoint::id`].
    #[cfg(not(feature = "other-layout"))]
    pub endpoint: u32,
    /// Remote address, as `u32::from_be_bytes`.
    pub remote: u32,
    /// [`Endpoint::id`].
    #[cfg(feature = "other-layout")]
    pub endpoint: u32,
    /// The pod's port; for ICMP echo the identifier.
    pub local_port: u16,
    /// The other side's port; for ICMP echo 0, for its kin the request's type.
    pub remote_port: u16,
    /// IP protocol number (8 bits; the rest zero).
    pub protocol: u32,
}

/// Conntrack key of an IPv6 flow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ct6Key {
    /// [`Endpoint::id`].
    pub endpoint: u32,
    /// The pod's port; for ICMPv6 echo the identifier.
    pub local_port: u16,
    /// The other side's port; for ICMPv6 echo 0, for its kin the request's type.
    pub remote_port: u16,
    /// Remote address, network byte order.
    pub remote: [u8; 16],
    /// IP protocol number (8 bits; the rest zero).
    pub protocol: u32,
    /// Zero.
    pub reserved: u32,
}

/// One way of an IPv4 conntrack bucket. `control` holds, from the top: 32 bits last-seen jiffies,
/// 16 bits incarnation, 16 bits flags (`CT_*`); it is only ever changed by compare-and-swap.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ct4Way {
    /// State; see above. 0: free.
    pub control: u64,
    /// The flow.
    pub key: Ct4Key,
    /// How the flow was judged last, see [`crate::flow::cached_verdict::CachedVerdict`].
    pub judged: u64,
    /// Makes the way longer, for the upgrade test.
    #[cfg(feature = "other-layout")]
    pub other: u64,
}

/// One way of an IPv6 conntrack bucket; as [`Ct4Way`].
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ct6Way {
    /// State; 0: free.
    pub control: u64,
    /// The flow.
    pub key: Ct6Key,
    /// As [`Ct4Way::judged`].
    pub judged: u64,
    /// Zero.
    pub reserved: [u64; 2],
}

/// Ways in a conntrack bucket.
pub const CT_WAYS: usize = 4;
/// A bucket of the IPv4 conntrack table: two cache lines.
pub type Ct4Bucket = [Ct4Way; CT_WAYS];
/// A bucket of the IPv6 conntrack table: four cache lines.
pub type Ct6Bucket = [Ct6Way; CT_WAYS];

/// Conntrack flag: the key may be compared.
pub const CT_VALID: u16 = 1 << 0;
/// Conntrack flag: claimed by a writer, the key is being written.
pub const CT_BUSY: u16 = 1 << 1;
/// Conntrack flag: pod ingress was allowed by policy and seen; pod egress of this flow is a reply.
pub const CT_INGRESS: u16 = if cfg!(feature = "other-layout") { 1 << 12 } else { 1 << 2 };
/// Conntrack flag: pod egress was allowed by policy and seen; pod ingress of this flow is a reply.
pub const CT_EGRESS: u16 = if cfg!(feature = "other-layout") { 1 << 2 } else { 1 << 3 };
/// Conntrack flag: both directions were seen, beyond a handshake's first two packets. Such a flow is
/// never evicted by one without.
pub const CT_REPLIED: u16 = if cfg!(feature = "other-layout") { 1 << 11 } else { 1 << 4 };
/// Conntrack flag: the ingress side came from the node itself, which no policy can deny.
pub const CT_NODE: u16 = 1 << 5;
/// Conntrack flag: FIN seen in pod ingress.
pub const CT_FIN_INGRESS: u16 = 1 << 6;
/// Conntrack flag: FIN seen in pod egress.
pub const CT_FIN_EGRESS: u16 = 1 << 7;
/// Conntrack flag: an RST (or an SCTP ABORT) came to the pod, and nothing of the flow since. Whoever
/// guesses addresses and ports can forge one.
pub const CT_RST: u16 = 1 << 8;
/// Conntrack flag: a SYN opened it (else it was adopted mid-flow or seeded).
pub const CT_SYN: u16 = 1 << 9;
/// Conntrack flag: the SYN was answered. Any forged SYN gets that far, so it takes a further packet
/// of the side that began to make the flow [`CT_REPLIED`].
pub const CT_SYN_ACK: u16 = 1 << 10;
/// Conntrack flag: UDP that went on for more than two seconds after it was answered.
pub const CT_STREAM: u16 = 1 << 13;
/// Conntrack flag: the pod itself sent an RST (or ABORT), and nothing of the flow was seen since.
pub const CT_RST_SENT: u16 = 1 << 14;

/// Key of the fragment table (LRU hash): the datagram as the endpoint sees it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentKey {
    /// [`Endpoint::id`].
    pub endpoint: u32,
    /// 0 pod ingress, 1 pod egress; 2 is added for IPv6, 4 where a marked packet is judged behind
    /// its translation.
    pub direction: u32,
    /// Remote address, network byte order; IPv4 in the first four bytes.
    pub remote: [u8; 16],
    /// Local address, network byte order; IPv4 in the first four bytes.
    pub local: [u8; 16],
    /// Fragment identification.
    pub ident: u32,
    /// IP protocol number; for IPv6 the Fragment header's next header.
    pub protocol: u32,
}

/// What the first fragment said, for those that follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentPorts {
    /// The pod's port. For ICMP the two hold the echo identifier and type << 8 | code as the packet
    /// has them for source and destination: in pod egress the identifier is here, else there.
    pub local_port: u16,
    /// The other side's port.
    pub remote_port: u16,
    /// Jiffies of the first fragment, low 32 bits.
    pub seen: u32,
    /// Its transport protocol: with IPv6 options after the Fragment header not that of the key.
    pub protocol: u8,
    /// Zero.
    pub reserved: [u8; 3],
}

/// A dropped packet, in the ring buffer. Rate limited per CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropEvent {
    /// Host-side interface index.
    pub ifindex: u32,
    /// [`Endpoint::id`].
    pub endpoint: u32,
    /// `crate::reason::Reason` as a number.
    pub reason: u8,
    /// 0 pod ingress, 1 pod egress.
    pub direction: u8,
    /// 4 or 6; 0 if the packet was not parsed that far.
    pub family: u8,
    /// IP protocol number, valid if `family` is not 0.
    pub protocol: u8,
    /// The pod's port, or ICMP type << 8 | code.
    pub local_port: u16,
    /// The other side's port.
    pub remote_port: u16,
    /// The pod's address in this packet; IPv4 in the first four bytes.
    pub local: [u8; 16],
    /// The other side's address; IPv4 in the first four bytes.
    pub remote: [u8; 16],
    /// Packet length in bytes.
    pub length: u32,
    /// Events this CPU suppressed since its last one.
    pub suppressed: u32,
}

/// Counters of one CPU's events by interface: more interfaces share them.
pub const EVENT_SHARES: usize = 64;
/// An interface's share of the window is used up.
pub const SHARE_SPENT: u8 = u8::MAX;

/// What a CPU has dropped, and how many events of drops it may still emit: one record, since a denied packet
/// needs both.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    /// Packets, by [`crate::reason::counter`] and [`crate::reason::evictions`].
    pub packets: [u64; COUNTERS as usize],
    /// Jiffies at which the window of events began.
    pub window: u32,
    /// Events in the window.
    pub events: u32,
    /// Events suppressed since the last one that was emitted.
    pub suppressed: u32,
    /// Zero.
    pub reserved: u32,
    /// Events in the window by the pod's interface, modulo their number; [`SHARE_SPENT`] once one was refused.
    pub shares: [u8; EVENT_SHARES],
}

impl Counters {
    /// One packet more.
    #[inline(always)]
    pub const fn count(&mut self, index: u32) {
        self.packets[(index & (COUNTERS - 1)) as usize] += 1;
    }
}

const _: () = {
    assert!(size_of::<Blocks6Node>() == 128);
    assert!(size_of::<Row>() == 3072 && size_of::<RowBlock>() == 2048);
    assert!(3 * PORT_BITS + 1 == PortWord::BITS && PORTS_ONE << 1 == 1 << PORT_BITS);
    assert!(size_of::<PortBitmap>() == 8192);
    let other = if cfg!(feature = "other-layout") { 8 } else { 0 };
    assert!(size_of::<Endpoint>() == 112 + other && align_of::<Endpoint>() == 8);
    assert!(size_of::<Settings>() == 232);
    assert!(size_of::<Host6>() == 24 && size_of::<Hosts6Bucket>() == 128);
    assert!(size_of::<Ct4Key>() == 16 && size_of::<Ct4Way>() == 32 + other);
    assert!(size_of::<Ct4Bucket>() == size_of::<Ct4Way>() * CT_WAYS);
    assert!(size_of::<Ct6Key>() == 32 && size_of::<Ct6Way>() == 64);
    assert!(size_of::<Ct6Bucket>() == 256);
    assert!(size_of::<FragmentKey>() == 48 && size_of::<FragmentPorts>() == 12);
    assert!(size_of::<DropEvent>() == 56);
    assert!(size_of::<Unproven>() == 24);
    assert!(size_of::<Counters>() == 592 && COUNTERS.is_power_of_two());
    assert!(ENDPOINT_SLOTS.is_power_of_two());
};
