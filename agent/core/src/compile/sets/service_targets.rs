//! Service targets: backends behind the address of a Service, or of a node with node ports.
//!
//! Such an address gets a peer set for its content: each port with its backends, each backend by the membership of its
//! own address. The ports that a direction policy allows there follow from the content alone. A backend that changes
//! class therefore gives the address another peer set and another class: one word flips, as for any address. Addresses
//! with equal content share the peer set.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::compile::sets::set::{CLUSTER, Membership, SetId, TARGETS, is_targets};
use crate::model::Protocol;

/// Backends of a port: membership of their addresses, and their port; sorted, without duplicates.
pub(crate) type Backends = Arc<[(Membership, u16)]>;

/// Port number of [`unknown_backends`], which no backend has.
const UNKNOWN: u16 = 0;

/// Backends of a node port of a Service with slices beyond the limits.
pub(crate) fn unknown_backends() -> Backends {
    Arc::from([(Membership::from([]), UNKNOWN)])
}

/// Whether not all backends are known.
pub(crate) fn are_unknown(backends: &Backends) -> bool {
    backends.iter().any(|(_, port)| *port == UNKNOWN)
}

/// A port of a translated address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TargetPort {
    pub(crate) protocol: Protocol,
    pub(crate) port: u16,
    /// A node port of another node, which chooses the backend unseen, so every backend must be allowed. For all others
    /// this node translates, and the packet is judged after translation.
    pub(crate) elsewhere: bool,
    pub(crate) backends: Backends,
}

/// The service target peer sets in use, with their content.
#[derive(Debug, Default)]
pub(crate) struct ServiceTargets {
    next: SetId,
    ids: HashMap<(Arc<[TargetPort]>, bool), SetId>,
    /// Content and number of addresses.
    contents: HashMap<SetId, (Arc<[TargetPort]>, u32)>,
    /// A peer set lost its last address since the last sweep.
    idle: bool,
}

impl ServiceTargets {
    /// The peer set of this content (sorted, each port once); counts one more address. `cluster` is whether it is a
    /// Service's cluster address.
    pub(crate) fn acquire(&mut self, targets: Vec<TargetPort>, cluster: bool) -> SetId {
        let content: Arc<[TargetPort]> = targets.into();
        let key = (content.clone(), cluster);
        if let Some(id) = self.ids.get(&key) {
            if let Some((_, addresses)) = self.contents.get_mut(id) {
                *addresses += 1;
            }
            return *id;
        }
        let id = self.next | TARGETS | if cluster { CLUSTER } else { 0 };
        self.next += 1;
        self.ids.insert(key, id);
        self.contents.insert(id, (content, 1));
        id
    }

    /// Counts one address less for the service targets in `peer_sets`; other peer sets are not counted here.
    pub(crate) fn release(&mut self, peer_sets: &[SetId]) {
        if let Some((_, addresses)) = peer_sets.last().and_then(|id| self.contents.get_mut(id)) {
            *addresses -= 1;
            self.idle |= *addresses == 0;
        }
    }

    /// Service targets in a membership.
    pub(crate) fn targets_in(&self, membership: &[SetId]) -> Option<Arc<[TargetPort]>> {
        let id = membership.last().filter(|id| is_targets(**id))?;
        self.contents.get(id).map(|(content, _)| content.clone())
    }

    /// Ends the update: drops peer sets without addresses.
    pub(crate) fn sweep(&mut self) {
        if std::mem::take(&mut self.idle) {
            self.ids.retain(|_, id| self.contents.get(id).is_some_and(|(_, users)| *users != 0));
            self.contents.retain(|_, (_, users)| *users != 0);
        }
    }
}
