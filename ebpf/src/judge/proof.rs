//! The rule of the packet path: who is to judge a packet, and how that is known.
//!
//! 1. What comes from an endpoint is judged at its veth. A packet that passes there carries a proof, the
//!    bit [`Settings::proof`] of `skb->mark`, which no pod can write, and is either final or carries a
//!    [`mark`] that names its sender: its verdict depends on what the node makes of it.
//! 2. Every exit (another pod's veth, the uplink, a tunnel) demands the proof of what came by an
//!    endpoint's veth. A packet with the proof and a mark is judged again for the sender that it names.
//!    One without the proof got round the programs of its veth (`tc_skip_classify` of an `ifb`), and is
//!    judged for the endpoint that it came by, as if it were new: nothing that it carries counts.
//!
//!    What a bridge hands to the node for routing came by the bridge, says the kernel: it forgets by which of
//!    the ports. Where each port has a program that leaves the proof ([`Settings::bridges`]), what comes from
//!    the bridge without it went round one of these, and nobody knows which:
//!    * it has an endpoint's source: it drops if policy isolates any pod of the bridge for egress, since it
//!      may be that pod's;
//!    * it has another: it is forged and drops, while the agent lives and the bridge has no port without a
//!      program ([`BRIDGE_OPEN`]). When it does not, a pod may have come by a port that no program was put at.
//!
//!    The same of what comes by an interface that the agent does not know ([`Settings::devices`]): a door that a pod has
//!    made into the node, or a new pod's veth, before its program is attached. And of what has a socket of another
//!    namespace at a pod's veth: everything that a pod sends has the proof, so it came by no program but by a device on
//!    top of that veth (a macvlan), and any interface that it may seem to have come by is of the other namespace.
//! 3. What enters an endpoint is judged by that endpoint's own policy, unless the kernel proves that the
//!    node made it: it came by no interface, and has a socket of the node's network namespace. A missing
//!    interface alone proves nothing, since the kernel makes packets of others anew (refragmentation, Open
//!    vSwitch, SYNPROXY). A pod's socket stays with its packet across a bridge, through refragmentation
//!    there, and through a macvlan on a device of the node. Where the kernel does not tell a socket's
//!    namespace (before 6.15), any socket counts, but only with a packet that is whole.
//!
//!    For the same reason no interface, no proof and no socket of the node's prove that the kernel made a packet anew,
//!    of one that it got from anybody ([`Anew`]). What it makes of a pod's packet with the proof has the proof. So:
//!    * a part of a datagram that has an endpoint's source is that of a pod that got round its program, and drops;
//!    * another part may be from outside, or forged: it drops while policy isolates any endpoint for egress
//!      ([`Settings::isolates_egress`]);
//!    * what opens a connection (SYNPROXY) is judged for the endpoint whose source it has, as if it were new.
//!
//! 4. What a bridge hands to the node itself passes no exit. A program at the bridge demands the proof of it, too, and
//!    of ARP and neighbour discovery above all: what they claim without the proof counts for nothing.
//!
//! Tunnels undo 1 where a pod sends to its own node's tunnel device: what such a device unpacks with the
//! proof on it comes from a pod, and drops ([`is_unpacked`]).

use crate::{
    endpoint::EndpointRef,
    layout::{
        BRIDGE_ISOLATED, BRIDGE_OPEN, BRIDGES, DEVICE_PROBES, STRANGER, Settings, bridge_ifindex,
        device_place, is_mark, mark, marked_slot, parts_of,
    },
    packet::{
        bytes::{Bytes, Window as _},
        parse::is_extension,
        protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, TCP, TCP_ACK, TCP_SYN},
    },
    reason::Reason,
    tables::{Tables, find_endpoint},
};

/// Which bit of `skb->mark` is the proof, unless the agent is told another.
pub const DEFAULT_BIT: u8 = 28;

/// The interface that a packet came by, where nothing says which that was: the node did not make it.
pub const UNKNOWN_INTERFACE: u32 = u32::MAX;

/// What the kernel says of a packet at an exit: the fields of `struct __sk_buff`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// The interface it goes out of.
    pub ifindex: u32,
    /// The interface that it came to the node by; 0: none.
    pub ingress_ifindex: u32,
    /// `skb->mark`.
    pub mark: u32,
    /// `skb->tc_index`.
    pub tc_index: u32,
    /// It has a socket of another network namespace than the node's (kernel 6.15), and this is looked at where it
    /// leaves.
    pub foreign: bool,
    /// Whether the kernel may have made it anew.
    pub anew: Anew,
}

