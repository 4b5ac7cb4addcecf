//! Service targets: what the address of a Service, or of a node with node ports, leads to.
//!
//! Such an address gets a peer set that stands for its content: each port with its backends, and each
//! backend by the peer sets that its own address has. What a direction policy allows of it follows from
//! the content alone, so a backend that changes class gives the address another peer set and with it
//! another class: one word flips, like that of any address. Addresses with equal content share the peer
//! set.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::compile::sets::set::{CLUSTER, Membership, SetId, TARGETS, is_targets};
use crate::model::Protocol;

/// Backends of a port: what peer sets their addresses have, and their port; sorted, each once.
pub(crate) type Backends = Arc<[(Membership, u16)]>;

/// One port of an address that is translated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TargetPort {
    pub(crate) protocol: Protocol,
    pub(crate) port: u16,
    /// A node port: another node chooses the backend, out of sight, so each of them must be allowed.
    /// Else this node translates, and what it chose is judged behind that.
    pub(crate) elsewhere: bool,
    pub(crate) backends: Backends,
}

/// The peer sets in use, and what they stand for.
#[derive(Debug, Default)]
pub(crate) struct ServiceTargets {
    next: SetId,
    ids: HashMap<(Arc<[TargetPort]>, bool), SetId>,
    /// Content and number of addresses.
    contents: HashMap<SetId, (Arc<[TargetPort]>, u32)>,
    /// Some peer set lost its last address since the last sweep.
    idle: bool,
}

impl ServiceTargets {
    /// The peer set of this content (sorted, each port once), for one address more; whether it is a
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

    /// One address less has these peer sets; those that are no service targets' are not counted here.
    pub(crate) fn release(&mut self, peer_sets: &[SetId]) {
        if let Some((_, addresses)) = peer_sets.last().and_then(|id| self.contents.get_mut(id)) {
            *addresses -= 1;
            self.idle |= *addresses == 0;
        }
    }

    /// The service targets of an address with this membership.
    pub(crate) fn of(&self, membership: &[SetId]) -> Option<Arc<[TargetPort]>> {
        let id = membership.last().filter(|id| is_targets(**id))?;
        self.contents.get(id).map(|(content, _)| content.clone())
    }

    /// Ends the update: forgets what no address has any more.
    pub(crate) fn sweep(&mut self) {
        if std::mem::take(&mut self.idle) {
            self.ids.retain(|_, id| self.contents.get(id).is_some_and(|(_, users)| *users != 0));
            self.contents.retain(|_, (_, users)| *users != 0);
        }
    }
}
