//! Events that a watcher's filter admits.

use netpold_api::events::TrafficVerdict;
use netpold_api::filter::EventFilter;
use netpold_core::cluster::AddressOwner;
use netpold_core::model::{Direction, Key};
use netpold_core::probe::IpProtocol;

use crate::events::JournalEvent;

/// Names of an event's sides, from the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventNames {
    /// Pod; `None` if it is deleted.
    pub pod: Option<Key>,
    /// Owner of the remote address.
    pub peer: Option<AddressOwner>,
}

/// Returns the destination port, if the protocol has ports.
#[must_use]
pub fn destination_port(seen: &JournalEvent) -> Option<u16> {
    let [local, remote] = seen.packet.ports()?;
    Some(match seen.packet.direction {
        Direction::Ingress => local,
        Direction::Egress => remote,
    })
}

/// Returns whether the filter admits an event, apart from conditions on names.
#[must_use]
pub fn admits(filter: &EventFilter, seen: &JournalEvent) -> bool {
    let packet = &seen.packet;
    let protocol = |wanted: IpProtocol| {
        let same = |number| IpProtocol(number) == wanted || wanted.0 == 1 && number == 58;
        packet.protocol.is_some_and(same)
    };
    let verdict = match &filter.verdicts[..] {
        [] => seen.outcome != TrafficVerdict::Allow,
        verdicts => verdicts.contains(&seen.outcome),
    };
    verdict
        && filter.direction.is_none_or(|direction| direction == packet.direction)
        && filter.protocol.is_none_or(protocol)
        && (filter.ports.is_empty()
            || destination_port(seen).is_some_and(|it| filter.ports.contains(&it)))
        && (filter.reasons.is_empty() || filter.reasons.iter().any(|it| it == packet.reason))
}

/// Returns whether the filter's conditions on names admit an event.
#[must_use]
pub fn admits_names(
    filter: &EventFilter,
    seen: &JournalEvent,
    EventNames { pod, peer }: &EventNames,
) -> bool {
    let pod = pod.as_ref();
    let in_namespace = |name: &String| pod.is_some_and(|pod| pod.namespace == *name);
    filter.namespace.as_ref().is_none_or(in_namespace)
        && filter.pod.as_ref().is_none_or(|name| pod.is_some_and(|pod| name.is_of(pod)))
        && filter.peer.as_ref().is_none_or(|it| it.is_of(seen.packet.remote, peer.as_ref()))
}