/// What the kernel may have made anew of a packet that it got: it has no interface and no proof, and no socket of the
/// node's.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Anew {
    /// Nothing: it has one of these, or is neither of the following.
    #[default]
    No,
    /// A part of a datagram, or what cannot be read in place.
    Part,
    /// What opens a TCP connection.
    Opening,
}

impl Anew {
    /// The other way round of `as u32`.
    #[must_use]
    #[inline(always)]
    pub const fn from_number(number: u32) -> Self {
        match number {
            1 => Self::Part,
            2 => Self::Opening,
            _ => Self::No,
        }
    }

    /// Which of these a packet would be; `link` as [`crate::packet::parse::link`] answers.
    #[inline(always)]
    pub fn kind<B: Bytes>(bytes: &B, link: Result<(u16, u32), Reason>) -> Self {
        let (protocol, transport) = match link {
            Ok((ETHERTYPE_IPV4, offset)) => match bytes.window::<20>(offset) {
                Some(header) if header.be16(6).trailing_zeros() < 14 => return Self::Part,
                Some(header) if header.byte(0) == 0x45 => (header.byte(9), offset + 20),
                Some(_) => return Self::No,
                None => return Self::Part,
            },
            Ok((ETHERTYPE_IPV6, offset)) => match bytes.window::<40>(offset) {
                // The parts that the kernel makes may have other headers in front of the Fragment header.
                Some(header) if is_extension(header.byte(6)) => return Self::Part,
                Some(header) => (header.byte(6), offset + 40),
                None => return Self::Part,
            },
            Ok(_) => return Self::No,
            Err(_) => return Self::Part,
        };
        if protocol != TCP {
            return Self::No;
        }
        let flags = bytes.window::<14>(transport).map_or(0, |header| header.byte(13));
        if flags & (TCP_SYN | TCP_ACK) == TCP_SYN { Self::Opening } else { Self::No }
    }
}

/// Whether, and for whom, a packet is to be judged at an exit.
#[derive(Clone, Copy, Debug)]
pub enum Origin {
    /// It is not from an endpoint, or its verdict is final.
    Final,
    /// It was judged at its sender's veth, and is to be judged again; `None`: the sender is gone.
    Marked(Option<EndpointRef>),
    /// It came by an endpoint's veth, and was not judged there.
    Unjudged(EndpointRef),
    /// The kernel made it anew of a packet that somebody sent.
    Anew(Anew),
    /// It came by a port of a bridge whose ports all leave the proof, and was not judged there.
    Unproven {
        /// Policy isolates a pod of that bridge for egress.
        isolated: bool,
        /// It may have come by a port that has no program yet.
        open: bool,
    },
}

impl Origin {
    /// Reads the proof and the mark of a packet.
    #[inline(always)]
    pub fn of<T: Tables>(tables: &T, exit: &Exit) -> Self {
        let Some(settings) = tables.settings() else { return Self::Final };
        if exit.mark & settings.proof != 0 {
            let marked = is_mark(exit.tc_index);
            return if marked { Self::Marked(sender(tables, exit.tc_index)) } else { Self::Final };
        }
        if exit.anew != Anew::No && demands_proof(settings) {
            return Self::Anew(exit.anew);
        }
        if !exit.has_come_in() || !demands_proof(settings) {
            return Self::Final;
        }
        match find_endpoint(tables, exit.ingress_ifindex) {
            Some(endpoint) => Self::Unjudged(endpoint),
            None => Self::by_bridge(settings, exit.ingress_ifindex),
        }
    }

    /// The origin of a packet that a bridge hands to the node.
    #[must_use]
    #[inline(always)]
    pub fn at_bridge<T: Tables>(tables: &T, ifindex: u32, mark: u32) -> Self {
        match tables.settings() {
            Some(settings) if mark & settings.proof == 0 && demands_proof(settings) => {
                Self::by_bridge(settings, ifindex)
            }
            _ => Self::Final,
        }
    }

