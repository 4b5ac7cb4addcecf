//! Import of entries from another layout's table, or from the kernel's conntrack.

use crate::{
    flow::{
        control::{Control, Timeouts},
        key::FlowTableKey,
        table::{ATTEMPTS, BucketsFull, Flow},
    },
    layout::{CT_EGRESS, CT_INGRESS, CT_NODE, CT_SYN, CT_VALID, Settings},
    packet::icmp,
};

impl<K: FlowTableKey> Flow<K> {
    /// Gives the flow's entry at least these flags and a stamp no older than `seen`: adds the entry, or completes the
    /// existing one. A flow that is expired at `now` is skipped.
    ///
    /// `judged`: the flags are from a table by which programs of netpold judged, so their initiator replaces the existing
    /// entry's. Programs without these flows take the sender of the first packet for the initiator, also if the packet is
    /// an answer; then the flow would outlive the policy that denies its real initiator.
    ///
    /// # Errors
    /// [`BucketsFull`] if every way is protected, or other writers were faster.
    ///
    /// # Safety
    /// As [`Flow::find`].
    #[expect(
        clippy::multiple_unsafe_ops_per_block,
        reason = "a way's words are read and written under one promise"
    )]
    pub unsafe fn adopt<M: Timeouts>(
        &self,
        memory: &M,
        flags: u16,
        settings: &Settings,
        now: u32,
        seen: u32,
        judged: bool,
    ) -> Result<(), BucketsFull> {
        let protocol = self.key.protocol();
        let new = Control::new(seen, 0, flags | CT_VALID);
        if new.is_expired(memory, protocol, settings, now) {
            return Ok(());
        }
        for _ in 0..ATTEMPTS {
            // SAFETY: as the caller promises.
            unsafe {
                let Some(hit) = self.find(memory) else {
                    let (way, old, _) = self.victim(memory, settings, now).ok_or(BucketsFull)?;
                    let claimed = self.claim(memory, way, old, flags, seen);
                    return if claimed { Ok(()) } else { Err(BucketsFull) };
                };
                let old = hit.control;
                let whole = if old.is_expired(memory, protocol, settings, now) {
                    flags
                } else {
                    merged(old.flags(), flags, protocol, judged)
                };
                let newer = if old.age(now) < new.age(now) { old.last_seen() } else { seen };
                // Invalidates the verdict that was cached for the former initiator.
                let turned = u16::from((whole ^ old.flags()) & INITIATOR != 0);
                let incarnation = old.incarnation().wrapping_add(turned);
                let whole = Control::new(newer, incarnation, whole | CT_VALID);
                if whole == old || memory.swap(hit.way, old.0, whole.0) == old.0 {
                    return Ok(());
                }
            }
        }
        Err(BucketsFull)
    }
}

/// Flags that show the initiator of a flow.
const INITIATOR: u16 = CT_INGRESS | CT_EGRESS | CT_NODE;

/// Flags of a live entry after the import of its flow, see [`Flow::adopt`].
const fn merged(own: u16, flags: u16, protocol: u8, judged: bool) -> u16 {
    let turned = (own ^ flags) & (CT_INGRESS | CT_EGRESS) != 0;
    // Only requests begin ICMP flows, and both sides may send requests with one identifier.
    if !judged || !turned || icmp::is_icmp(protocol) {
        return own | flags;
    }
    // A SYN has opened another connection between the same ports.
    if own & CT_SYN != 0 { own } else { own & !INITIATOR | flags }
}
