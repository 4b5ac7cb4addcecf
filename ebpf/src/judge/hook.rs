//! Hook and ingress interface of a packet.

use crate::{
    flow::memory::Memory, judge::opaque::Opaque, layout::Settings, packet::parse::Fragment,
};

/// Hook at which a packet is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketHook {
    /// Interface index of the host side of the veth.
    pub ifindex: u32,
    /// Interface by which the packet arrived at the node; 0: none, but the packet has a socket;
    /// [`crate::judge::proof::UNKNOWN_INTERFACE`]: none, and no sign that the node generated it.
    pub ingress_ifindex: u32,
}

/// Kind of ingress interface: one word during a judgement instead of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival(u32);

impl Arrival {
    const BY_NONE: Self = Self(0);
    const BY_ITS_OWN: Self = Self(1);
    const BY_ANOTHER: Self = Self(2);

    #[inline(always)]
    pub(crate) const fn of(hook: PacketHook) -> Self {
        match hook.ingress_ifindex {
            0 => Self::BY_NONE,
            same if same == hook.ifindex => Self::BY_ITS_OWN,
            _ => Self::BY_ANOTHER,
        }
    }

    /// Hides the kind from the verifier, which follows all of a judgement for each of them otherwise.
    #[inline(always)]
    pub(crate) fn hidden<M: Memory>(self, opaque: &Opaque<'_, M>) -> Self {
        Self(opaque.number(self.0 as u16).into())
    }

    /// Whether a packet in pod ingress arrived by the pod's own interface: the pod sent it.
    #[inline(always)]
    pub(crate) fn is_hairpin(self) -> bool {
        self == Self::BY_ITS_OWN
    }

    /// Whether the node itself generated a packet in pod ingress, see [`crate::judge::proof`]. For a fragment this is
    /// proven only if the kernel reveals the namespace of its socket.
    #[inline(always)]
    pub(crate) fn is_from_node(self, fragment: &Fragment, settings: Option<&Settings>) -> bool {
        if self != Self::BY_NONE {
            return false;
        }
        let whole = !fragment.is_later() && !fragment.more;
        whole || settings.is_some_and(|settings| settings.netns_cookie != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::proof::UNKNOWN_INTERFACE;

    fn arrival(ingress_ifindex: u32) -> Arrival {
        Arrival::of(PacketHook { ifindex: 7, ingress_ifindex })
    }

    #[test]
    fn the_node_is_known_by_a_socket_and_a_whole_packet_or_its_namespace() {
        let blind = Settings::default();
        let asking = Settings { netns_cookie: 1, ..blind };
        let whole = Fragment::default();
        let first = Fragment { more: true, ..whole };
        let later = Fragment { offset: 3, ..whole };
        for (fragment, of_blind) in [(whole, true), (first, false), (later, false)] {
            assert_eq!(arrival(0).is_from_node(&fragment, Some(&blind)), of_blind);
            assert!(arrival(0).is_from_node(&fragment, Some(&asking)));
            for other in [7, 8, UNKNOWN_INTERFACE] {
                assert!(!arrival(other).is_from_node(&fragment, Some(&asking)));
            }
        }
    }

    #[test]
    fn a_hairpin_comes_by_the_pods_own_interface() {
        let hairpins = [0, 7, 8, UNKNOWN_INTERFACE].map(|by| arrival(by).is_hairpin());
        assert_eq!(hairpins, [false, true, false, false]);
    }
}
