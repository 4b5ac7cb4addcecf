//! Domain names in the tables: lists of names with the groups of rules that have them, and the trusted resolvers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;

use netpold_ebpf::layout::NAME_GROUPS;

use crate::compile::rules::direction_policy::NameGroup;
use crate::compile::slots::SlotAllocator;
use crate::compile::tables::element::DesiredElement;
use crate::model::DomainName;
use crate::ops::Op;

/// A bit for each group of rules that has the name.
type List = BTreeMap<DomainName, u32>;

/// The lists of names, shared by rows with equal names.
#[derive(Debug)]
pub(crate) struct Names {
    pub(crate) slots: SlotAllocator,
    lists: BTreeMap<u32, (List, u32)>,
    /// Lists without a row. Packets in flight may read them until the next update.
    ended: Vec<(u32, List)>,
    /// The value: whether answers over TCP count.
    resolvers: BTreeMap<IpAddr, bool>,
}

impl Names {
    pub(crate) fn new() -> Self {
        Self {
            slots: SlotAllocator::new(1),
            lists: BTreeMap::new(),
            ended: Vec::new(),
            resolvers: BTreeMap::new(),
        }
    }

    /// Entries in the table.
    pub(crate) fn count(&self) -> u32 {
        let ended = self.ended.iter().map(|(_, list)| list.len());
        (self.lists.values().map(|(list, _)| list.len()).chain(ended).sum::<usize>()) as u32
    }

    /// Begins an update: removes the lists that ended in an earlier one.
    pub(crate) fn begin(&mut self, ops: &mut Vec<Op>) {
        for (id, list) in std::mem::take(&mut self.ended) {
            ops.extend(list.into_keys().map(|name| Op::NameGone(id, Box::new(name))));
            self.slots.retire(id);
        }
    }

    /// Number of the list of these groups' names, for one more row. Groups beyond [`NAME_GROUPS`] are left out.
    pub(crate) fn acquire(&mut self, groups: &[NameGroup], ops: &mut Vec<Op>) -> u32 {
        let mut list = List::new();
        for (number, group) in groups.iter().take(NAME_GROUPS).enumerate() {
            for name in &group.names {
                *list.entry(name.clone()).or_default() |= 1 << number;
            }
        }
        let known = self.lists.iter_mut().find(|(_, (known, _))| *known == list);
        if let Some((id, (_, rows))) = known {
            *rows += 1;
            return *id;
        }
        let id = self.slots.allocate();
        ops.extend(list.iter().map(|(name, groups)| Op::Name {
            list: id,
            name: Box::new(name.clone()),
            groups: *groups,
        }));
        self.lists.insert(id, (list, 1));
        id
    }

    /// Drops one row of a list.
    pub(crate) fn release(&mut self, id: u32) {
        let Some((_, rows)) = self.lists.get_mut(&id) else { return };
        *rows -= 1;
        if *rows == 0 {
            self.ended.extend(self.lists.remove(&id).map(|(list, _)| (id, list)));
        }
    }

    /// Trusts exactly these resolvers, those with `true` also over TCP; none while no row has names.
    pub(crate) fn trust(&mut self, resolvers: BTreeMap<IpAddr, bool>, ops: &mut Vec<Op>) {
        let wanted = if self.lists.is_empty() { BTreeMap::new() } else { resolvers };
        let gone = self.resolvers.keys().filter(|address| !wanted.contains_key(address));
        ops.extend(gone.map(|address| Op::ResolverGone(*address)));
        let new = wanted
            .iter()
            .filter(|(address, over_tcp)| self.resolvers.get(address) != Some(over_tcp));
        ops.extend(new.map(|(address, over_tcp)| Op::Resolver(*address, *over_tcp)));
        self.resolvers = wanted;
    }

    /// The names of all lists.
    pub(crate) fn all(&self) -> BTreeSet<&DomainName> {
        self.lists.values().flat_map(|(list, _)| list.keys()).collect()
    }

    /// Passes the entries with indexes in a range to `visit`.
    pub(super) fn visit(&self, range: Range<u32>, visit: &mut dyn FnMut(DesiredElement<'_>)) {
        let all = self.lists.iter().flat_map(|(id, (list, _))| {
            list.iter().map(|(name, groups)| DesiredElement::Name(*id, name, *groups))
        });
        all.skip(range.start as usize).take(range.len()).for_each(visit);
    }
}
