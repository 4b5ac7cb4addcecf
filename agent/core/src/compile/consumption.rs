//! Use of a full table by combinations of policies, to choose the combinations to close.
//!
//! The namespace with the largest use is closed first, beginning with its largest combination, so a tenant that fills a
//! table with many small policies does not close the policies of another. An element that several combinations use is
//! free once all of them are closed. Elements used for ClusterNetworkPolicies alone are not counted, because closing a
//! combination does not free them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashMap, HashSet};

use crate::budget::Combination;
use crate::compile::rules::direction_policy::DirectionPolicy;
use crate::compile::rules::{Closing, Rules};
use crate::compile::sets::Sets;
use crate::compile::sets::block_groups::PolicyId;
use crate::compile::sets::set::{Membership, OWN_NODE, SetId, is_group};
use crate::compile::tables::TableSet;
use crate::ops::Table;
use crate::prefix::{IpFamily, Prefix};

/// Element of a table, or an entry for which the table needs elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Element {
    /// Number of the element.
    Number(u32),
    /// Prefix with an element of its own in a table of addresses.
    Prefix(Prefix),
    /// Peer set, of which every address has an entry in a table of addresses.
    PeerSet(SetId),
}

/// The combinations in use, with their direction policies.
type Combinations<'a> = BTreeMap<Combination, Vec<&'a Arc<DirectionPolicy>>>;

/// Chooses combinations to close until `excess` elements of a table are free or no combination uses the table.
pub(super) fn choose(
    (rules, sets, tables): (&Rules, &Sets, &TableSet),
    table: Table,
    excess: usize,
) -> Closing {
    let mut all = Combinations::new();
    for (combination, direction_policy) in rules.direction_policies.combinations() {
        all.entry(combination).or_default().push(direction_policy);
    }
    if table != Table::Classes {
        return by_elements(elements(&all, tables, table), excess);
    }
    all.retain(|combination, _| is_closable(combination));
    by_classes(&Divisions::new(rules, sets), &all, excess)
}

/// Whether a combination can be closed: one of ClusterNetworkPolicies alone belongs to no namespace and cannot.
fn is_closable(combination: &Combination) -> bool {
    !combination.policies.is_empty()
}

/// The elements of a table that each combination uses.
fn elements(
    all: &Combinations<'_>,
    tables: &TableSet,
    table: Table,
) -> BTreeMap<Combination, HashSet<Element>> {
    let mut rows: HashMap<&Arc<DirectionPolicy>, Vec<u32>> = HashMap::new();
    for (row, direction_policy, _) in tables.rows.iter() {
        rows.entry(direction_policy).or_default().push(row);
    }
    let used = |direction_policy: &Arc<DirectionPolicy>, into: &mut HashSet<Element>| {
        let rows = rows.get(direction_policy).map_or(&[][..], Vec::as_slice);
        match table {
            Table::Bitmaps => {
                let sets: BTreeSet<u32> =
                    rows.iter().flat_map(|row| tables.rows.port_sets(*row)).collect();
                let bitmaps = sets.into_iter().flat_map(|set| tables.port_sets.bitmaps_of(set));
                into.extend(bitmaps.map(Element::Number));
            }
            Table::RowBlocks => {
                let blocks = rows.iter().flat_map(|row| tables.rows.blocks(*row));
                into.extend(blocks.map(Element::Number));
            }
            Table::Rows if !direction_policy.is_closed() => {
                into.extend(rows.iter().copied().map(Element::Number));
            }
            Table::TrieBlocks | Table::Hosts6 | Table::Blocks6 => {
                let changes = direction_policy.blocks.changes.0.iter();
                into.extend(changes.flat_map(|(prefix, _)| entries(*prefix, table)));
                let peers = direction_policy.peers.keys().filter(|id| **id != OWN_NODE);
                into.extend(peers.map(|id| Element::PeerSet(*id)));
            }
            Table::Rows | Table::Classes | Table::Names => {}
        }
    };
    let of = |direction_policies: &Vec<&Arc<DirectionPolicy>>| {
        let mut elements = HashSet::new();
        direction_policies.iter().for_each(|it| used(it, &mut elements));
        elements
    };
    let of_none = all.iter().filter(|(combination, _)| !is_closable(combination));
    let fixed: HashSet<Element> = of_none.flat_map(|(_, policies)| of(policies)).collect();
    let closable = all.iter().filter(|(combination, _)| is_closable(combination));
    let closable = closable.map(|(combination, policies)| {
        let mut elements = of(policies);
        elements.retain(|element| !fixed.contains(element));
        (combination.clone(), elements)
    });
    closable.collect()
}

