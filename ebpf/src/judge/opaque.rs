//! Values hidden from the kernel's verifier.

use crate::{
    endpoint::Rows,
    flow::memory::Memory,
    layout::ClassId,
    packet::{family::Family, parse::Transport, tuple::FlowTuple},
    reason::Reason,
};

/// Returns values unchanged, but unknown to the verifier: otherwise it follows all later code once for each path that
/// led to a value, see [`Memory::opaque`].
#[derive(Debug)]
pub(crate) struct Opaque<'a, M> {
    memory: &'a M,
    /// Number that is unknown to the verifier.
    noise: u64,
}

impl<'a, M: Memory> Opaque<'a, M> {
    #[inline(always)]
    pub(crate) const fn new(memory: &'a M, noise: u64) -> Self {
        Self { memory, noise }
    }

    #[inline(always)]
    pub(crate) fn number(&self, value: u16) -> u16 {
        self.memory.opaque(usize::from(value), self.noise) as u16
    }

    /// Hides a class computed from two parts behind a mask: Linux 6.1 loses its bounds.
    #[inline(always)]
    pub(crate) fn class(&self, class: ClassId) -> ClassId {
        self.memory.opaque(class as usize, self.noise) as ClassId
    }

    /// Hides a reason. A reason that the verifier knows decides later comparisons, so it would follow all later code
    /// for each one.
    #[inline(always)]
    pub(crate) fn reason(&self, reason: Reason) -> Reason {
        let number = self.number(reason as u16) as u8;
        // SAFETY: the number of this reason.
        unsafe { core::mem::transmute::<u8, Reason>(number) }
    }

    /// Hides the rows, of which the verifier knows whether they isolate.
    #[inline(always)]
    pub(crate) fn rows(&self, rows: Rows) -> Rows {
        Rows(self.memory.opaque(rows.0 as usize, self.noise) as u64)
    }

    #[inline(always)]
    pub(crate) fn flag(&self, value: bool) -> bool {
        self.number(value.into()) & 1 != 0
    }

    /// Hides the fields of a transport header. `plain`: the ports of this packet are read in one place only, and need
    /// no hiding.
    #[inline(always)]
    pub(crate) fn transport(&self, transport: Transport, plain: bool) -> Transport {
        let port = |port: u16| if plain { port } else { self.number(port) };
        Transport {
            protocol: self.number(transport.protocol.into()) as u8,
            flags: self.number(transport.flags.into()) as u8,
            source: port(transport.source),
            destination: port(transport.destination),
        }
    }

    #[inline(always)]
    pub(crate) fn flow<F: Family>(&self, flow: &FlowTuple<F>) -> FlowTuple<F> {
        FlowTuple {
            remote: flow.remote,
            protocol: self.number(flow.protocol.into()) as u8,
            local_port: self.number(flow.local_port),
            remote_port: self.number(flow.remote_port),
        }
    }
}
