//! Interned strings that many objects share.

use hashbrown::HashSet;

use crate::model::SharedStr;

/// Strings shared by pods.
#[derive(Clone, Debug, Default)]
pub(super) struct Strings {
    known: HashSet<SharedStr>,
    /// Size at which unused strings are dropped.
    many: usize,
}

/// Minimum number of strings to keep before unused ones are dropped.
const FEW: usize = 1024;

impl Strings {
    /// Replaces a string with the known one of equal text.
    pub(super) fn share(&mut self, text: &mut SharedStr) {
        if let Some(known) = self.known.get(&**text) {
            *text = known.clone();
            return;
        }
        if self.known.len() >= self.many {
            self.known.retain(|known| !known.is_alone());
            self.many = FEW.max(self.known.len() * 2);
        }
        self.known.insert(text.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_strings_are_one_and_forgotten_with_their_last_owner() {
        let mut strings = Strings::default();
        let shared = |strings: &mut Strings, text: &str| {
            let mut text = SharedStr::from(text);
            strings.share(&mut text);
            text
        };
        let kept = shared(&mut strings, "node");
        assert!(std::ptr::eq(kept.as_str(), shared(&mut strings, "node").as_str()));
        for number in 0..10 * FEW {
            shared(&mut strings, &number.to_string());
            assert!(strings.known.len() <= FEW);
        }
        assert!(std::ptr::eq(kept.as_str(), shared(&mut strings, "node").as_str()));
    }
}
