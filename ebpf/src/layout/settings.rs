//! Settings that the programs read.

use super::endpoint::scattered;

/// Settings of the programs: a map of one element, which the agent writes before it attaches a program. Times are in
/// jiffies.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Seed of the hashes, constant for the life of the conntrack table.
    pub hash_seed: u64,
    /// Keys of the hashes: [`crate::flow::key::hash_keys`] of the seed.
    pub hash_keys: [u64; HASH_KEYS],
    /// Buckets in the IPv4 conntrack table less one (a power of two less one).
    pub ct4_mask: u32,
    /// Buckets in the IPv6 conntrack table less one.
    pub ct6_mask: u32,
    /// Idle time after which a flow expires, indexed by `TIMEOUT_*`. The agent follows the node's own conntrack and
    /// changes these while packets are judged, each by one store.
    pub timeouts: [u32; TIMEOUTS],
    /// Age of an entry's time stamp from which a packet refreshes it, one second. It is less than any timeout, so
    /// younger entries need no timeout check.
    pub refresh_after: u32,
    /// Events a CPU may emit per `event_window`.
    pub event_burst: u32,
    /// Length of the event rate window.
    pub event_window: u32,
    /// Root word of the IPv6 block tree, see [`Blocks6Node`](crate::layout::Blocks6Node). The agent changes it while
    /// packets are judged.
    pub ipv6_blocks_root: u32,
    /// Flags while two generations' programs run at the pods' hooks, to migrate flows: [`WATCH_ONLY`], [`SHARES_NAMES`],
    /// [`STANDS_ASIDE`], [`MAY_BE_BEHIND`]. Agents of later layouts write it, by the description of the layout.
    pub handover: u32,
    /// Number of the policy in force. A cached verdict holds for the revision that was read before policy: the agent
    /// changes the revision after the last word of an update, and each generation uses its own numbers.
    pub revision: u32,
    /// Buckets in the table of IPv6 addresses less one.
    pub ipv6_hosts_mask: u32,
    /// Bit of `skb->mark` on packets that one of these programs judged at their pod's veth. The kernel clears
    /// `skb->mark` on the way out of a network namespace (`skb_scrub_packet`), so no pod can write it.
    pub proof: u32,
    /// Not zero once all programs are attached: an endpoint's packets without [`Settings::proof`] have bypassed its
    /// programs, and are judged where they leave.
    pub demands_proof: u32,
    /// Port of a UDP socket at 127.0.0.1 that is connected to itself, network byte order in the low 16 bits. The
    /// agent holds the socket, so its existence shows that the agent lives. 0: none.
    pub agent_port: u32,
    /// Value in `skb->tc_index` of a pod's packets without a mark: one of [`WITNESSES`](crate::layout::WITNESSES),
    /// chosen by the agent at random and shifted by [`WITNESS_SHIFT`](crate::layout::WITNESS_SHIFT). On a packet
    /// without proof it shows that the program at its veth has seen the packet. 0: none.
    pub witness: u32,
    /// Maximum number of slots from [`endpoint_slot`](crate::layout::endpoint_slot) on that hold an interface, up to
    /// [`ENDPOINT_PROBES`](crate::layout::ENDPOINT_PROBES): one, unless interfaces share a slot; 0: unknown. The agent
    /// raises it before it writes such an endpoint.
    pub endpoint_probes: u32,
    /// Cookie of the node's network namespace, on kernels where programs can compare it with the cookie of a packet's
    /// socket; else 0.
    pub netns_cookie: u64,
    /// Interface indexes of bridges with pods, with [`BRIDGE_ISOLATED`] and [`BRIDGE_OPEN`]. Each of their ports has a
    /// program that leaves the proof, so packets that such a bridge hands to the node without [`Settings::proof`]
    /// bypassed a program, or arrived by a port that is new to the agent. [`BRIDGE_GONE`]: no bridge here; 0: none here
    /// nor after it. The agent changes these while packets are judged, each by one store.
    pub bridges: [u32; BRIDGES],
    /// Indexes of the node's own interfaces that may hand packets on without [`Settings::proof`]: uplinks, bridges,
    /// interfaces of the node's operator. Each is at one of [`DEVICE_PROBES`] places from [`device_place`] on; 0:
    /// none. The agent changes these while packets are judged, each by one store.
    pub devices: [[u32; DEVICE_LINE]; DEVICE_LINES],
    /// Not zero once [`Settings::devices`] is filled and all programs are attached: packets without the proof from an
    /// interface in none of the tables drop where they leave.
    pub closes_unknown: u32,
    /// Flags of what holds for any endpoint: [`ANY_ISOLATES_EGRESS`], [`ANY_OBSERVED`], [`ANY_UNCHECKED`],
    /// [`ANY_OVER_TCP`]. The agent sets a flag before it writes the first such endpoint, and clears it after the last.
    pub any_endpoint: u32,
    /// Maximum number of answers to denied packets in a second, for each endpoint and direction; 0: none.
    pub rejections: u32,
    /// The same for all endpoints of the node together, without the first of each ([`OWN_TOKENS`](crate::judge::reject::OWN_TOKENS)).
    pub node_rejections: u32,
}

