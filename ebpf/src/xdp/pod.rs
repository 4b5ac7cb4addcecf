//! Early judgement of a pod's packets, at the host side of its veth before the stack (XDP).
//!
//! As at the uplinks ([`crate::xdp::uplink`]) the verdict equals that of the pod's own hook, and nothing is written:
//! the hook records flows and marks packets for a second judgement. At this place nothing was translated yet, so the
//! verdict on packets without a known flow is certain.

use crate::{
    direction::{Egress, PodDirection},
    endpoint::EndpointRef,
    judge::{
        evaluator::{PacketEvaluator, Visitor},
        hook::PacketHook,
        reject::is_requested,
    },
    packet::{bytes::Bytes, parsed::ParsedPacket},
    reason::Reason,
    tables::{TableFamily, Tables, find_endpoint},
    verdict::PacketVerdict,
    xdp::observer::Observer,
};

/// Returns the endpoint and the reason if the endpoint's hook would certainly drop a packet without an answer: no rule
/// allows the packet and it is not a reply, or its source is not the pod's. `link`: see [`crate::xdp::uplink::drops`].
#[inline(always)]
pub fn drops<B: Bytes, T: Tables>(
    bytes: &B,
    link: Result<(u16, u32), Reason>,
    tables: &T,
    ifindex: u32,
) -> Option<(EndpointRef, Reason)> {
    let endpoint = find_endpoint(tables, ifindex)?;
    let observer = Observer(tables);
    let hook = PacketHook { ifindex, ingress_ifindex: ifindex };
    let judge = PacketEvaluator::<Egress, _>::at(&observer, endpoint, hook).ok()?;
    // Its hook may judge the packet once more, by the names that the pod resolved.
    if judge.context().policy.rows().has_names() {
        return None;
    }
    let reason = judge.parse_after_link(bytes, link, &JudgeWhole).reason();
    if matches!(reason, Reason::Policy) && is_requested::<Egress>(endpoint.flags()) {
        // The pod's hook answers the packet.
        return None;
    }
    matches!(reason, Reason::Policy | Reason::SpoofedSource).then_some((endpoint, reason))
}

/// Judges whole packets, and leaves all others to the pod's hook.
struct JudgeWhole;

impl Visitor for JudgeWhole {
    type Output = PacketVerdict;

    #[inline(always)]
    fn visit<F: TableFamily, D: PodDirection, T: Tables>(
        &self,
        judge: &PacketEvaluator<'_, D, T>,
        reading: &ParsedPacket<F>,
    ) -> PacketVerdict {
        if reading.is_whole() {
            judge.judge(reading)
        } else {
            PacketVerdict::from(Err(Reason::Deferred))
        }
    }
}
