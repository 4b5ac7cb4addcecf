//! Early judgement of packets that arrive at the node for a local pod, before the kernel allocates an skb (XDP).
//!
//! The verdict equals that of the pod's own hook: [`crate::judge::evaluator::PacketEvaluator`] over an `Observer`,
//! which reads the flow table and changes nothing. Only packets that this hook would certainly drop for lack of a rule
//! are dropped here. All others pass on to be judged there.
//!
//! A packet that the node will translate looks different here: the reply to a pod's request to a Service comes from
//! the backend, while the flow's key has the Service's address. So only packets that are never replies are dropped,
//! unless the node is configured as translating nothing ([`Scope::All`]).

use crate::{
    direction::{Ingress, PodDirection},
    endpoint::EndpointRef,
    judge::{
        evaluator::{PacketEvaluator, Visitor},
        hook::PacketHook,
        reject::is_requested,
    },
    packet::{
        bytes::{Bytes, Window as _},
        parsed::ParsedPacket,
        protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6},
    },
    reason::Reason,
    tables::{TableFamily, Tables, local_endpoints::LocalEndpoints},
    verdict::PacketVerdict,
    xdp::observer::Observer,
};

/// Scope of the packets that are dropped if policy denies them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Packets that begin a TCP connection or an SCTP association.
    Openings,
    /// All packets without a known flow: for nodes that translate nothing.
    All,
}

/// Returns the endpoint if its hook would certainly drop a packet without an answer. `link`: the packet's type and the offset of its IP
/// header, as [`crate::packet::parse::link`] returns them.
#[inline(always)]
pub fn drops<B: Bytes, T: Tables + LocalEndpoints>(
    bytes: &B,
    link: Result<(u16, u32), Reason>,
    tables: &T,
    ingress_ifindex: u32,
    scope: Scope,
) -> Option<EndpointRef> {
    let slot = match link {
        Ok((ETHERTYPE_IPV4, offset)) => tables.local4(bytes.window::<20>(offset)?.be32(16)),
        Ok((ETHERTYPE_IPV6, offset)) => tables.local6(bytes.window::<40>(offset)?.words(24)),
        _ => None,
    };
    let endpoint = tables.endpoint(slot?)?;
    let hook = PacketHook { ifindex: endpoint.ifindex(), ingress_ifindex };
    let observer = Observer(tables);
    let judge = PacketEvaluator::<Ingress, _>::at(&observer, endpoint, hook).ok()?;
    let verdict = judge.parse_after_link(bytes, link, &JudgeCertain(scope));
    // A packet that gets an answer is left to the pod's hook.
    let denied = verdict.reason() == Reason::Policy && !is_requested::<Ingress>(endpoint.flags());
    denied.then_some(endpoint)
}

/// Judges packets within the scope, and leaves all others to the pod's hook.
struct JudgeCertain(Scope);

impl Visitor for JudgeCertain {
    type Output = PacketVerdict;

    #[inline(always)]
    fn visit<F: TableFamily, D: PodDirection, T: Tables>(
        &self,
        judge: &PacketEvaluator<'_, D, T>,
        reading: &ParsedPacket<F>,
    ) -> PacketVerdict {
        // The slot may have passed to another pod since the lookup of the address.
        let policy = &judge.context().policy;
        // A reply may be of a flow to an address that the pod resolved, which its hook knows.
        let all = self.0 == Scope::All && !policy.rows().has_names();
        let told = judge.context().receives(reading)
            && policy.is_isolated()
            && reading.is_whole()
            && (all || reading.is_opening());
        if told { judge.judge(reading) } else { PacketVerdict::from(Err(Reason::Deferred)) }
    }
}