impl Settings {
    /// Whether a flag of [`Settings::any_endpoint`] is set; the agent changes them while programs run.
    #[must_use]
    #[inline(always)]
    pub fn holds_for_any(&self, flag: u32) -> bool {
        // SAFETY: a reference is readable.
        unsafe { (&raw const self.any_endpoint).read_volatile() & flag != 0 }
    }

    /// Whether these flags of [`Settings::handover`] are set, and no others but [`MAY_BE_BEHIND`]; the agent changes them
    /// while programs run.
    #[must_use]
    #[inline(always)]
    pub fn has_handover_flags(&self, flags: u32) -> bool {
        // SAFETY: a reference is readable.
        unsafe { (&raw const self.handover).read_volatile() & !MAY_BE_BEHIND == flags }
    }
}

/// Flag in [`Settings::handover`]: the former programs, which run behind these, still judge. These record flows, and pass
/// every packet on.
pub const WATCH_ONLY: u32 = 1 << 0;
/// Flag in [`Settings::handover`]: both programs have the same tables of domain names. With [`WATCH_ONLY`], those behind read
/// DNS messages. Without it, these are behind, and those in front have read most packets.
pub const SHARES_NAMES: u32 = 1 << 1;
/// Flag in [`Settings::handover`]: those in front judge alone. These programs at pods' hooks leave every packet and its
/// marks as they are, XDP programs drop none, and those at other devices continue.
pub const STANDS_ASIDE: u32 = 1 << 2;
/// Flag in [`Settings::handover`]: programs may run in front of these, so packets may have their proof already.
pub const MAY_BE_BEHIND: u32 = 1 << 3;

/// Flag in [`Settings::any_endpoint`]: policy isolates an endpoint for egress.
pub const ANY_ISOLATES_EGRESS: u32 = 1 << 0;
/// Flag in [`Settings::any_endpoint`]: an endpoint has the flag [`EP_OBSERVE`](crate::layout::EP_OBSERVE).
pub const ANY_OBSERVED: u32 = 1 << 1;
/// Flag in [`Settings::any_endpoint`]: an endpoint lacks the flag [`EP_CHECK_SOURCE`](crate::layout::EP_CHECK_SOURCE).
pub const ANY_UNCHECKED: u32 = 1 << 2;
/// Answers of resolvers over TCP count, see [`crate::names::stream`].
pub const ANY_OVER_TCP: u32 = 1 << 3;

/// Interfaces per line of [`Settings::devices`]. Lines are needed since arrays of more than 32 elements have no
/// `Default`.
pub const DEVICE_LINE: usize = 16;
/// Lines of [`Settings::devices`].
pub const DEVICE_LINES: usize = 16;
/// Capacity of [`Settings::devices`].
pub const DEVICES: u32 = (DEVICE_LINE * DEVICE_LINES) as u32;
/// Number of consecutive places that are probed for an interface.
pub const DEVICE_PROBES: u32 = 4;