/// The elements of a table of addresses for an entry of this prefix. In the IPv4 trie these are the blocks below the
/// upper 16 and below the upper 24 bits.
fn entries(prefix: Prefix, table: Table) -> impl Iterator<Item = Element> {
    let block = |len: u8| {
        let is_below = prefix.family == IpFamily::V4 && prefix.len > len;
        is_below.then(|| prefix.truncate(len))
    };
    let whole =
        |is_host| (prefix.family == IpFamily::V6 && prefix.is_host() == is_host).then_some(prefix);
    let prefixes = match table {
        Table::TrieBlocks => [block(16), block(24)],
        Table::Hosts6 => [whole(true), None],
        Table::Blocks6 => [whole(false), None],
        Table::Classes | Table::Bitmaps | Table::RowBlocks | Table::Rows | Table::Names => {
            [None, None]
        }
    };
    prefixes.into_iter().flatten().map(Element::Prefix)
}

/// Chooses by the elements of each combination.
fn by_elements(of: BTreeMap<Combination, HashSet<Element>>, excess: usize) -> Closing {
    let mut users = ElementUsers::default();
    let mut namespaces: BTreeMap<String, Consumer> = BTreeMap::new();
    for (combination, elements) in of.into_iter().filter(|(_, elements)| !elements.is_empty()) {
        users.add(&elements);
        namespaces
            .entry(combination.namespace().to_owned())
            .or_default()
            .add(combination, elements);
    }
    for consumer in namespaces.values_mut() {
        consumer.open.sort_by_key(|(_, elements)| elements.len());
    }
    let uses: BTreeMap<String, usize> =
        namespaces.iter().map(|(name, of)| (name.clone(), of.users.0.len())).collect();
    let (mut closing, mut freed, mut least) = (Closing::default(), 0, usize::MAX);
    while freed < excess {
        let most = namespaces.values_mut().rev().max_by_key(|of| of.users.0.len());
        let Some((combination, elements)) = most.and_then(Consumer::close_largest) else { break };
        least = least.min(elements.len());
        freed += users.remove(&elements);
        closing.combinations.insert(combination);
    }
    closing.large = large(&uses, least);
    closing.before = uses;
    closing.after = namespaces.into_iter().map(|(name, of)| (name, of.users.0.len())).collect();
    closing
}

/// The namespaces with at least this use.
fn large(uses: &BTreeMap<String, usize>, least: usize) -> BTreeSet<String> {
    uses.iter().filter(|(_, uses)| **uses >= least).map(|(name, _)| name.clone()).collect()
}

/// Number of open combinations by element.
#[derive(Default)]
struct ElementUsers(HashMap<Element, u32>);

impl ElementUsers {
    fn add(&mut self, elements: &HashSet<Element>) {
        elements.iter().for_each(|element| *self.0.entry(*element).or_default() += 1);
    }

    /// Removes a combination with these elements; returns the number of elements without another one.
    fn remove(&mut self, elements: &HashSet<Element>) -> usize {
        let before = self.0.len();
        for element in elements {
            if let Some(count) = self.0.get_mut(element) {
                *count -= 1;
                if *count == 0 {
                    self.0.remove(element);
                }
            }
        }
        before - self.0.len()
    }
}

/// A namespace and its use of a table.
#[derive(Default)]
struct Consumer {
    /// The open combinations; the largest last.
    open: Vec<(Combination, HashSet<Element>)>,
    users: ElementUsers,
}

impl Consumer {
    fn add(&mut self, combination: Combination, elements: HashSet<Element>) {
        self.users.add(&elements);
        self.open.push((combination, elements));
    }

    fn close_largest(&mut self) -> Option<(Combination, HashSet<Element>)> {
        let (combination, elements) = self.open.pop()?;
        self.users.remove(&elements);
        Some((combination, elements))
    }
}

/// The classes as sums of their parts, to count the classes that remain if some direction policies are removed.
struct Divisions<'a> {
    rules: &'a Rules,
    sets: &'a Sets,
    /// Membership of each class, and the sum of its parts' hashes.
    classes: Vec<(&'a Membership, u64)>,
    hasher: DefaultHashBuilder,
}

/// Direction policies, and the sets of addresses in their rules.
#[derive(Default)]
struct RemovedPolicies {
    policies: BTreeSet<PolicyId>,
    sets: HashSet<SetId>,
}

impl<'a> Divisions<'a> {
    fn new(rules: &'a Rules, sets: &'a Sets) -> Self {
        let hasher = DefaultHashBuilder::default();
        let mut divisions = Self { rules, sets, classes: Vec::new(), hasher };
        let mut groups: HashMap<SetId, u64> = HashMap::new();
        for (_, membership) in sets.classes.iter() {
            let parts = membership.iter().map(|id| match is_group(*id) {
                true => *groups.entry(*id).or_insert_with(|| {
                    let key = sets.groups.key(*id).iter();
                    key.fold(0, |sum, part| sum.wrapping_add(divisions.hasher.hash_one(part)))
                }),
                false => divisions.hasher.hash_one(id),
            });
            let total = parts.fold(0, u64::wrapping_add);
            divisions.classes.push((membership, total));
        }
        divisions
    }

