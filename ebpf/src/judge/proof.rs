//! Rules of the packet path: the hook that judges a packet, and the proof of that.
//!
//! 1. A packet from an endpoint is judged at the endpoint's veth. A packet that passes there carries a proof, the bit
//!    [`Settings::proof`] of `skb->mark`, which no pod can write. Its verdict is final, unless it depends on the
//!    node's translation: then the packet also carries a [`mark`] that names its sender.
//! 2. Every exit (a pod's veth, the uplink, a tunnel) demands the proof of packets that arrived by an endpoint's veth.
//!    A packet with the proof and a mark is judged again for the sender in the mark. A packet without the proof
//!    bypassed the programs of its veth (`tc_skip_classify` of an `ifb`), and is judged for the endpoint that it
//!    arrived by, as if it were new: its mark does not count.
//!
//!    For a packet that a bridge hands to the node for routing, the kernel reports the bridge as interface and forgets
//!    the port. If each port has a program that leaves the proof ([`Settings::bridges`]), a packet without it bypassed
//!    the program of an unknown port:
//!    * With an endpoint's source it drops if policy isolates any pod of the bridge for egress, since it may be that
//!      pod's.
//!    * With any other source it is forged. It drops while the agent lives and the bridge has no port without a program
//!      ([`BRIDGE_OPEN`]). Otherwise it may be from a pod's port without a program yet.
//!
//!    Packets without the proof also drop if they arrived by an interface that is unknown to the agent
//!    ([`Settings::devices`]): one that a pod has created in the node's namespace, or the veth of a new pod without a
//!    program yet. They also drop if they have a socket of another namespace at a pod's veth: all packets of a pod's
//!    own veth have the proof, so these arrived by a device on top of that veth (a macvlan), and their apparent
//!    interface is one of the other namespace.
//! 3. A packet to an endpoint is judged by that endpoint's own policy, unless the kernel proves that the node generated
//!    it: it has no interface, and a socket of the node's network namespace. A missing interface alone proves nothing,
//!    since the kernel rebuilds packets of other senders (refragmentation, Open vSwitch, SYNPROXY). A pod's socket
//!    stays with its packet across a bridge, through refragmentation there, and through a macvlan on a device of the
//!    node. On kernels before 6.15, which do not reveal a socket's namespace, any socket counts, but only for a packet
//!    that is not a fragment.
//!
//!    Likewise a packet without interface, proof and socket of the node was rebuilt by the kernel from a received one
//!    ([`Rebuilt`]). Packets rebuilt from a pod's packet with the proof have the proof. So without it:
//!    * A fragment with an endpoint's source is from a pod that bypassed its program, and drops.
//!    * Any other fragment may be from outside, or forged: it drops while policy isolates any endpoint for egress
//!      ([`ANY_ISOLATES_EGRESS`](crate::layout::ANY_ISOLATES_EGRESS)).
//!    * An opening of a connection (SYNPROXY) is judged for the endpoint with its source address, as if it were new.
//!
//! 4. Packets that a bridge hands to the node itself pass no exit. A program at the bridge demands their proof too,
//!    above all for the claims of ARP and neighbour discovery.
//!
//! Tunnels break rule 1 if a pod sends to its own node's tunnel device: a packet that such a device unpacks with the
//! proof on it comes from a pod, and drops ([`is_unpacked`]).

use crate::{
    endpoint::EndpointRef,
    layout::{
        BRIDGE_ISOLATED, BRIDGE_OPEN, BRIDGES, DEVICE_PROBES, STRANGER, Settings, bridge_ifindex,
        device_place, is_mark, mark, marked_slot, split_mark,
    },
    packet::{
        bytes::{Bytes, Window as _},
        parse::is_extension,
        protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, TCP, TCP_ACK, TCP_SYN},
    },
    reason::Reason,
    tables::{Tables, find_endpoint},
};

/// Default bit of `skb->mark` for the proof.
pub const DEFAULT_BIT: u8 = 28;

