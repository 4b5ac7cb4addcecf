//! Parsers of arguments that several commands share.

mod who;

use std::time::Duration;

pub use who::Who;

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
