//! Parsers of arguments that several commands share.

mod who;

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

pub use who::Who;

/// Parses a CIDR or a single address; `None` if the text is neither.
#[must_use]
pub fn block(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

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