/// Ingress interface of a packet that has none, and that the node did not generate.
pub const UNKNOWN_INTERFACE: u32 = u32::MAX;

/// Fields of `struct __sk_buff` at an exit, and facts derived from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// Interface by which the packet leaves.
    pub ifindex: u32,
    /// Interface by which the packet arrived at the node; 0: none.
    pub ingress_ifindex: u32,
    /// `skb->mark`.
    pub mark: u32,
    /// `skb->tc_index`.
    pub tc_index: u32,
    /// Whether the packet has a socket of another network namespace than the node's (kernel 6.15), where this exit
    /// checks that.
    pub foreign: bool,
    /// Kind of a packet that the kernel may have rebuilt.
    pub rebuilt: Rebuilt,
}

/// Kinds of packets that the kernel may have rebuilt from a received one: those without interface, proof, and socket
/// of the node.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rebuilt {
    /// Not rebuilt: it has one of these, or is of no kind below.
    #[default]
    No,
    /// A fragment, or a packet with headers that cannot be read in place.
    Fragment,
    /// The opening of a TCP connection.
    Opening,
}

impl Rebuilt {
    /// Kind of a number, the inverse of `as u32`.
    #[must_use]
    #[inline(always)]
    pub const fn from_number(number: u32) -> Self {
        match number {
            1 => Self::Fragment,
            2 => Self::Opening,
            _ => Self::No,
        }
    }

    /// Kind of a packet, provided that the kernel rebuilt it; `link` as [`crate::packet::parse::link`] returns it.
    #[inline(always)]
    pub fn kind<B: Bytes>(bytes: &B, link: Result<(u16, u32), Reason>) -> Self {
        let (protocol, transport) = match link {
            Ok((ETHERTYPE_IPV4, offset)) => match bytes.window::<20>(offset) {
                Some(header) if header.be16(6).trailing_zeros() < 14 => return Self::Fragment,
                Some(header) if header.byte(0) == 0x45 => (header.byte(9), offset + 20),
                Some(_) => return Self::No,
                None => return Self::Fragment,
            },
            Ok((ETHERTYPE_IPV6, offset)) => match bytes.window::<40>(offset) {
                // Fragments that the kernel makes may have other headers in front of the Fragment header.
                Some(header) if is_extension(header.byte(6)) => return Self::Fragment,
                Some(header) => (header.byte(6), offset + 40),
                None => return Self::Fragment,
            },
            Ok(_) => return Self::No,
            Err(_) => return Self::Fragment,
        };
        if protocol != TCP {
            return Self::No;
        }
        let flags = bytes.window::<14>(transport).map_or(0, |header| header.byte(13));
        if flags & (TCP_SYN | TCP_ACK) == TCP_SYN { Self::Opening } else { Self::No }
    }
}

/// Origin of a packet at an exit: whether it is judged there, and for which endpoint.
#[derive(Clone, Copy, Debug)]
pub enum Origin {
    /// Not from an endpoint, or with a final verdict.
    Final,
    /// Judged at its sender's veth, and to be judged again; `None`: the sender is gone.
    Marked(Option<EndpointRef>),
    /// From an endpoint's veth, and not judged there.
    Unjudged(EndpointRef),
    /// Rebuilt by the kernel from a packet of another sender.
    Rebuilt(Rebuilt),
    /// From a port of a bridge where all ports leave the proof, and not judged there.
    BridgePort {
        /// Whether policy isolates a pod of that bridge for egress.
        isolated: bool,
        /// Whether the packet may be from a port that has no program yet.
        open: bool,
    },
}

