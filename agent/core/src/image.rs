//! What the tables are to say, independent of numbers and of history: two compilers whose cluster
//! state is equal have equal images.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use serde::Serialize;

use crate::compile::classes::Classes;
use crate::compile::peers::Atoms;
use crate::compile::ports::Grant;
use crate::compile::space::Space;
use crate::compile::spec::Spec;
use crate::compile::tries::NAME;
use crate::compile::{Atom, Ports};
use crate::model::{Key, Protocol};

/// The full desired content of the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Which sets an address belongs to, by longest prefix; a prefix that says the same as the one
    /// around it is left out, and so is the one of no set around everything.
    pub addresses: BTreeMap<IpNet, BTreeSet<Atom>>,
    /// By interface index.
    pub endpoints: BTreeMap<u32, EndpointImage>,
}

/// What an endpoint allows.
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
    /// What every address is allowed.
    pub everyone: Granted,
    /// What the addresses of a set are allowed on top.
    pub peers: BTreeMap<Atom, Granted>,
    /// What blocks allow on top, by longest prefix.
    pub blocks: BTreeMap<IpNet, Granted>,
}

/// Ports granted to a set of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// By number.
    pub ports: Ports,
    /// By name, resolved on each destination.
    pub names: BTreeSet<(Protocol, String)>,
}

/// Used and available elements of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fill {
    /// Name of the table.
    pub table: Table,
    /// Elements in use, reserved and quarantined ones included.
    pub used: u32,
    /// Elements there are.
    pub capacity: u32,
}

/// A table of limited size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Table {
    /// Columns of a row; cannot grow.
    Classes,
    /// `Capacity::bitmaps`
    Bitmaps,
    /// `Capacity::row_blocks`
    RowBlocks,
    /// `Capacity::rows`
    Rows,
    /// `Capacity::trie_blocks`
    TrieBlocks,
    /// `Capacity::hosts6`
    Hosts6,
    /// `Capacity::cidrs6`
    Cidrs6,
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Classes => "classes",
            Self::Bitmaps => "port bitmaps",
            Self::RowBlocks => "row blocks",
            Self::Rows => "rows",
            Self::TrieBlocks => "IPv4 trie blocks",
            Self::Hosts6 => "IPv6 addresses",
            Self::Cidrs6 => "IPv6 prefixes",
        })
    }
}

/// The address part of an image.
pub(crate) fn addresses(
    space: &Space,
    classes: &Classes,
    atoms: &Atoms,
) -> BTreeMap<IpNet, BTreeSet<Atom>> {
    let own = space
        .nodes
        .iter()
        .filter(|(prefix, node)| node.class.unwrap_or(0) != space.parent_class(*prefix));
    own.map(|(prefix, node)| {
        let signature = node.class.and_then(|class| classes.signature(class));
        let named = signature.into_iter().flat_map(|ids| ids.iter());
        (prefix.to_net(), named.filter_map(|id| atoms.content(*id)).collect())
    })
    .collect()
}

/// A spec with numbers replaced by what they stand for.
pub(crate) fn allowed(spec: &Spec, atoms: &Atoms) -> Allowed {
    let granted = |grant: &Grant| Granted {
        ports: Ports::new(grant, &atoms.tries),
        names: spec
            .names
            .iter()
            .filter(|id| atoms.tries.contains(NAME, grant.names, **id))
            .filter_map(|id| atoms.name(*id).cloned())
            .collect(),
    };
    let changes = spec.blocks.changes.iter();
    Allowed {
        blocks: changes
            .map(|(prefix, value)| (prefix.to_net(), granted(&spec.blocks.value(*value))))
            .collect(),
        everyone: granted(&spec.everyone),
        peers: spec
            .peers
            .iter()
            .filter_map(|(id, grant)| Some((atoms.atom(*id)?.clone(), granted(grant))))
            .collect(),
    }
}
