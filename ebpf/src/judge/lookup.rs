//! Lookup of a flow's entry in two steps: the fast path searches the first of its two buckets, the slow path continues
//! from there.

use crate::{
    flow::{
        control::Control,
        key,
        table::{self, Hit},
    },
    judge::opaque::Opaque,
    layout::Settings,
    packet::tuple::FlowTuple,
    reason::Reason,
    tables::{TableFamily, Tables},
};

/// Conntrack key of an endpoint's flow.
#[inline(always)]
pub(crate) fn key<F: TableFamily>(endpoint: u32, flow: &FlowTuple<F>) -> F::Key {
    let FlowTuple { remote, protocol, local_port, remote_port } = *flow;
    F::key(endpoint, remote, local_port, remote_port, protocol)
}

/// Result of the fast path's search in the first of a flow's two buckets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LookupHint {
    /// Not 0 if the fast path has searched. Hidden from the verifier, which otherwise checks all later code twice.
    searched: u16,
    /// Hash of the flow's key, if searched.
    hash: u64,
    /// Result of [`table::search`], if searched.
    found: (usize, Control),
}

impl LookupHint {
    /// Hint of a fast path that did not search.
    #[inline(always)]
    pub(crate) fn none<T: Tables>(opaque: &Opaque<'_, T>) -> Self {
        Self { searched: opaque.number(0), hash: 0, found: (0, Control(0)) }
    }

    /// Searches the first bucket; `None` if the table has none. Without an entry the control word is not valid.
    #[inline(always)]
    #[expect(
        clippy::multiple_unsafe_ops_per_block,
        reason = "a way's words are read and written under one promise"
    )]
    pub(crate) fn search_first_bucket<F: TableFamily, T: Tables>(
        tables: &T,
        settings: &Settings,
        key: &F::Key,
        opaque: &Opaque<'_, T>,
    ) -> Option<(Self, Hit)> {
        let hash = key::hash(settings, key);
        let bucket = F::bucket(tables, key::first(hash, F::mask(settings)))?;
        // SAFETY: a whole bucket of this family's table.
        unsafe {
            let found = table::search(tables, key, hash, bucket);
            let hint = Self { searched: opaque.number(1), hash, found };
            Some((hint, Hit::at::<F::Key>(bucket, found)))
        }
    }

    /// Whether the fast path has searched, and the flow has no entry.
    #[inline(always)]
    pub(crate) const fn is_absent(&self) -> bool {
        self.searched != 0 && self.found.1.is_unused()
    }

    /// Hash of the flow's key.
    #[inline(always)]
    pub(crate) fn hash<F: TableFamily>(&self, settings: &Settings, key: &F::Key) -> u64 {
        match self.searched {
            0 => key::hash(settings, key),
            _ => self.hash,
        }
    }

    /// The flow's entry, expired or not; its control word is not valid if there is none. The second bucket is read
    /// only if the first has no entry of the flow, and was full once.
    ///
    /// # Errors
    /// [`Reason::NoTable`].
    #[inline(always)]
    #[expect(
        clippy::multiple_unsafe_ops_per_block,
        reason = "a way's words are read and written under one promise"
    )]
    pub(crate) fn find<F: TableFamily, T: Tables>(
        &self,
        tables: &T,
        settings: &Settings,
        key: &F::Key,
        hash: u64,
    ) -> Result<Hit, Reason> {
        let index = key::first(hash, F::mask(settings));
        let bucket = F::bucket(tables, index).ok_or(Reason::NoTable)?;
        // SAFETY: a whole bucket of this family's table.
        let hit = unsafe {
            let found = match self.searched {
                0 => table::search(tables, key, hash, bucket),
                _ => self.found,
            };
            Hit::at::<F::Key>(bucket, found)
        };
        if hit.control.is_valid() || hit.control.is_unused() {
            return Ok(hit);
        }
        let index = key::second(hash, F::mask(settings));
        let bucket = F::bucket(tables, index).ok_or(Reason::NoTable)?;
        // SAFETY: a whole bucket of this family's table.
        Ok(unsafe { Hit::at::<F::Key>(bucket, table::search(tables, key, hash, bucket)) })
    }
}
