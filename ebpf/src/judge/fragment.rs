//! Fragments: the first is judged by its ports and records them for the later ones.

use crate::{
    direction::PodDirection,
    judge::context::EndpointContext,
    layout::{ClassId, FragmentKey, FragmentPorts, TIMEOUT_FRAGMENT},
    packet::{
        family::Family,
        icmp,
        parse::{Fragment, Transport},
        parsed::Packet,
        protocol::TCP_ACK,
    },
    reason::Reason,
    tables::Tables,
};

/// Key of the record that the first fragment of a datagram leaves.
#[derive(Clone, Copy, Debug)]
pub struct DatagramKey(FragmentKey);

impl DatagramKey {
    /// Key for any fragment of an endpoint's datagram. `direction`: [`FragmentKey::direction`] without the family.
    #[must_use]
    #[inline(always)]
    pub fn new<F: Family>(
        endpoint: u32,
        direction: u32,
        remote: F::Address,
        local: F::Address,
        fragment: &Fragment,
    ) -> Self {
        Self(FragmentKey {
            endpoint,
            direction: direction + F::FRAGMENT_OFFSET,
            remote: F::octets(remote),
            local: F::octets(local),
            ident: fragment.ident,
            protocol: u32::from(fragment.next),
        })
    }

    /// Ports that the first fragment recorded.
    ///
    /// # Errors
    /// [`Reason::FragmentWithoutFirst`], also for an expired record; [`Reason::NoTable`].
    #[inline(always)]
    pub fn first<T: Tables>(&self, tables: &T) -> Result<FragmentPorts, Reason> {
        let settings = tables.settings().ok_or(Reason::NoTable)?;
        let ports = tables.fragment(&self.0).ok_or(Reason::FragmentWithoutFirst)?;
        if tables.now().wrapping_sub(ports.seen) >= settings.timeouts[TIMEOUT_FRAGMENT] {
            return Err(Reason::FragmentWithoutFirst);
        }
        Ok(ports)
    }

    /// Records the ports of a first fragment that passed.
    #[inline(always)]
    pub fn record_ports<T: Tables>(&self, tables: &T, transport: &Transport, sent: bool) {
        let Transport { protocol, source, destination, .. } = *transport;
        let (local_port, remote_port) =
            if sent { (source, destination) } else { (destination, source) };
        let seen = tables.now();
        let ports = FragmentPorts { local_port, remote_port, seen, protocol, reserved: [0; 3] };
        tables.remember_fragment(&self.0, &ports);
    }
}

#[inline(always)]
fn datagram<F: Family, D: PodDirection, T: Tables>(
    context: &EndpointContext<'_, D, T>,
    packet: &Packet<'_, F>,
) -> DatagramKey {
    let (remote, local) = (packet.remote::<D>(), packet.local::<D>());
    let direction = u32::from(D::EGRESS);
    DatagramKey::new::<F>(context.id, direction, remote, local, &packet.network.fragment)
}

/// Transport header of a later fragment, from the record of the first. No record is needed if every port is allowed.
///
/// # Errors
/// A settled verdict: the fragment passes where every port is allowed, and drops without a record.
#[inline(always)]
pub(crate) fn transport_of_first<F: Family, D: PodDirection, T: Tables>(
    context: &EndpointContext<'_, D, T>,
    packet: &Packet<'_, F>,
    class: ClassId,
) -> Result<Transport, Reason> {
    let policy = &context.policy;
    if !policy.is_isolated() {
        return Err(policy.passing_reason(Reason::NotIsolated, class));
    }
    if packet.from_node {
        return Err(Reason::Node);
    }
    if policy.allows_every_port(class) {
        return Err(policy.passing_reason(Reason::Allowed, class));
    }
    if context.is_flooded(packet) {
        return Err(Reason::Flooded);
    }
    let ports = datagram(context, packet).first(context.tables)?;
    let (source, destination) = if D::EGRESS {
        (ports.local_port, ports.remote_port)
    } else {
        (ports.remote_port, ports.local_port)
    };
    // Without SYN: only a first fragment can open a connection.
    Ok(Transport { protocol: ports.protocol, flags: TCP_ACK, source, destination })
}

/// Records the ports of a first fragment that passed; not of an ICMP error, whose later fragments could contain anything.
/// No error is long enough for fragments (RFC 1812, 4.3.2.3: 576 bytes; RFC 4443, 2.4: 1280 bytes).
#[inline(always)]
pub(crate) fn remember_first<F: Family, D: PodDirection, T: Tables>(
    context: &EndpointContext<'_, D, T>,
    packet: &Packet<'_, F>,
) {
    if !icmp::is_error(&packet.transport) {
        datagram(context, packet).record_ports(context.tables, &packet.transport, D::EGRESS);
    }
}
