//! Fragments: the first is judged on its ports and leaves them to those that follow.

use crate::{
    direction::Direction,
    judge::evaluator::PacketEvaluator,
    layout::{
        ClassId, FragmentKey, FragmentPorts, PORTS_EVERY, ROW_NOT_ISOLATED, TIMEOUT_FRAGMENT,
    },
    packet::{family::Family, icmp, parse::Transport, parsed::Packet, protocol::TCP_ACK},
    reason::Reason,
    tables::{Tables, policy::row_word},
};

impl<D: Direction, T: Tables> PacketEvaluator<'_, D, T> {
    #[inline(always)]
    fn fragment_key<F: Family>(&self, packet: &Packet<'_, F>) -> FragmentKey {
        FragmentKey {
            endpoint: self.endpoint_id(),
            direction: u32::from(D::EGRESS) + F::FRAGMENT_OFFSET,
            remote: F::octets(packet.remote::<D>()),
            local: F::octets(packet.local::<D>()),
            ident: packet.network.fragment.ident,
            protocol: u32::from(packet.network.fragment.next),
        }
    }

    /// The transport header of a later fragment, by its first. Where no port matters the first
    /// need not have been seen.
    ///
    /// # Errors
    /// A verdict: passes where every port is allowed, drops if the first was not passed before.
    #[inline(always)]
    pub(crate) fn transport_of_first<F: Family>(
        &self,
        packet: &Packet<'_, F>,
        class: ClassId,
    ) -> Result<Transport, Reason> {
        let row = self.row();
        if row == ROW_NOT_ISOLATED {
            return Err(Self::passing(Reason::NotIsolated, class));
        }
        if self.is_from_node(&packet.network.fragment) {
            return Err(Reason::Node);
        }
        if row_word(self.tables, row, class) == PORTS_EVERY {
            return Err(Self::passing(Reason::Allowed, class));
        }
        if self.is_flooded(packet) {
            return Err(Reason::Flooded);
        }
        let settings = self.tables.settings().ok_or(Reason::NoTable)?;
        let ports =
            self.tables.fragment(&self.fragment_key(packet)).ok_or(Reason::FragmentWithoutFirst)?;
        if self.tables.now().wrapping_sub(ports.seen) >= settings.timeouts[TIMEOUT_FRAGMENT] {
            return Err(Reason::FragmentWithoutFirst);
        }
        let (source, destination) = if D::EGRESS {
            (ports.local_port, ports.remote_port)
        } else {
            (ports.remote_port, ports.local_port)
        };
        // Never an opening packet: that was the first's to say.
        let protocol = ports.protocol;
        let transport = Transport { protocol, flags: TCP_ACK, source, destination };
        // An error's quoted packet is in the first fragment, which was judged by it.
        if icmp::is_error(&transport) { Err(Reason::Related) } else { Ok(transport) }
    }

    /// Leaves the ports of a first fragment that passed.
    #[inline(always)]
    pub(crate) fn remember_first<F: Family>(&self, packet: &Packet<'_, F>) {
        let transport = &packet.transport;
        let (local_port, remote_port) = if D::EGRESS {
            (transport.source, transport.destination)
        } else {
            (transport.destination, transport.source)
        };
        let (seen, protocol) = (self.tables.now(), transport.protocol);
        let ports = FragmentPorts { local_port, remote_port, seen, protocol, reserved: [0; 3] };
        self.tables.remember_fragment(&self.fragment_key(packet), &ports);
    }
}
