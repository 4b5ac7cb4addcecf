//! Namespaces and their labels.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::labels::NAMESPACE_NAME;
use crate::model::{Denial, Key, Labels, Namespace};

/// Every namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Namespaces(BTreeMap<String, Namespace>);

impl Namespaces {
    /// Namespaces by name.
    pub(super) fn by_name(&self) -> &BTreeMap<String, Namespace> {
        &self.0
    }

    /// Labels of a namespace. Pods and namespaces arrive on different watches, so a pod can be known before its
    /// namespace; until then the namespace has only the name label, which every namespace has. A selector for any other
    /// label does not match, which grants nothing.
    pub(super) fn labels(&self, name: &str) -> Cow<'_, Labels> {
        self.0.get(name).map_or_else(
            || Cow::Owned(Labels::from_iter([(NAMESPACE_NAME.to_owned(), name.to_owned())])),
            |namespace| Cow::Borrowed(&namespace.labels),
        )
    }

    /// Treatment of denied packets by the annotation of a namespace.
    pub(super) fn denial(&self, name: &str) -> Option<Denial> {
        self.0.get(name)?.denial
    }

    /// Sets or removes (`None`) the namespace of a name; returns whether its labels changed.
    pub(super) fn set(&mut self, name: &str, new: Option<Namespace>) -> bool {
        let before = self.labels(name).into_owned();
        match new {
            Some(new) => self.0.insert(name.to_owned(), new),
            None => self.0.remove(name),
        };
        *self.labels(name) != before
    }
}

/// Objects of a namespace, sorted by name.
pub(super) fn in_namespace<'a, T>(
    map: &'a BTreeMap<Key, T>,
    namespace: &str,
) -> impl Iterator<Item = &'a T> + use<'a, T> {
    let first = Key::new(namespace, "");
    let namespace = first.namespace.clone();
    map.range(first..)
        .take_while(move |(key, _)| key.namespace == namespace)
        .map(|(_, object)| object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_namespace_has_its_name_as_label() {
        let mut namespaces = Namespaces::default();
        let named = Labels::from_iter([(NAMESPACE_NAME.to_owned(), "shop".to_owned())]);
        assert_eq!(*namespaces.labels("shop"), named);
        let known = |labels| Some(Namespace { name: "shop".to_owned(), labels, denial: None });
        assert!(!namespaces.set("shop", known(named.clone())), "the labels are the same");
        let mut more = named;
        more.insert("team".to_owned(), "a".to_owned());
        assert!(namespaces.set("shop", known(more)));
        assert!(namespaces.set("shop", None));
    }

    #[test]
    fn a_range_holds_one_namespace_alone() {
        let keys = [("shop", "a"), ("shop", "b"), ("shop-2", "a"), ("sho", "z")];
        let map: BTreeMap<Key, &str> =
            keys.into_iter().map(|(namespace, name)| (Key::new(namespace, name), name)).collect();
        assert_eq!(in_namespace(&map, "shop").collect::<Vec<_>>(), [&"a", &"b"]);
    }
}
