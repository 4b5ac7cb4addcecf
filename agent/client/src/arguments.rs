//! Parsers of arguments that several commands share.

mod party;

use std::time::Duration;

use anyhow::{Result, bail};

pub use party::PartyArg;

/// Parses a duration with its unit.
///
/// # Errors
/// The text has no number, no known unit, or too large a number.
pub fn time(text: &str) -> Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];
    let seconds = units.into_iter().find_map(|(unit, seconds)| {
        text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(seconds)
    });
    let seconds = seconds.map(Duration::from_secs);
    seconds.ok_or_else(|| "give a number and a unit, as in 90d, 12h, 30m or 60s".to_owned())
}

/// Checks that the name is a DNS label (RFC 1123): it becomes part of a URL path, and of manifests.
///
/// # Errors
/// The name is no DNS label.
pub fn check_namespace(name: &str) -> Result<()> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_label = (1..=63).contains(&name.len()) && name.chars().all(inner);
    if !is_label || name.starts_with('-') || name.ends_with('-') {
        bail!("--namespace {name:?} cannot be a namespace's name");
    }
    Ok(())
}
