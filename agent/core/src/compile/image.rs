//! Desired contents of the tables, without numbers of classes, rows and slots and independent of history: two compilers
//! with equal cluster state have equal images.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use crate::compile::rules::direction_policy::DirectionPolicy;
use crate::compile::sets::Sets;
use crate::compile::sets::set::PeerSet;
use crate::compile::tables::endpoints::Live;
use crate::model::{Direction, DomainName, Key, Protocol};
use crate::ports::tries::{NAME, Tries};
use crate::ports::{AllowedPorts, Ports};

/// Desired contents of all tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableImage {
    /// Sets of each address, by longest prefix. Prefixes with the same sets as the enclosing prefix are left out; the
    /// default outside all prefixes is not a set.
    pub addresses: BTreeMap<IpNet, BTreeSet<PeerSet>>,
    /// Endpoints by interface index.
    pub endpoints: BTreeMap<u32, EndpointImage>,
}

/// Traffic that an endpoint allows, by direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointImage {
    /// The pod.
    pub pod: Key,
    /// `None`: not isolated.
    pub ingress: Option<Allowed>,
    /// `None`: not isolated.
    pub egress: Option<Allowed>,
}

/// The union of all rules of a direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Ports granted to every address.
    pub everyone: GrantedPorts,
    /// Ports granted to the addresses of a peer set, in addition.
    pub peers: BTreeMap<PeerSet, GrantedPorts>,
    /// Ports granted by ipBlocks, in addition; by longest prefix.
    pub blocks: BTreeMap<IpNet, GrantedPorts>,
    /// Domain names of each group of rules.
    pub domains: Vec<BTreeSet<DomainName>>,
}

/// Ports granted to a set of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrantedPorts {
    /// Port numbers.
    pub ports: Ports,
    /// Names of egress ports, resolved on each destination pod.
    pub names: BTreeSet<(Protocol, String)>,
}

impl TableImage {
    /// Builds the image from sets, direction policies and endpoints.
    pub(crate) fn new(sets: &Sets, tries: &Tries, live: &BTreeMap<u32, Live>) -> Self {
        let endpoint = |live: &Live| {
            let allowed = |direction: Direction| {
                live.rules.policies[direction as usize]
                    .as_ref()
                    .map(|direction_policy| allowed(direction_policy, sets, tries))
            };
            EndpointImage {
                pod: live.identity.pod.clone(),
                ingress: allowed(Direction::Ingress),
                egress: allowed(Direction::Egress),
            }
        };
        Self {
            addresses: addresses(sets),
            endpoints: live.iter().map(|(ifindex, live)| (*ifindex, endpoint(live))).collect(),
        }
    }
}

/// Sets of each address, see [`TableImage::addresses`].
fn addresses(sets: &Sets) -> BTreeMap<IpNet, BTreeSet<PeerSet>> {
    let partition = &sets.partition;
    let own = partition
        .entries
        .iter()
        .filter(|(prefix, entry)| entry.class.unwrap_or(0) != partition.parent_class(*prefix));
    own.map(|(prefix, entry)| {
        let membership = entry.class.and_then(|class| sets.classes.membership(class));
        let named = membership.into_iter().flat_map(|ids| ids.iter());
        (prefix.to_net(), named.filter_map(|id| sets.content(*id)).collect())
    })
    .collect()
}

/// A direction policy with numbers replaced by the sets, ports and names they refer to.
fn allowed(direction_policy: &DirectionPolicy, sets: &Sets, tries: &Tries) -> Allowed {
    let registry = &sets.peers.registry;
    let granted = |grant: &AllowedPorts| GrantedPorts {
        ports: Ports::new(grant, tries),
        names: direction_policy
            .names
            .iter()
            .filter(|id| tries.contains(NAME, grant.names, **id))
            .filter_map(|id| registry.name(*id).cloned())
            .collect(),
    };
    let changes = direction_policy.blocks.changes.0.iter();
    let groups = direction_policy.domains.iter().flat_map(|groups| groups.iter());
    Allowed {
        domains: groups.map(|group| group.names.clone()).collect(),
        blocks: changes
            .map(|(prefix, value)| {
                (prefix.to_net(), granted(&direction_policy.blocks.value(*value)))
            })
            .collect(),
        everyone: granted(&direction_policy.everyone),
        peers: direction_policy
            .peers
            .iter()
            .filter_map(|(id, grant)| Some((registry.peer_set(*id)?.clone(), granted(grant))))
            .collect(),
    }
}
