//! The order in which tenants are served.

use std::collections::BTreeMap;

/// Sorts by turns: the first item of each tenant, then the second of each, and so on. Within a turn tenants are in the
/// order of `tenant`; the items of a tenant keep their order. A tenant with many items delays each item of another by
/// at most one of its own.
#[must_use]
pub fn in_turns<T, K: Ord>(items: impl IntoIterator<Item = T>, tenant: impl Fn(&T) -> K) -> Vec<T> {
    let mut queues: BTreeMap<K, Vec<T>> = BTreeMap::new();
    for item in items {
        queues.entry(tenant(&item)).or_default().push(item);
    }
    let mut numbered: Vec<(usize, T)> =
        queues.into_values().flat_map(|queue| queue.into_iter().enumerate()).collect();
    // Stable: within a turn, tenants stay in their order.
    numbered.sort_by_key(|(turn, _)| *turn);
    numbered.into_iter().map(|(_, item)| item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenant_has_its_turn() {
        let items = ["a1", "a2", "c1", "a3", "b1", "c2"];
        assert_eq!(in_turns(items, |it| it.as_bytes()[0]), ["a1", "b1", "c1", "a2", "c2", "a3"]);
        // The turn begins with the tenant after the one served last.
        let after_a = in_turns(items, |it| (it.as_bytes()[0] <= b'a', it.as_bytes()[0]));
        assert_eq!(after_a, ["b1", "c1", "a1", "c2", "a2", "a3"]);
    }
}
