//! Import of entries from another layout's table, or from the kernel's conntrack.

use crate::{
    flow::{
        control::{Control, Timeouts},
        key::FlowTableKey,
        table::{Flow, Full},
    },
    layout::{CT_VALID, Settings},
};

impl<K: FlowTableKey> Flow<K> {
    /// Gives the flow's entry at least these flags and a stamp no older than `seen`: adds the entry, or completes the
    /// existing one. A flow that is expired at `now` is skipped.
    ///
    /// # Errors
    /// [`Full`] if every way is protected, or another writer was faster.
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
    ) -> Result<(), Full> {
        let protocol = self.key.protocol();
        let new = Control::new(seen, 0, flags | CT_VALID);
        if new.is_expired(memory, protocol, settings, now) {
            return Ok(());
        }
        // SAFETY: as the caller promises.
        unsafe {
            let Some(hit) = self.find(memory) else {
                let (way, old, _) = self.victim(memory, settings, now).ok_or(Full)?;
                let claimed = self.claim(memory, way, old, flags, seen);
                return if claimed { Ok(()) } else { Err(Full) };
            };
            let old = hit.control;
            let expired = old.is_expired(memory, protocol, settings, now);
            let flags = if expired { flags } else { flags | old.flags() };
            let newer = if old.age(now) < new.age(now) { old.seen() } else { seen };
            let whole = Control::new(newer, old.incarnation(), flags | CT_VALID);
            let swapped = whole == old || memory.swap(hit.way, old.0, whole.0) == old.0;
            if swapped { Ok(()) } else { Err(Full) }
        }
    }
}