    /// The sets and blocks of direction policies.
    fn removed<'b>(&self, all: impl Iterator<Item = &'b Arc<DirectionPolicy>>) -> RemovedPolicies {
        let mut removed = RemovedPolicies::default();
        for direction_policy in all {
            removed.policies.extend(self.rules.direction_policies.id(direction_policy));
            removed.sets.extend(direction_policy.peers.keys().filter(|id| **id != OWN_NODE));
            let names = direction_policy.names.iter();
            let registry = &self.sets.peers.registry;
            removed.sets.extend(names.flat_map(|name| registry.sets_of_name(*name)));
        }
        removed
    }

    /// Number of classes that no longer differ from another class once these policies and sets are removed.
    fn freed(&self, removed: &RemovedPolicies) -> usize {
        let distinct: HashSet<u64> = self.rests(removed).map(|(_, rest)| rest).collect();
        self.classes.len() - distinct.len()
    }

    /// Number of classes that only these policies and sets distinguish, or that they would distinguish alone: of two
    /// namespaces that divide the same addresses, neither frees a class by itself.
    fn uses(&self, removed: &RemovedPolicies) -> usize {
        let (parts, rests): (HashSet<u64>, HashSet<u64>) = self.rests(removed).unzip();
        (self.classes.len() - rests.len()).max(parts.len().saturating_sub(1))
    }

    /// The hash sums of each class: of the parts that these remove, and of the others.
    fn rests<'b>(
        &'b self,
        removed: &'b RemovedPolicies,
    ) -> impl Iterator<Item = (u64, u64)> + use<'b> {
        self.classes.iter().map(|(membership, total)| {
            let mut rest = *total;
            for id in membership.iter() {
                if !is_group(*id) {
                    if removed.sets.contains(id) {
                        rest = rest.wrapping_sub(self.hasher.hash_one(id));
                    }
                    continue;
                }
                let key = self.sets.groups.key(*id);
                let mut subtract =
                    |part: &(PolicyId, u32)| rest = rest.wrapping_sub(self.hasher.hash_one(part));
                if key.len() < removed.policies.len() {
                    let parts = key.iter().filter(|(id, _)| removed.policies.contains(id));
                    parts.for_each(&mut subtract);
                } else {
                    let places = removed.policies.iter();
                    let places =
                        places.filter_map(|of| key.binary_search_by_key(of, |(id, _)| *id).ok());
                    places.for_each(|place| subtract(&key[place]));
                }
            }
            (total.wrapping_sub(rest), rest)
        })
    }

    /// Number of classes that closing some combinations frees. Direction policies and sets of open combinations stay.
    fn freed_by_closing(&self, all: &Combinations<'_>, closed: &BTreeSet<Combination>) -> usize {
        let of = |is_closed| {
            let some = all.iter().filter(move |(it, _)| closed.contains(it) == is_closed);
            some.flat_map(|(_, direction_policies)| direction_policies.iter().copied())
        };
        let (mut removed, stay) = (self.removed(of(true)), self.removed(of(false)));
        removed.policies.retain(|id| !stay.policies.contains(id));
        removed.sets.retain(|id| !stay.sets.contains(id));
        self.freed(&removed)
    }
}

/// Chooses by the classes that a namespace's policies distinguish.
fn by_classes(divisions: &Divisions<'_>, all: &Combinations<'_>, excess: usize) -> Closing {
    let mut namespaces: BTreeMap<&str, Vec<&Combination>> = BTreeMap::new();
    for combination in all.keys() {
        namespaces.entry(combination.namespace()).or_default().push(combination);
    }
    let of = |combination: &Combination| all.get(combination).into_iter().flatten().copied();
    let size = |combination: &&Combination| -> usize {
        of(combination).map(|it| it.peers.len() + it.names.len() + it.blocks.changes.0.len()).sum()
    };
    let mut order: Vec<(usize, &str, Vec<&Combination>)> = Vec::new();
    for (namespace, mut combinations) in namespaces {
        let removed = divisions.removed(combinations.iter().flat_map(|it| of(it)));
        combinations.sort_by_key(|combination| Reverse(size(combination)));
        order.push((divisions.uses(&removed), namespace, combinations));
    }
    order.sort_by_key(|(uses, namespace, _)| (Reverse(*uses), *namespace));
    let uses: BTreeMap<String, usize> =
        order.iter().map(|(uses, name, _)| ((*name).to_owned(), *uses)).collect();
    let (mut closing, mut freed, mut least) = (Closing::default(), 0, usize::MAX);
    closing.after.clone_from(&uses);
    for (uses, name, mut left) in order.into_iter().filter(|(uses, ..)| *uses > 0) {
        if freed >= excess {
            break;
        }
        least = uses;
        // The batch doubles each time, because each count visits all classes.
        let mut batch = 1;
        while !left.is_empty() && freed < excess {
            let rest = left.split_off(batch.min(left.len()));
            closing.combinations.extend(left.into_iter().cloned());
            freed = divisions.freed_by_closing(all, &closing.combinations);
            (left, batch) = (rest, batch * 2);
        }
        let removed = divisions.removed(left.iter().flat_map(|it| of(it)));
        closing.after.insert(name.to_owned(), divisions.uses(&removed));
    }
    closing.large = large(&uses, least);
    closing.before = uses;
    closing
}
