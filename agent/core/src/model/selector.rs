//! Label matching: LabelSelector of `meta/v1`.

use serde::{Deserialize, Deserializer, Serialize};

use crate::model::object::Labels;

/// A LabelSelector: matches if all requirements hold. The empty selector matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Selector {
    /// `matchLabels` (as [`Requirement::In`] with one value) and `matchExpressions`; sorted, without
    /// duplicates.
    pub requirements: Vec<Requirement>,
}

/// One requirement of a LabelSelector.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Requirement {
    /// `In`: the key is present with one of the values (sorted, without duplicates).
    In(String, #[serde(deserialize_with = "sorted")] Vec<String>),
    /// `NotIn`: the key is absent, or present with none of the values (sorted, without duplicates).
    NotIn(String, #[serde(deserialize_with = "sorted")] Vec<String>),
    /// `Exists`
    Exists(String),
    /// `DoesNotExist`
    DoesNotExist(String),
}

impl Selector {
    /// Whether all requirements hold; the empty selector matches everything.
    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(labels))
    }
}

impl Requirement {
    /// Label key.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::In(key, _)
            | Self::NotIn(key, _)
            | Self::Exists(key)
            | Self::DoesNotExist(key) => key,
        }
    }

    /// Whether the requirement holds. `NotIn` and `DoesNotExist` hold for an absent key.
    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        match self {
            Self::In(key, values) => {
                labels.get(key).is_some_and(|value| contains_sorted(values, value))
            }
            Self::NotIn(key, values) => {
                labels.get(key).is_none_or(|value| !contains_sorted(values, value))
            }
            Self::Exists(key) => labels.contains_key(key),
            Self::DoesNotExist(key) => !labels.contains_key(key),
        }
    }
}

/// Reads values in any order.
fn sorted<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let mut values: Vec<String> = Vec::deserialize(deserializer)?;
    values.sort();
    values.dedup();
    Ok(values)
}

/// Whether sorted values contain a value. A tenant may write hundreds of thousands of values in each of many policies.
fn contains_sorted(values: &[String], value: &str) -> bool {
    debug_assert!(values.is_sorted(), "values of a requirement are sorted");
    values.binary_search_by(|known| known.as_str().cmp(value)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn values(list: &[&str]) -> Vec<String> {
        list.iter().map(|v| (*v).to_owned()).collect()
    }

    #[test]
    fn operators() {
        let web = labels(&[("app", "web")]);
        let none = labels(&[]);
        let app = || "app".to_owned();
        let cases = [
            (Requirement::In(app(), values(&["db", "web"])), true, false),
            (Requirement::In(app(), values(&["db"])), false, false),
            (Requirement::In(app(), vec![]), false, false),
            (Requirement::NotIn(app(), values(&["web"])), false, true),
            (Requirement::NotIn(app(), values(&["db"])), true, true),
            (Requirement::Exists(app()), true, false),
            (Requirement::DoesNotExist(app()), false, true),
        ];
        for (requirement, on_web, on_none) in cases {
            assert_eq!(requirement.matches(&web), on_web, "{requirement:?}");
            assert_eq!(requirement.matches(&none), on_none, "{requirement:?} without the key");
        }
    }

    #[test]
    fn values_are_read_in_any_order() {
        let read: Requirement =
            serde_json::from_str(r#"{"NotIn": ["app", ["web", "db", "web"]]}"#).unwrap();
        assert_eq!(read, Requirement::NotIn("app".into(), values(&["db", "web"])));
        assert!(!read.matches(&labels(&[("app", "db")])) && read.matches(&labels(&[])));
    }

    #[test]
    fn empty_selector_matches_everything_and_requirements_are_anded() {
        assert!(Selector::default().matches(&labels(&[])));
        let both = Selector {
            requirements: vec![
                Requirement::Exists("app".into()),
                Requirement::NotIn("app".into(), values(&["db"])),
            ],
        };
        assert!(both.matches(&labels(&[("app", "web")])));
        assert!(!both.matches(&labels(&[("app", "db")])));
        assert!(!both.matches(&labels(&[])));
    }
}
