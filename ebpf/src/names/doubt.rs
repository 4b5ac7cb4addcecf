//! Doubts about connections to resolvers: by the pod's port, and about all ports of a pod.
//!
//! A word has a bit for each of 16 neighbouring ports in three epochs ([`DoubtBlock`](crate::layout::DoubtBlock)), so
//! no doubt is lost when an epoch ends, and the words of an idle pod need no maintenance.

use crate::{
    layout::{DOUBT_PORTS, doubt_place},
    names::{store::ATTEMPTS, tables::NameTables},
};

/// Seconds for which a doubt counts: more than any packet of a resolver is delayed on its way. Unanswered ARP or
/// neighbour discovery for the pod's address delays a packet by three seconds.
pub const DOUBTED: u64 = 30;

/// Epoch of doubts: two of them last [`DOUBTED`] seconds, so a doubt of the present epoch or of the two before counts
/// for 1 to 1.5 times [`DOUBTED`] seconds.
#[inline(always)]
fn epoch<T: NameTables>(tables: &T) -> u16 {
    // A refresh is due after one second.
    let second = tables.settings().map_or(0, |settings| settings.refresh_after);
    let length = u64::from(second) * (DOUBTED / 2);
    (tables.jiffies() / length.max(1)) as u16
}

/// A word of a [`DoubtBlock`](crate::layout::DoubtBlock) as of an epoch: with the doubts of the epochs that still count.
#[inline(always)]
const fn advanced(word: u64, epoch: u16) -> u64 {
    const EPOCH: u64 = 0xffff;
    let age = epoch.wrapping_sub(word as u16);
    match age {
        // Another processor has seen the next epoch begin.
        u16::MAX => word,
        0..=2 => (word & !EPOCH) << (DOUBT_PORTS as u32 * age as u32) | epoch as u64,
        _ => epoch as u64,
    }
}

/// Bit of a port in each of the three epochs of a word; of the present one with `at` 1.
#[inline(always)]
const fn bit(asker: u64, at: u64) -> u64 {
    at << (DOUBT_PORTS as u64 + (asker & (DOUBT_PORTS as u64 - 1)))
}

/// Ends the reading of the connection of a pod's port ([`StreamEntry::asker`](crate::layout::StreamEntry::asker)), and lets
/// none begin for [`DOUBTED`] seconds.
#[inline(always)]
pub fn doubt_port<T: NameTables>(tables: &T, asker: u64) {
    let Some(place) = tables.doubts(doubt_place(asker)) else { return };
    // SAFETY: a word of the table.
    let word = unsafe { tables.load(place) };
    // Packets of a connection to a Service find the bit set.
    if word as u16 != epoch(tables) || word & bit(asker, 1) == 0 {
        tables.record_doubt(asker);
    }
}

/// Sets the bit of a pod's port. If other writers change the word each time, all ports of the pod are doubted.
#[inline(always)]
pub fn record_doubt<T: NameTables>(tables: &T, asker: u64) {
    let Some(place) = tables.doubts(doubt_place(asker)) else { return };
    for _ in 0..ATTEMPTS {
        // SAFETY: a word of the table.
        let word = unsafe { tables.load(place) };
        let doubted = advanced(word, epoch(tables)) | bit(asker, 1);
        // SAFETY: likewise.
        if unsafe { tables.swap(place, word, doubted) } == word {
            return;
        }
    }
    tables.doubt_endpoint((asker >> 32) as u32);
}

/// Whether a pod's port is in doubt, or all ports of the pod.
#[inline(always)]
pub fn is_port_doubted<T: NameTables>(tables: &T, asker: u64) -> bool {
    /// A bit for each epoch of a word.
    const EPOCHS: u64 = 1 | 1 << DOUBT_PORTS | 1 << (2 * DOUBT_PORTS);
    let Some((place, settings)) = tables.doubts(doubt_place(asker)).zip(tables.settings()) else {
        return true;
    };
    let Some(all) = tables.doubted_at((asker >> 32) as u32) else { return true };
    // SAFETY: a word of the table.
    let word = unsafe { tables.load(place) };
    // SAFETY: likewise.
    let all_at = unsafe { tables.load(all) };
    let least = DOUBTED * u64::from(settings.refresh_after);
    let age = tables.now().wrapping_sub(all_at as u32);
    advanced(word, epoch(tables)) & bit(asker, EPOCHS) != 0
        || all_at != 0 && u64::from(age) <= least
}
