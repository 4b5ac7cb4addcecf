//! Patterns of names, and blocks of addresses in text.

use std::net::IpAddr;

use ipnet::IpNet;

/// Returns whether a name matches a pattern, in which `*` stands for any characters.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|tail| {
            tail.char_indices()
                .map(|(at, _)| at)
                .chain([tail.len()])
                .any(|at| matches(rest, &tail[at..]))
        }),
    }
}

/// Parses a CIDR or a single address; `None` if the text is neither.
#[must_use]
pub fn block(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns() {
        for (pattern, name) in [("eth0", "eth0"), ("eth*", "eth0"), ("*", "x"), ("e*0*", "eth0")] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("eth", "eth0"), ("eth*1", "eth0"), ("", "eth0"), ("*a", "eth0")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
