//! Frontends: what the address of a Service, or of a node with node ports, leads to.
//!
//! Such an address gets an atom that stands for its content: each port with its backends, and each
//! backend by the atoms that its own address has. What a spec allows of it follows from the content
//! alone, so a backend that changes class gives the address another atom and with it another class:
//! one word flips, like that of any address. Addresses with equal content share the atom.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::compile::sets::set::{AtomId, CLUSTER, FRONTENDS, Signature, is_frontends};
use crate::model::Protocol;

/// Backends of a port: what atoms their addresses have, and their port; sorted, each once.
pub(crate) type Backends = Arc<[(Signature, u16)]>;

/// One port of an address that is translated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Front {
    pub(crate) protocol: Protocol,
    pub(crate) port: u16,
    /// A node port: another node chooses the backend, out of sight, so each of them must be allowed.
    /// Else this node translates, and what it chose is judged behind that.
    pub(crate) elsewhere: bool,
    pub(crate) backends: Backends,
}

/// The atoms in use, and what they stand for.
#[derive(Debug, Default)]
pub(crate) struct Frontends {
    next: AtomId,
    ids: HashMap<(Arc<[Front]>, bool), AtomId>,
    /// Content and number of addresses.
    contents: HashMap<AtomId, (Arc<[Front]>, u32)>,
    /// Some atom lost its last address since the last sweep.
    idle: bool,
}

impl Frontends {
    /// The atom of this content (sorted, each port once), for one address more; whether it is a
    /// Service's cluster address.
    pub(crate) fn acquire(&mut self, fronts: Vec<Front>, cluster: bool) -> AtomId {
        let content: Arc<[Front]> = fronts.into();
        let key = (content.clone(), cluster);
        if let Some(id) = self.ids.get(&key) {
            if let Some((_, addresses)) = self.contents.get_mut(id) {
                *addresses += 1;
            }
            return *id;
        }
        let id = self.next | FRONTENDS | if cluster { CLUSTER } else { 0 };
        self.next += 1;
        self.ids.insert(key, id);
        self.contents.insert(id, (content, 1));
        id
    }

    /// One address less has these atoms; those that are no frontends' are not counted here.
    pub(crate) fn release(&mut self, atoms: &[AtomId]) {
        if let Some((_, addresses)) = atoms.last().and_then(|id| self.contents.get_mut(id)) {
            *addresses -= 1;
            self.idle |= *addresses == 0;
        }
    }

    /// The frontends of an address with this signature.
    pub(crate) fn of(&self, signature: &[AtomId]) -> Option<Arc<[Front]>> {
        let id = signature.last().filter(|id| is_frontends(**id))?;
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
