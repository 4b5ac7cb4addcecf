//! Settings that the programs read.

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
    /// The word that the tree of IPv6 blocks begins with: see [`Blocks6Node`](crate::layout::Blocks6Node). The agent
    /// changes it while packets are judged.
    pub ipv6_blocks_root: u32,
    /// Not zero while another layout's programs, behind these, are still the ones that judge: flows
    /// are recorded, everything passes on.
    pub watch_only: u32,
    /// Number of the policy that is in force. What an entry of the flow table remembers of its flow's
    /// judgement holds for the revision that was read before policy was: the agent changes it after
    /// the last word of an update, and each generation has numbers of its own.
    pub revision: u32,
    /// Buckets in the table of IPv6 addresses less one.
    pub ipv6_hosts_mask: u32,
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
    /// What programs leave in `skb->tc_index` of a pod's packet that has no mark: one of
    /// [`WITNESSES`](crate::layout::WITNESSES) shifted by [`WITNESS_SHIFT`](crate::layout::WITNESS_SHIFT), of the
    /// agent's choice at random. It tells of a packet without proof whether the program at its veth has seen it. 0:
    /// none.
    pub witness: u32,
    /// How many slots from [`endpoint_slot`](crate::layout::endpoint_slot) on hold an interface at the most, up to
    /// [`ENDPOINT_PROBES`](crate::layout::ENDPOINT_PROBES): one, unless two share a slot; 0: not known. The agent
    /// raises it before it writes such an endpoint.
    pub endpoint_probes: u32,
    /// The cookie of the node's network namespace, where programs can compare it with that of a
    /// packet's socket; else 0.
    pub netns_cookie: u64,
    /// Bridges with pods, by interface index, of whose ports each has a program that leaves the proof, with
    /// [`BRIDGE_ISOLATED`] and [`BRIDGE_OPEN`]; [`BRIDGE_GONE`]: none here; 0: none here nor after it. What
    /// such a bridge hands to the node without [`Settings::proof`] went round one of these programs, or came by
    /// a port that the agent does not know yet. The agent changes these while packets are judged, each by
    /// one store.
    pub bridges: [u32; BRIDGES],
    /// The node's own interfaces, by index, that may hand packets on without [`Settings::proof`]: uplinks, bridges, what
    /// the node's operator made. Each is at one of [`DEVICE_PROBES`] places from [`device_place`] on; 0: none. The agent
    /// changes these while packets are judged, each by one store.
    pub devices: [[u32; DEVICE_LINE]; DEVICE_LINES],
    /// Not zero if what comes without the proof by an interface that is in none of the tables drops where it leaves.
    /// Zero until [`Settings::devices`] is filled and all programs are attached.
    pub closes_unknown: u32,
    /// Not zero while policy isolates any endpoint for egress. The agent raises it before it writes the first one.
    pub isolates_egress: u32,
}

/// [`Settings::devices`] is in lines, since `Default` is not to be had for arrays of more than 32.
pub const DEVICE_LINE: usize = 16;
/// Lines of [`Settings::devices`].
pub const DEVICE_LINES: usize = 16;
/// How many interfaces [`Settings::devices`] has room for.
pub const DEVICES: u32 = (DEVICE_LINE * DEVICE_LINES) as u32;
/// So many places are looked at for an interface, one after the other.
pub const DEVICE_PROBES: u32 = 4;

/// The place of an interface in [`Settings::devices`], after so many others.
#[must_use]
#[inline(always)]
pub const fn device_place(ifindex: u32, probe: u32) -> usize {
    (ifindex.wrapping_add(probe) & (DEVICES - 1)) as usize
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
/// [`Settings::timeouts`]: UDP, answered, but no [`CT_STREAM`](crate::layout::CT_STREAM).
pub const TIMEOUT_UDP_ANSWERED: usize = 8;
/// [`Settings::timeouts`]: UDP with [`CT_STREAM`](crate::layout::CT_STREAM).
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

const _: () = assert!(size_of::<Settings>() == 240 + 4 * DEVICES as usize);
