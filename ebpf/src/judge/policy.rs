//! Policy of one endpoint: the rows of both directions, read for the class of the remote address.

use core::marker::PhantomData;

use crate::{
    direction::PodDirection,
    endpoint::Rows,
    layout::{
        CLASS_TRANSLATED, CT_EGRESS, CT_INGRESS, CT_NODE, ClassId, PORTS_EVERY, ROW_NOT_ISOLATED,
    },
    packet::{family::Family, parse::Transport, tuple::FlowTuple},
    reason::Reason,
    tables::{
        Tables,
        policy::{row_allows, row_word},
    },
};

/// Policy of one endpoint at one moment, for packets in direction `D`.
#[derive(Debug)]
pub struct EndpointPolicy<'a, D, T> {
    tables: &'a T,
    rows: Rows,
    direction: PhantomData<D>,
}

impl<'a, D: PodDirection, T: Tables> EndpointPolicy<'a, D, T> {
    /// Creates the policy from an endpoint's rows, which the caller has read once.
    #[inline(always)]
    pub const fn new(tables: &'a T, rows: Rows) -> Self {
        Self { tables, rows, direction: PhantomData }
    }

    /// The rows of both directions.
    #[must_use]
    #[inline(always)]
    pub const fn rows(&self) -> Rows {
        self.rows
    }

    /// Whether this direction is isolated.
    #[must_use]
    #[inline(always)]
    pub const fn is_isolated(&self) -> bool {
        self.rows.in_direction::<D>() != ROW_NOT_ISOLATED
    }

    /// Whether the row of this direction, which is isolated, allows a packet from or to a class.
    #[must_use]
    #[inline(always)]
    pub fn allows(&self, class: ClassId, transport: &Transport) -> bool {
        let Transport { protocol, destination: port, .. } = *transport;
        let row = self.rows.in_direction::<D>();
        if T::ROWS_BY_CALL {
            return self.tables.row_allows(row, class, protocol, port);
        }
        row_allows(self.tables, row, class, protocol, port)
    }

    /// Whether the row of this direction, which is isolated, allows every protocol and port of a class.
    #[must_use]
    #[inline(always)]
    pub fn allows_every_port(&self, class: ClassId) -> bool {
        row_word(self.tables, self.rows.in_direction::<D>(), class) == PORTS_EVERY
    }

    /// Whether policy now allows the direction in which a flow began, by the flags of its entry (`CT_*`).
    #[must_use]
    #[inline(always)]
    pub fn still_allows<F: Family>(&self, flags: u16, class: ClassId, flow: &FlowTuple<F>) -> bool {
        let allows = |row: u32, port: u16| {
            row == ROW_NOT_ISOLATED || self.tables.row_allows(row, class, flow.protocol, port)
        };
        flags & CT_NODE != 0
            || (flags & CT_INGRESS != 0 && allows(self.rows.ingress(), flow.local_port))
            || (flags & CT_EGRESS != 0 && allows(self.rows.egress(), flow.remote_port))
    }

    /// Reason of a passing packet: a pod's packet that may be translated is judged again after the translation.
    #[must_use]
    #[inline(always)]
    pub const fn passing_reason(&self, reason: Reason, class: ClassId) -> Reason {
        if D::EGRESS && class & CLASS_TRANSLATED != 0 { Reason::Translated } else { reason }
    }

    /// Reason of a passing reply: at an address that may be translated, the node's conntrack has to confirm it, unless
    /// the pod may send to any address.
    #[must_use]
    #[inline(always)]
    pub fn reply_reason(&self, reason: Reason, class: ClassId) -> Reason {
        let translated = class & CLASS_TRANSLATED != 0 && self.rows.isolates_egress();
        if translated && self.tables.knows_courses() { Reason::TranslatedReply } else { reason }
    }

    /// Reason of a passing packet that is judged again at any exit.
    #[must_use]
    #[inline(always)]
    pub const fn rejudged_reason(&self, reason: Reason) -> Reason {
        if D::EGRESS && self.is_isolated() { Reason::Translated } else { reason }
    }

    /// Verdict on a packet that cannot be judged: it drops if its direction is isolated.
    ///
    /// # Errors
    /// The reason, as a drop or [`Reason::Deferred`].
    #[inline(always)]
    pub const fn unparsed(&self, reason: Reason) -> Result<Reason, Reason> {
        if !self.is_isolated() && reason as u8 != Reason::Deferred as u8 {
            return Ok(Reason::NotIsolated);
        }
        Err(reason)
    }
}
