//! Context of a judgement: the packet's endpoint and its policy.

use crate::{
    direction::PodDirection,
    endpoint::EndpointRef,
    judge::{
        hook::{Arrival, PacketHook},
        opaque::Opaque,
        policy::EndpointPolicy,
    },
    layout::{ClassId, EP_CHECK_SOURCE},
    packet::{
        family::Family,
        parse::Fragment,
        parsed::{Packet, ParsedPacket},
    },
    reason::Reason,
    tables::{TableFamily, Tables},
};

/// The endpoint of a packet in direction `D`, read once: policy at one moment, and the packet's arrival.
#[derive(Debug)]
pub struct EndpointContext<'a, D, T> {
    pub(crate) tables: &'a T,
    pub(crate) endpoint: EndpointRef,
    /// The endpoint's number.
    pub(crate) id: u32,
    pub(crate) policy: EndpointPolicy<'a, D, T>,
    /// [`Tables::revision`] from before policy was read, see [`crate::flow::cached_verdict`].
    pub(crate) revision: u32,
    arrival: Arrival,
}

impl<'a, D: PodDirection, T: Tables> EndpointContext<'a, D, T> {
    /// Reads the endpoint, after `revision`.
    #[inline(always)]
    pub(crate) fn new(
        endpoint: EndpointRef,
        policy: EndpointPolicy<'a, D, T>,
        tables: &'a T,
        revision: u32,
        hook: PacketHook,
    ) -> Self {
        let id = endpoint.id();
        let arrival = Arrival::of(hook);
        // Egress verdicts do not depend on the arrival.
        let arrival =
            if D::EGRESS { arrival } else { arrival.hidden(&Opaque::new(tables, id.into())) };
        Self { tables, endpoint, id, policy, revision, arrival }
    }

    /// Hides values from the verifier.
    #[inline(always)]
    pub(crate) const fn opaque(&self) -> Opaque<'a, T> {
        Opaque::new(self.tables, self.id as u64)
    }

    /// The same context with rows that are hidden from the verifier.
    #[inline(always)]
    pub(crate) fn hidden(&self) -> Self {
        let rows = self.opaque().rows(self.policy.rows());
        Self { policy: EndpointPolicy::new(self.tables, rows), ..*self }
    }

    /// Whether the node itself generated the packet, see [`crate::judge::proof`].
    #[inline(always)]
    pub(crate) fn is_from_node(&self, fragment: &Fragment) -> bool {
        !D::EGRESS && self.arrival.is_from_node(fragment, self.tables.settings())
    }

    /// Class of the packet's remote address, by a policy no older than the revision.
    #[inline(always)]
    pub(crate) fn class<F: TableFamily>(&self, packet: &Packet<'_, F>) -> ClassId {
        F::class(self.tables, F::after_load(packet.remote::<D>(), self.revision))
    }

    /// Whether a packet in pod ingress is for one of the pod's own addresses.
    #[inline(always)]
    pub(crate) fn receives<F: Family>(&self, parsed: &ParsedPacket<F>) -> bool {
        F::owns(self.endpoint, parsed.network.destination)
    }

    /// Whether a packet in pod ingress is for an address that is not the pod's: a bridge floods packets for unknown
    /// stations.
    #[inline(always)]
    pub(crate) fn is_flooded<F: Family>(&self, packet: &Packet<'_, F>) -> bool {
        let to = packet.network.destination;
        !D::EGRESS
            && self.endpoint.flags() & EP_CHECK_SOURCE != 0
            && !F::owns(self.endpoint, to)
            && !F::is_shared(to)
    }

    /// Verdict on a packet that no rule allows and that is not a reply: a pod's packet to itself passes, all others
    /// drop. In ingress only the interface by which the packet arrived proves that it is one, since any host can forge
    /// the pod's address as source.
    ///
    /// # Errors
    /// [`Reason::Policy`].
    #[inline(always)]
    pub(crate) fn denied_unless_loopback<F: Family>(
        &self,
        packet: &Packet<'_, F>,
    ) -> Result<Reason, Reason> {
        let loopback = if D::EGRESS {
            F::owns(self.endpoint, packet.remote::<D>())
        } else {
            self.arrival.is_hairpin()
        };
        if loopback { Ok(Reason::Loopback) } else { Err(Reason::Policy) }
    }
}
