//! Generated values of fields.

use crate::random::SplitMix64;

/// Time of most events.
pub(super) const TIME: &str = "2026-11-23T10:00:00Z";

/// Pseudo-random hex digits, so that lists of objects compress no better than real ones.
pub(super) fn digits(of: u64, count: usize) -> String {
    let mut random = SplitMix64::new(of);
    let words = (0..count.div_ceil(8)).map(|_| format!("{:08x}", random.below(u32::MAX)));
    words.collect::<String>()[..count].to_owned()
}

pub(super) fn uid(number: u64) -> String {
    let digits = digits(number, 32);
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
    parts.join("-")
}

/// Time of an event of an object.
pub(super) fn time(of: u32) -> String {
    format!(
        "2026-11-{:02}T{:02}:{:02}:{:02}Z",
        1 + of % 23,
        of / 7 % 24,
        of / 11 % 60,
        of / 13 % 60
    )
}

/// Address of a pod.
pub(super) fn address(pod: u32) -> String {
    std::net::Ipv4Addr::from_bits(0x0a40_0001 + pod).to_string()
}