/// Place of an interface in [`Settings::devices`] at a probe; scattered as [`endpoint_slot`](crate::layout::endpoint_slot).
#[must_use]
#[inline(always)]
pub const fn device_place(ifindex: u32, probe: u32) -> usize {
    (scattered(ifindex, DEVICES).wrapping_add(probe) & (DEVICES - 1)) as usize
}

/// Capacity of [`Settings::bridges`].
pub const BRIDGES: usize = 16;
/// Flag in [`Settings::bridges`]: policy isolates one of the bridge's pods for egress.
pub const BRIDGE_ISOLATED: u32 = 1 << 31;
/// Flag in [`Settings::bridges`]: the bridge got a port that has no program yet. All of its endpoints have theirs.
pub const BRIDGE_OPEN: u32 = 1 << 30;
/// Word of [`Settings::bridges`]: no bridge here, but others may follow.
pub const BRIDGE_GONE: u32 = BRIDGE_ISOLATED;
/// Interface index of a word of [`Settings::bridges`]; 0: none.
#[must_use]
#[inline(always)]
pub const fn bridge_ifindex(word: u32) -> u32 {
    word & !(BRIDGE_ISOLATED | BRIDGE_OPEN)
}

/// Words of a hash key: one for each word of the longest hashed key.
pub const HASH_KEYS: usize = 4;

/// Timeout of TCP without a reply (SYN sent, or an adopted flow).
pub const TIMEOUT_TCP_OPENING: usize = 0;
/// Timeout of TCP with an answered SYN and no further packet.
pub const TIMEOUT_TCP_ANSWERED: usize = 1;
/// Timeout of TCP with both directions seen.
pub const TIMEOUT_TCP_ESTABLISHED: usize = 2;
/// Timeout of TCP after one side's FIN. Also the shortest protection from eviction of a flow with a FIN or RST,
/// unless both sides or the pod itself ended it.
pub const TIMEOUT_TCP_HALF_CLOSED: usize = 3;
/// Timeout of TCP after both sides' FIN.
pub const TIMEOUT_TCP_FINISHED: usize = 4;
/// Timeout of TCP and SCTP after an RST by the pod, or in answer to the opening. Also the protection from eviction of
/// a flow that both sides or the pod itself ended.
pub const TIMEOUT_TCP_CLOSED: usize = 5;
/// Timeout of TCP after an RST that arrived at the pod. It may be forged, so the flow's next packet must find the
/// entry.
pub const TIMEOUT_TCP_RESET: usize = 6;
/// Timeout of UDP and other protocols without a reply.
pub const TIMEOUT_ONE_WAY: usize = 7;
/// Timeout of answered UDP without [`CT_STREAM`](crate::layout::CT_STREAM).
pub const TIMEOUT_UDP_ANSWERED: usize = 8;
/// Timeout of UDP with [`CT_STREAM`](crate::layout::CT_STREAM).
pub const TIMEOUT_UDP_STREAM: usize = 9;
/// Timeout of other protocols with both directions seen.
pub const TIMEOUT_OTHER: usize = 10;
/// Timeout of SCTP before the association is established.
pub const TIMEOUT_SCTP_OPENING: usize = 11;
/// Timeout of SCTP with both directions seen.
pub const TIMEOUT_SCTP_ESTABLISHED: usize = 12;
/// Timeout of ICMP echo, timestamps and extended echo.
pub const TIMEOUT_ECHO: usize = 13;
/// Timeout of the ports of a first fragment.
pub const TIMEOUT_FRAGMENT: usize = 14;
/// Idle time after which an established flow may be evicted for a new one that finds no other room.
pub const TIMEOUT_IDLE: usize = 15;
/// Number of timeouts.
pub const TIMEOUTS: usize = 16;

const _: () = assert!(size_of::<Settings>() == 248 + 4 * DEVICES as usize);
