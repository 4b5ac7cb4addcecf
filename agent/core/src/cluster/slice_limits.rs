//! EndpointSlices within and beyond the limits of their namespaces.
//!
//! In the order of names, the slices up to the first one that does not fit are within the limit. So which slices count
//! follows from the objects, and a change moves few of them across the limit.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::budget::{NAMESPACE_BACKENDS, is_too_large, slice_units};
use crate::model::{EndpointSlice, Key};

/// Sums over the EndpointSlices of a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SliceSums {
    /// Ports.
    pub ports: usize,
    /// Addresses.
    pub addresses: usize,
}

/// Limits of all namespaces with slices.
#[derive(Clone, Debug, Default)]
pub(super) struct SliceLimits {
    of: BTreeMap<String, NamespaceSlices>,
}

/// Slices of a namespace.
#[derive(Clone, Debug, Default)]
struct NamespaceSlices {
    /// Units of the slices within the limit.
    units: usize,
    /// Name of the first slice beyond the limit.
    first_beyond: Option<String>,
    /// Number of slices that are too large by themselves.
    too_large: usize,
}

impl NamespaceSlices {
    fn has_beyond(&self) -> bool {
        self.first_beyond.is_some() || self.too_large > 0
    }

    fn is_within(&self, name: &str) -> bool {
        self.first_beyond.as_ref().is_none_or(|first| name < first.as_str())
    }
}

impl SliceLimits {
    /// Whether a slice is beyond a limit: its own, or that of its namespace.
    pub(super) fn is_beyond(&self, slice: &EndpointSlice) -> bool {
        let Key { namespace, name } = &slice.key;
        let of = || self.of.get(namespace);
        is_too_large(slice) || of().is_some_and(|of| !of.is_within(name))
    }

    /// Whether a namespace has slices beyond a limit.
    pub(super) fn has_beyond(&self, namespace: &str) -> bool {
        self.of.get(namespace).is_some_and(NamespaceSlices::has_beyond)
    }

    /// Namespaces with slices beyond a limit.
    pub(super) fn namespaces_beyond(&self) -> impl Iterator<Item = &str> {
        let beyond = self.of.iter().filter(|(_, of)| of.has_beyond());
        beyond.map(|(namespace, _)| namespace.as_str())
    }

    /// Whether a slice is too large after this change, or its namespace has, or would have, too many slices. Other
    /// slices that are too large do not count: this change moves them across no limit.
    pub(super) fn would_exceed(&self, old: Option<&EndpointSlice>, new: &EndpointSlice) -> bool {
        let of = self.of.get(&new.key.namespace);
        let units = of.map_or(0, |of| of.units) + slice_units(new);
        is_too_large(new)
            || of.is_some_and(|of| of.first_beyond.is_some())
            || units > NAMESPACE_BACKENDS + old.map_or(0, slice_units)
    }

    /// Takes in a change of a slice that is in `slices` already. Returns the other slices that crossed the limit.
    pub(super) fn change(
        &mut self,
        [old, new]: [Option<&EndpointSlice>; 2],
        slices: &BTreeMap<Key, Arc<EndpointSlice>>,
    ) -> Vec<Arc<EndpointSlice>> {
        let mut moved = Vec::new();
        let Some(key) = old.or(new).map(|slice| &slice.key) else { return moved };
        let namespace = key.namespace.as_str();
        let of = self.of.entry(namespace.to_owned()).or_default();
        of.too_large += usize::from(new.is_some_and(is_too_large));
        of.too_large -= usize::from(old.is_some_and(is_too_large));
        if of.is_within(&key.name) {
            of.units += new.map_or(0, slice_units);
            of.units -= old.map_or(0, slice_units);
        }
        while of.units > NAMESPACE_BACKENDS {
            let first = Key::new(namespace, "");
            let end = match &of.first_beyond {
                Some(name) => Key::new(namespace, name.as_str()),
                // No namespace is between the two.
                None => Key::new(format!("{namespace}\0"), ""),
            };
            let Some((_, last)) = slices.range(first..end).next_back() else { break };
            of.units -= slice_units(last);
            of.first_beyond = Some(last.key.name.clone());
            moved.push(last.clone());
        }
        while let Some(first) = &of.first_beyond {
            let rest = slices.range(Key::new(namespace, first.as_str())..);
            let mut rest =
                rest.map(|(_, slice)| slice).take_while(|it| it.key.namespace == namespace);
            let next = rest.next();
            match next {
                Some(next) if of.units + slice_units(next) <= NAMESPACE_BACKENDS => {
                    of.units += slice_units(next);
                    moved.push(next.clone());
                    of.first_beyond = rest.next().map(|after| after.key.name.clone());
                }
                _ => {
                    of.first_beyond = next.map(|next| next.key.name.clone());
                    break;
                }
            }
        }
        if of.units == 0 && !of.has_beyond() {
            self.of.remove(namespace);
        }
        moved.retain(|slice| slice.key != *key);
        moved
    }
}
