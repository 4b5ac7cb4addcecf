//! What arrives at the node for a local pod, judged before the kernel makes a packet of it (XDP).
//!
//! The verdict is that of the pod's own hook, [`crate::judge::evaluator::PacketEvaluator`], asked by an `Observer`: it
//! sees the flow table and changes nothing. Only what that hook would drop for want of a rule is
//! dropped here, and of that only what can be told at this place. Everything else passes on, to be
//! judged where it always was.
//!
//! What the node translates on its way looks different here: the answer to a pod's request to a
//! Service comes from the backend, and its flow is known by the Service's address. So unless the
//! node is said to translate nothing ([`Scope::All`]), only what answers nothing is dropped.

use crate::{
    direction::{Direction, Ingress},
    endpoint::EndpointRef,
    judge::{
        evaluator::{PacketEvaluator, Visitor},
        hook::Hook,
    },
    packet::{
        bytes::{Bytes, Window as _},
        parsed::ParsedPacket,
        protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6},
    },
    reason::Reason,
    tables::{TableFamily, Tables, local_endpoints::LocalEndpoints},
    verdict::Verdict,
    xdp::observer::Observer,
};

/// Which of the packets that policy denies are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those that begin a TCP connection or an SCTP association.
    Openings,
    /// All that belong to no flow that is known: for nodes that translate nothing.
    All,
}

/// The endpoint at whose hook a packet would be dropped, if that is certain. `link`: the packet's
/// type and where its IP header begins, as [`crate::packet::parse::link`] answers.
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
    let hook = Hook { ifindex: endpoint.ifindex(), ingress_ifindex };
    let observer = Observer(tables);
    let judge = PacketEvaluator::<Ingress, _>::at(&observer, endpoint, hook).ok()?;
    let verdict = judge.read_behind(bytes, link, &Certain(scope));
    (verdict.reason() == Reason::Policy).then_some(endpoint)
}

/// Judges what may be dropped here, and leaves the rest to the pod's hook.
struct Certain(Scope);

impl Visitor for Certain {
    type Output = Verdict;

    #[inline(always)]
    fn visit<F: TableFamily, D: Direction, T: Tables>(
        &self,
        judge: &PacketEvaluator<'_, D, T>,
        reading: &ParsedPacket<F>,
    ) -> Verdict {
        // The slot may be another pod's since the address was looked up.
        let told = judge.context().receives(reading)
            && judge.context().policy.is_isolated()
            && reading.is_whole()
            && (self.0 == Scope::All || reading.is_opening());
        if told { judge.judge(reading) } else { Verdict::from(Err(Reason::Deferred)) }
    }
}
