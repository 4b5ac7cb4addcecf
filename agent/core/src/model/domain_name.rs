//! Domain names of a ClusterNetworkPolicy's peers.

use serde::{Deserialize, Serialize};

/// Longest label of a name, in bytes (RFC 1035 section 2.3.4).
const LABEL: usize = 63;
/// Longest name without the final dot, in bytes (RFC 1035 section 2.3.4).
const NAME: usize = 253;

/// One item of `domainNames`: a name, or `*.` and a name for all names below it, of one or more further labels.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DomainName {
    /// Lower case, without the final dot and without `*.`.
    name: String,
    /// Whether the item matches the names below, not the name itself.
    wildcard: bool,
}

impl DomainName {
    /// Whether the item matches the names below [`DomainName::canonical`], not the name itself.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        self.wildcard
    }

    /// Number of labels, without `*`.
    #[must_use]
    pub fn labels(&self) -> usize {
        self.name.split('.').count()
    }

    /// Whether this item matches every name that `other` matches.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let is_below = || {
            let before = other.name.strip_suffix(self.name.as_str());
            before.is_some_and(|before| before.ends_with('.'))
        };
        match (self.wildcard, other.wildcard) {
            (false, wildcard) => !wildcard && self.name == other.name,
            (true, false) => is_below(),
            (true, true) => self.name == other.name || is_below(),
        }
    }

    /// The name as in a DNS message, without the root's empty label: each label preceded by its length.
    #[must_use]
    pub fn canonical(&self) -> Vec<u8> {
        let label = |label: &str| {
            let length = label.len() as u8;
            std::iter::once(length).chain(label.bytes()).collect::<Vec<_>>()
        };
        self.name.split('.').flat_map(label).collect()
    }
}

impl std::fmt::Display for DomainName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", if self.wildcard { "*." } else { "" }, self.name)
    }
}

impl From<DomainName> for String {
    fn from(name: DomainName) -> Self {
        name.to_string()
    }
}

/// Reason why a text is not a [`DomainName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "is not a domain name such as api.example.com or *.example.com, of at least two labels of letters, digits, - and _"
)]
pub struct NotDomainName;

/// Parses a name by the pattern of the API's `DomainName`.
impl TryFrom<String> for DomainName {
    type Error = NotDomainName;

    fn try_from(text: String) -> Result<Self, NotDomainName> {
        let rest = text.strip_prefix("*.");
        let name = rest.unwrap_or(&text);
        let name = name.strip_suffix('.').unwrap_or(name);
        let edge = |c: Option<u8>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        let inner = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
        let valid = |label: &str| {
            label.len() <= LABEL
                && edge(label.bytes().next())
                && edge(label.bytes().next_back())
                && label.bytes().all(inner)
        };
        if name.len() > NAME || !name.contains('.') || !name.split('.').all(valid) {
            return Err(NotDomainName);
        }
        Ok(Self { name: name.to_ascii_lowercase(), wildcard: rest.is_some() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<DomainName, NotDomainName> {
        DomainName::try_from(text.to_owned())
    }

    #[test]
    fn names_match_the_pattern_of_the_api() {
        for (text, name) in [
            ("kubernetes.io", "kubernetes.io"),
            ("*.Kubernetes.IO.", "*.kubernetes.io"),
            ("a_b.x-1.example", "a_b.x-1.example"),
            (&format!("{}.io", "a".repeat(63)), &format!("{}.io", "a".repeat(63))),
        ] {
            assert_eq!(read(text).unwrap().to_string(), name, "{text}");
        }
        let long = format!("{}.io", "a".repeat(64));
        let longer = vec!["abcdefg"; 32].join(".");
        for text in [
            "", "io", "*", "*.io", "a.*.io", "**.a.io", "*a.io", "a..io", "-a.io", "a-.io",
            "a.io..", "a b.io",
        ] {
            assert_eq!(read(text), Err(NotDomainName), "{text}");
        }
        assert!(read(&long).is_err() && read(&longer).is_err(), "{}", longer.len());
    }

    #[test]
    fn a_wildcard_covers_one_or_more_labels() {
        for (one, covered, others) in [
            ("api.example.com", &["API.example.com."][..], &["example.com", "*.example.com"][..]),
            (
                "*.example.com",
                &["a.example.com", "b.a.example.com", "*.example.com", "*.a.example.com"],
                &["example.com", "badexample.com", "*.badexample.com", "*.com.example"],
            ),
        ] {
            let one = read(one).unwrap();
            for other in covered {
                assert!(one.covers(&read(other).unwrap()), "{one} {other}");
            }
            for other in others {
                assert!(!one.covers(&read(other).unwrap()), "{one} {other}");
            }
        }
        assert_eq!(read("*.example.com").unwrap().labels(), 2);
    }

    #[test]
    fn a_canonical_name_has_the_wire_format() {
        assert_eq!(read("*.Example.com").unwrap().canonical(), b"\x07example\x03com");
    }
}
