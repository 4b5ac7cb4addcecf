//! Sender or receiver of traffic, as typed on the command line.

use std::str::FromStr;

use netpold_core::model::Key;
use netpold_core::probe::{Party, ProbeError};

/// Longest name of a pod, in bytes.
const NAME_MAX: usize = 253;

/// A sender or receiver: a [`Party`], or a pod's name without its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartyArg {
    /// A complete party.
    Known(Party),
    /// Name of a pod, without its namespace.
    Pod(String),
}

impl PartyArg {
    /// Adds `namespace` to a name without one.
    #[must_use]
    pub fn in_namespace(self, namespace: &str) -> Party {
        match self {
            Self::Known(party) => party,
            Self::Pod(name) => Party::Pod(Key::new(namespace, name)),
        }
    }

    /// Returns whether the namespace is missing.
    #[must_use]
    pub const fn lacks_namespace(&self) -> bool {
        matches!(self, Self::Pod(_))
    }
}

impl FromStr for PartyArg {
    type Err = ProbeError;

    fn from_str(text: &str) -> Result<Self, ProbeError> {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
        match text.parse() {
            Ok(party) => Ok(Self::Known(party)),
            Err(_) if !text.is_empty() && text.len() <= NAME_MAX && text.chars().all(inner) => {
                Ok(Self::Pod(text.to_owned()))
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_alone_is_a_pods() {
        let read =
            |text: &str| text.parse::<PartyArg>().map(|who| who.in_namespace("x").to_string());
        for (text, party) in [
            ("web-0.a", "x/web-0.a"),
            ("y/web", "y/web"),
            ("svc/y/s", "svc/y/s"),
            ("10.0.0.1", "10.0.0.1"),
            ("fd00::1", "fd00::1"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(party));
        }
        for text in ["", "Web", "a b", "a/", "a/b/c", "web\u{1b}", &"a".repeat(254)] {
            assert!(read(text).is_err(), "{text:?}");
        }
    }
}