    /// The origin of a packet without proof that came by a device which is no endpoint's.
    #[inline(always)]
    #[expect(
        clippy::multiple_unsafe_ops_per_block,
        reason = "where a word is, and reading it, is one step"
    )]
    fn by_bridge(settings: &Settings, ifindex: u32) -> Self {
        let bridges = (&raw const settings.bridges).cast::<u32>();
        for n in 0..BRIDGES {
            // SAFETY: an element of a readable array; the agent changes it meanwhile.
            let bridge = unsafe { bridges.add(n).read_volatile() };
            if bridge == 0 {
                break;
            }
            if bridge_ifindex(bridge) == ifindex {
                let (isolated, open) = (bridge & BRIDGE_ISOLATED != 0, bridge & BRIDGE_OPEN != 0);
                return Self::Unproven { isolated, open };
            }
        }
        Self::Final
    }

    /// The endpoint that the packet comes from, where it is to be judged.
    #[must_use]
    pub fn endpoint(self) -> Option<EndpointRef> {
        match self {
            Self::Final | Self::Anew(_) | Self::Unproven { .. } => None,
            Self::Marked(endpoint) => endpoint,
            Self::Unjudged(endpoint) => Some(endpoint),
        }
    }
}

/// The agent sets this field while programs run.
#[inline(always)]
fn demands_proof(settings: &Settings) -> bool {
    // SAFETY: a reference is readable.
    unsafe { (&raw const settings.demands_proof).read_volatile() != 0 }
}

/// Whether a packet came by an interface that nobody knows, or past all of the node's: before anything else, at
/// every exit.
#[must_use]
#[inline(always)]
pub fn is_unknown<T: Tables>(tables: &T, exit: &Exit) -> bool {
    let Some(settings) = tables.settings() else { return false };
    if exit.mark & settings.proof != 0 {
        return false;
    }
    // With the witness it is a pod's whose program has seen it, and somebody clears proofs.
    if exit.foreign && (exit.ingress_ifindex == 0 || exit.tc_index != settings.witness) {
        return demands_proof(settings);
    }
    // An interface that may hand packets on has mostly its first place.
    exit.has_come_in()
        && !is_known(settings, exit.ingress_ifindex)
        && demands_proof(settings)
        && find_endpoint(tables, exit.ingress_ifindex).is_none()
        && matches!(Origin::by_bridge(settings, exit.ingress_ifindex), Origin::Final)
}

impl Exit {
    /// Whether it came by an interface of the node, and not by the one that it goes out of: to itself a pod may send what
    /// it likes.
    #[inline(always)]
    const fn has_come_in(&self) -> bool {
        self.ingress_ifindex != 0 && self.ingress_ifindex != self.ifindex
    }
}

/// Whether an interface may hand packets on without the proof.
#[inline(always)]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "as above: a place and its word")]
fn is_known(settings: &Settings, ifindex: u32) -> bool {
    let devices = (&raw const settings.devices).cast::<u32>();
    for probe in 0..DEVICE_PROBES {
        // SAFETY: a place is less than the number of elements; the agent changes them meanwhile.
        if unsafe { devices.add(device_place(ifindex, probe)).read_volatile() } == ifindex {
            return true;
        }
    }
    // SAFETY: a reference is readable; the agent sets this field while programs run.
    unsafe { (&raw const settings.closes_unknown).read_volatile() == 0 }
}

/// The endpoint that a mark names, if it still is there.
#[inline(always)]
fn sender<T: Tables>(tables: &T, tc_index: u32) -> Option<EndpointRef> {
    let slot = marked_slot(tc_index);
    let sender = tables.endpoint(slot)?;
    let ifindex = sender.ifindex();
    let sender = sender.after_load(ifindex);
    (ifindex != 0 && mark(slot, sender.id()) == parts_of(tc_index).0).then_some(sender)
}

/// Whether one of the programs has seen a packet, by its `skb->mark`.
#[must_use]
#[inline(always)]
pub fn is_proven<T: Tables>(tables: &T, mark: u32) -> bool {
    tables.settings().is_some_and(|settings| mark & settings.proof != 0)
}

/// Whether a packet that a tunnel device of the node has unpacked came from an endpoint of the node, by
/// its `skb->mark` and `skb->tc_index`.
#[must_use]
#[inline(always)]
pub fn is_unpacked<T: Tables>(tables: &T, mark: u32, tc_index: u32) -> bool {
    is_proven(tables, mark) && tc_index != STRANGER
}