impl Origin {
    /// Origin of a packet, by its proof and its mark.
    #[inline(always)]
    pub fn at_exit<T: Tables>(tables: &T, exit: &Exit) -> Self {
        let Some(settings) = tables.settings() else { return Self::Final };
        if exit.mark & settings.proof != 0 {
            let marked = is_mark(exit.tc_index);
            return if marked { Self::Marked(sender(tables, exit.tc_index)) } else { Self::Final };
        }
        if exit.rebuilt != Rebuilt::No && demands_proof(settings) {
            return Self::Rebuilt(exit.rebuilt);
        }
        if exit.ingress_ifindex == 0 || !demands_proof(settings) {
            return Self::Final;
        }
        match find_endpoint(tables, exit.ingress_ifindex) {
            // Also back to the endpoint itself: with a forged source it would begin a flow that the endpoint answers.
            Some(endpoint) => Self::Unjudged(endpoint),
            None if !exit.has_come_in() => Self::Final,
            None => Self::by_bridge(settings, exit.ingress_ifindex),
        }
    }

    /// Origin of a packet that a bridge hands to the node.
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

    /// Origin of a packet without proof from a device that is not an endpoint's.
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
                return Self::BridgePort { isolated, open };
            }
        }
        Self::Final
    }

    /// Endpoint for which the packet is judged; `None`: none, or unknown.
    #[must_use]
    pub fn endpoint(self) -> Option<EndpointRef> {
        match self {
            Self::Final | Self::Rebuilt(_) | Self::BridgePort { .. } => None,
            Self::Marked(endpoint) => endpoint,
            Self::Unjudged(endpoint) => Some(endpoint),
        }
    }
}

/// [`Settings::demands_proof`], which the agent changes while programs run.
#[must_use]
#[inline(always)]
pub fn demands_proof(settings: &Settings) -> bool {
    // SAFETY: a reference is readable.
    unsafe { (&raw const settings.demands_proof).read_volatile() != 0 }
}

/// Whether a packet arrived by an interface that is in no table, or from a device of another namespace past all of the
/// node's interfaces. Every exit checks this first.
#[must_use]
#[inline(always)]
pub fn is_unknown<T: Tables>(tables: &T, exit: &Exit) -> bool {
    let Some(settings) = tables.settings() else { return false };
    if exit.mark & settings.proof != 0 {
        return false;
    }
    // The witness shows that the pod's own program has seen the packet: then another program clears proofs.
    if exit.foreign && (exit.ingress_ifindex == 0 || exit.tc_index != settings.witness) {
        return demands_proof(settings);
    }
    // Known interfaces are mostly at their first place, so this check comes first.
    exit.has_come_in()
        && !is_known(settings, exit.ingress_ifindex)
        && demands_proof(settings)
        && find_endpoint(tables, exit.ingress_ifindex).is_none()
        && matches!(Origin::by_bridge(settings, exit.ingress_ifindex), Origin::Final)
}

impl Exit {
    /// Whether the packet arrived by an interface of the node other than the one that it goes out of.
    #[inline(always)]
    const fn has_come_in(&self) -> bool {
        self.ingress_ifindex != 0 && self.ingress_ifindex != self.ifindex
    }
}

/// Whether an interface may hand packets on without the proof, or no interface is unknown yet.
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

/// The endpoint in a mark, if it still exists.
#[inline(always)]
pub fn sender<T: Tables>(tables: &T, tc_index: u32) -> Option<EndpointRef> {
    let slot = marked_slot(tc_index);
    let sender = tables.endpoint(slot)?;
    let ifindex = sender.ifindex();
    let sender = sender.after_load(ifindex);
    (ifindex != 0 && mark(slot, sender.id()) == split_mark(tc_index).0).then_some(sender)
}

/// Whether a program of these has judged a packet, by its `skb->mark`.
#[must_use]
#[inline(always)]
pub fn is_proven<T: Tables>(tables: &T, mark: u32) -> bool {
    tables.settings().is_some_and(|settings| mark & settings.proof != 0)
}

/// Whether a packet that a tunnel device of the node unpacked came from an endpoint of the node, by its `skb->mark`
/// and `skb->tc_index`.
#[must_use]
#[inline(always)]
pub fn is_unpacked<T: Tables>(tables: &T, mark: u32, tc_index: u32) -> bool {
    is_proven(tables, mark) && tc_index != STRANGER
}
