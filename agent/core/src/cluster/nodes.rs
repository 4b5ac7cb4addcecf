//! Nodes and their addresses, from Node objects and hostNetwork pods; for this node also from its interfaces.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::model::{Node, Selector};

/// Number of objects that report an address.
type AddressCounts = BTreeMap<IpAddr, u32>;

/// Every node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nodes {
    /// Name of this node.
    name: String,
    by_name: BTreeMap<String, Node>,
    /// Node objects by listed address; no set is empty.
    listed: BTreeMap<IpAddr, BTreeSet<String>>,
    /// This node's addresses.
    own: AddressCounts,
    /// Addresses of other nodes, by node name; no map is empty.
    others: BTreeMap<String, AddressCounts>,
    /// Every node's addresses.
    all: AddressCounts,
    /// [`Node::pod_ranges`], with the number of nodes that have each.
    pod_ranges: BTreeMap<IpNet, u32>,
    /// Addresses of this node's interfaces, whether or not an object reports them.
    found: BTreeSet<IpAddr>,
}

impl Nodes {
    /// An empty set, as seen from the node of this name.
    pub(super) fn new(name: String) -> Self {
        Self { name, ..Self::default() }
    }

    /// Name of this node.
    pub(super) fn own_name(&self) -> &str {
        &self.name
    }

    /// Node objects by name.
    pub(super) fn by_name(&self) -> &BTreeMap<String, Node> {
        &self.by_name
    }

    /// Number of nodes of which an object is known: the Node, or a hostNetwork pod with an address.
    pub(super) fn count(&self) -> usize {
        self.by_name.len().max(self.others.len() + 1)
    }

    /// Addresses of this node that objects report.
    pub(super) fn own(&self) -> impl Iterator<Item = IpAddr> {
        self.own.keys().copied()
    }

    /// Whether an object reports the address as this node's.
    pub(super) fn is_own(&self, address: IpAddr) -> bool {
        self.own.contains_key(&address)
    }

    /// The addresses of this node's interfaces.
    pub(super) fn found(&self) -> &BTreeSet<IpAddr> {
        &self.found
    }

    /// Whether an object reports the address for the other node of this name.
    pub(super) fn is_others(&self, name: &str, address: IpAddr) -> bool {
        self.others.get(name).is_some_and(|addresses| addresses.contains_key(&address))
    }

    /// Whether an object reports an address of the node of this name.
    pub(super) fn has_addresses_of(&self, name: &str) -> bool {
        if name == self.name { !self.own.is_empty() } else { self.others.contains_key(name) }
    }

    /// Whether an address is a node's: reported by an object, or on an interface of this node.
    pub(super) fn is_any(&self, address: IpAddr) -> bool {
        self.all.contains_key(&address) || self.found.contains(&address)
    }

    /// Whether an address is in a node's range for its pods.
    pub(super) fn is_in_pod_range(&self, address: IpAddr) -> bool {
        // Ranges of one length are adjacent in the map's order, but ranges of different lengths are not: each length is
        // looked up.
        let lengths = if address.is_ipv4() { 0..=32 } else { 0..=128 };
        !self.pod_ranges.is_empty()
            && lengths.into_iter().any(|length| {
                let range = IpNet::new(address, length).map(|range| range.trunc());
                range.is_ok_and(|range| self.pod_ranges.contains_key(&range))
            })
    }

    /// The Node objects that list an address.
    fn listing(&self, address: IpAddr) -> impl Iterator<Item = &Node> {
        let names = self.listed.get(&address).into_iter().flatten();
        names.filter_map(|name| self.by_name.get(name))
    }

    /// Whether a Node object that the selector matches lists an address.
    pub(crate) fn is_selected(&self, selector: &Selector, address: IpAddr) -> bool {
        self.listing(address).any(|node| selector.matches(&node.labels))
    }

    /// Whether some Node object lists an address.
    pub(crate) fn is_listed(&self, address: IpAddr) -> bool {
        self.listing(address).next().is_some()
    }

    /// The first node, by name, with this address in an object.
    pub(crate) fn with(&self, address: IpAddr) -> Option<&str> {
        let others = self.others.iter().filter(|(_, all)| all.contains_key(&address));
        let own = self.is_own(address).then_some(self.name.as_str());
        others.map(|(name, _)| name.as_str()).chain(own).min()
    }

    /// Sets or removes (`None`) a Node object. Returns its addresses before and after, and whether its labels changed.
    pub(super) fn set(&mut self, name: &str, new: Option<Node>) -> ([Vec<IpAddr>; 2], bool) {
        let labels = |node: Option<&Node>| node.map(|node| node.labels.clone());
        let after = new.as_ref().map_or_else(Vec::new, |node| node.addresses.clone());
        let labels_after = labels(new.as_ref());
        for range in new.iter().flat_map(|node| &node.pod_ranges) {
            *self.pod_ranges.entry(range.trunc()).or_default() += 1;
        }
        let old = match new {
            Some(new) => self.by_name.insert(name.to_owned(), new),
            None => self.by_name.remove(name),
        };
        let relabelled = labels(old.as_ref()) != labels_after;
        for range in old.iter().flat_map(|node| &node.pod_ranges) {
            count_down(&mut self.pod_ranges, &range.trunc());
        }
        let before = old.map_or_else(Vec::new, |node| node.addresses);
        for address in before.iter().filter(|address| !after.contains(address)) {
            if let Some(names) = self.listed.get_mut(address) {
                names.remove(name);
                if names.is_empty() {
                    self.listed.remove(address);
                }
            }
        }
        for address in &after {
            self.listed.entry(*address).or_default().insert(name.to_owned());
        }
        self.change(name, &before, &after);
        ([before, after], relabelled)
    }

    /// Updates the addresses that an object reports for a node. They are counted, because a Node and several pods can
    /// report the same address.
    pub(super) fn change(&mut self, name: &str, before: &[IpAddr], after: &[IpAddr]) {
        if before.is_empty() && after.is_empty() {
            return;
        }
        let is_own = name == self.name;
        let addresses = match is_own {
            true => &mut self.own,
            false => self.others.entry(name.to_owned()).or_default(),
        };
        for address in after {
            *addresses.entry(*address).or_default() += 1;
            *self.all.entry(*address).or_default() += 1;
        }
        for address in before {
            count_down(addresses, address);
            count_down(&mut self.all, address);
        }
        if !is_own && addresses.is_empty() {
            self.others.remove(name);
        }
    }

    /// Sets the addresses of this node's interfaces. Returns the addresses added or removed.
    pub(super) fn find(&mut self, found: BTreeSet<IpAddr>) -> Vec<IpAddr> {
        let before = std::mem::replace(&mut self.found, found);
        before.symmetric_difference(&self.found).copied().collect()
    }
}

fn count_down<K: Ord>(counted: &mut BTreeMap<K, u32>, key: &K) {
    if let Some(count) = counted.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counted.remove(key);
        }
    }
}
