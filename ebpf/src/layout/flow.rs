//! Layouts of the flow table and the fragment table.

/// Conntrack key of an IPv4 flow from the endpoint's view: one key for both directions.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ct4Key {
    /// [`Endpoint::id`](crate::layout::Endpoint::id).
    #[cfg(not(feature = "other-layout"))]
    pub endpoint: u32,
    /// Remote address, as `u32::from_be_bytes`.
    pub remote: u32,
    /// [`Endpoint::id`](crate::layout::Endpoint::id).
    #[cfg(feature = "other-layout")]
    pub endpoint: u32,
    /// The pod's port; for ICMP echo, timestamps and extended echo the identifier.
    pub local_port: u16,
    /// The remote port; for ICMP [`crate::packet::icmp::exchange_type`]: 0 for echo, else the type of the request.
    pub remote_port: u16,
    /// IP protocol number (8 bits; the rest zero).
    pub protocol: u32,
}

/// Conntrack key of an IPv6 flow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ct6Key {
    /// [`Endpoint::id`](crate::layout::Endpoint::id).
    pub endpoint: u32,
    /// The pod's port; for ICMPv6 echo and extended echo the identifier.
    pub local_port: u16,
    /// The remote port; for ICMPv6 [`crate::packet::icmp::exchange_type`]: 0 for echo, else the type of the request.
    pub remote_port: u16,
    /// Remote address, network byte order.
    pub remote: [u8; 16],
    /// IP protocol number (8 bits; the rest zero).
    pub protocol: u32,
    /// Zero.
    pub reserved: u32,
}

/// One way of an IPv4 conntrack bucket. `control` holds, from the top: 32 bits last-seen jiffies, 16 bits
/// incarnation, 16 bits flags (`CT_*`). It changes by compare-and-swap; the writer that claimed the way publishes it
/// ([`crate::flow::memory::Memory::publish`]).
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ct4Way {
    /// Control word, see above. 0: free and never used.
    pub control: u64,
    /// Key of the flow.
    pub key: Ct4Key,
    /// Cached verdict of the flow, see [`crate::flow::cached_verdict::CachedVerdict`].
    pub judged: u64,
    /// Makes the way longer, for the upgrade test.
    #[cfg(feature = "other-layout")]
    pub other: u64,
}

/// One way of an IPv6 conntrack bucket, laid out like [`Ct4Way`].
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ct6Way {
    /// Control word. 0: free and never used.
    pub control: u64,
    /// Key of the flow.
    pub key: Ct6Key,
    /// Cached verdict, see [`Ct4Way::judged`].
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

/// Buckets of the table of observed IPv4 flows: 32,768 records in a megabyte.
pub const OBSERVED4_BUCKETS: u32 = 8_192;
/// Buckets of the table of observed IPv6 flows: 16,384 records in a megabyte.
pub const OBSERVED6_BUCKETS: u32 = 4_096;
/// Maximum number of records that an interface may add in a second.
pub const OBSERVED_PER_SECOND: u32 = 1_000;

/// Conntrack flag: the key may be compared.
pub const CT_VALID: u16 = 1 << 0;
/// Conntrack flag: claimed by a writer, the key is being written.
pub const CT_BUSY: u16 = 1 << 1;
/// Conntrack flag: pod ingress was allowed by policy and seen; pod egress of this flow is a reply.
pub const CT_INGRESS: u16 = if cfg!(feature = "other-layout") { 1 << 12 } else { 1 << 2 };
/// Conntrack flag: pod egress was allowed by policy and seen; pod ingress of this flow is a reply.
pub const CT_EGRESS: u16 = if cfg!(feature = "other-layout") { 1 << 2 } else { 1 << 3 };
/// Conntrack flag: both directions were seen, beyond the first two packets of a handshake. A half-open flow never
/// evicts such a flow while it is live.
pub const CT_REPLIED: u16 = if cfg!(feature = "other-layout") { 1 << 11 } else { 1 << 4 };
/// Conntrack flag: the node itself sent the packets of pod ingress, which no policy can deny.
pub const CT_NODE: u16 = 1 << 5;
/// Conntrack flag: FIN seen in pod ingress.
pub const CT_FIN_INGRESS: u16 = 1 << 6;
/// Conntrack flag: FIN seen in pod egress.
pub const CT_FIN_EGRESS: u16 = 1 << 7;
/// Conntrack flag: an RST (or an SCTP ABORT) arrived at the pod, and no packet of the flow since. A sender that guesses
/// addresses and ports can forge one.
pub const CT_RST: u16 = 1 << 8;
/// Conntrack flag: a SYN opened the flow (else it was adopted mid-flow or seeded).
pub const CT_SYN: u16 = 1 << 9;
/// Conntrack flag: the SYN was answered. A forged SYN gets an answer too, so only a further packet of the initiator
/// makes the flow [`CT_REPLIED`].
pub const CT_SYN_ACK: u16 = 1 << 10;
/// Conntrack flag: UDP flow that lasted more than two seconds after it was answered.
pub const CT_STREAM: u16 = 1 << 13;
/// Conntrack flag: the pod itself sent an RST (or ABORT), and no packet of the flow was seen since.
pub const CT_RST_SENT: u16 = 1 << 14;

/// Conntrack flag: a denied segment of this flow was forwarded as a reset, see [`crate::judge::cut`]. Neither this flag
/// nor [`CT_CUT_RESET`] affects the flow's verdicts, timeouts and eviction: a denied packet must not.
pub const CT_CUT: u16 = if cfg!(feature = "other-layout") { 1 << 3 } else { 1 << 11 };
/// Conntrack flag: a denied reset of this flow was forwarded.
pub const CT_CUT_RESET: u16 = if cfg!(feature = "other-layout") { 1 << 4 } else { 1 << 12 };

/// Conntrack flag of a free way that held a flow, see [`crate::flow::control::Control::freed`]. Its last-seen jiffies
/// are the time of the sweep that found it free, or 0.
pub const CT_USED: u16 = 1 << 15;

/// Key of the fragment table (LRU hash): the datagram from the endpoint's view.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentKey {
    /// [`Endpoint::id`](crate::layout::Endpoint::id).
    pub endpoint: u32,
    /// 0 pod ingress, 1 pod egress; 2 is added for IPv6, and 4 for a marked packet after its translation.
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

/// Ports of a datagram, recorded by its first fragment for the later ones.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentPorts {
    /// The pod's port. For ICMP the packet's source is the echo identifier and its destination type << 8 | code: in
    /// pod egress the identifier is here, in pod ingress in `remote_port`.
    pub local_port: u16,
    /// The other side's port.
    pub remote_port: u16,
    /// Jiffies of the first fragment, low 32 bits.
    pub seen: u32,
    /// Transport protocol of the datagram; differs from the key's if IPv6 options follow the Fragment header.
    pub protocol: u8,
    /// Zero.
    pub reserved: [u8; 3],
}

const _: () = {
    let other = if cfg!(feature = "other-layout") { 8 } else { 0 };
    assert!(size_of::<Ct4Key>() == 16 && size_of::<Ct4Way>() == 32 + other);
    assert!(size_of::<Ct4Bucket>() == size_of::<Ct4Way>() * CT_WAYS);
    assert!(size_of::<Ct6Key>() == 32 && size_of::<Ct6Way>() == 64);
    assert!(size_of::<Ct6Bucket>() == 256);
    assert!(OBSERVED4_BUCKETS.is_power_of_two() && OBSERVED6_BUCKETS.is_power_of_two());
    assert!(size_of::<FragmentKey>() == 48 && size_of::<FragmentPorts>() == 12);
};
