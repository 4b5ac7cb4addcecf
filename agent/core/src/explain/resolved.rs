//! Addresses that pods resolved domain names of policy to.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::model::{DomainName, Key};

/// Maximum number of resolved names in a text.
const NAMED: usize = 5;

/// Time left of each address, by pod and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvedNames(BTreeMap<Key, BTreeMap<DomainName, BTreeMap<IpAddr, Duration>>>);

impl ResolvedNames {
    /// Adds an address that a pod resolved a name of its rules to.
    pub fn insert(&mut self, pod: &Key, name: &DomainName, address: IpAddr, left: Duration) {
        let names = self.0.entry(pod.clone()).or_default();
        names.entry(name.clone()).or_default().insert(address, left);
    }

    /// Whether no pod resolved any name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of addresses, of all pods and names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries().count()
    }

    /// Whether pods resolved the same names to the same addresses, regardless of the time left.
    #[must_use]
    pub fn is_alike(&self, other: &Self) -> bool {
        self.entries().eq(other.entries())
    }

    fn entries(&self) -> impl Iterator<Item = (&Key, &DomainName, &IpAddr)> {
        self.0.iter().flat_map(|(pod, names)| {
            names.iter().flat_map(move |(name, found)| found.keys().map(move |at| (pod, name, at)))
        })
    }

    /// Names that a pod resolved to an address.
    pub fn names(&self, pod: &Key, address: IpAddr) -> impl Iterator<Item = &DomainName> {
        let names = self.0.get(pod).into_iter().flatten();
        names.filter(move |(_, found)| found.contains_key(&address)).map(|(name, _)| name)
    }

    /// Time for which an address belongs to a name, for a pod; `None` if it does not.
    pub(super) fn left(&self, pod: &Key, name: &DomainName, address: IpAddr) -> Option<Duration> {
        self.0.get(pod)?.get(name)?.get(&address).copied()
    }

    /// Text about an address that a pod resolved no name to: the names that it did resolve, those that count longest first.
    pub(super) fn without(&self, pod: &Key, address: IpAddr) -> String {
        let mut names: Vec<(&DomainName, Duration)> =
            self.0.get(pod).map_or_else(Vec::new, |names| {
                let latest = |found: &BTreeMap<IpAddr, Duration>| found.values().copied().max();
                names.iter().filter_map(|(name, found)| Some((name, latest(found)?))).collect()
            });
        names.sort_by_key(|(_, left)| Reverse(*left));
        let others = names.len().saturating_sub(NAMED);
        let mut texts: Vec<String> = names
            .into_iter()
            .take(NAMED)
            .map(|(name, left)| format!("{name} (counts for another {} s)", left.as_secs()))
            .collect();
        if others > 0 {
            texts.push(format!("{others} more"));
        }
        let resolved =
            if texts.is_empty() { "no name of its rules".to_owned() } else { texts.join(", ") };
        format!("no answer that counts leads the pod to {address}; it resolved {resolved}")
    }

    /// Addresses that a pod resolved a name to.
    pub(super) fn addresses(&self, pod: &Key, name: &DomainName) -> impl Iterator<Item = IpAddr> {
        let names = self.0.get(pod).and_then(|names| names.get(name));
        names.into_iter().flat_map(BTreeMap::keys).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_no_difference() {
        let name = |text: &str| DomainName::try_from(text.to_owned()).unwrap();
        let resolved = |pod: &str, of: &str, address: [u8; 4], seconds| {
            let mut resolved = ResolvedNames::default();
            let left = Duration::from_secs(seconds);
            resolved.insert(&Key::new("shop", pod), &name(of), IpAddr::from(address), left);
            resolved
        };
        let one = resolved("web", "a.example.com", [192, 0, 2, 1], 60);
        assert!(one.is_alike(&resolved("web", "a.example.com", [192, 0, 2, 1], 50)));
        for other in [
            resolved("db", "a.example.com", [192, 0, 2, 1], 60),
            resolved("web", "b.example.com", [192, 0, 2, 1], 60),
            resolved("web", "a.example.com", [192, 0, 2, 2], 60),
            ResolvedNames::default(),
        ] {
            assert!(!one.is_alike(&other) && !other.is_alike(&one), "{other:?}");
        }
        assert_eq!((one.len(), ResolvedNames::default().len()), (1, 0));
    }
}
