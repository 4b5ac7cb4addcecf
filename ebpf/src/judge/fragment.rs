//! Fragments: the first is judged on its ports and leaves them to those that follow.

use crate::{
    direction::Direction,
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

/// Where the first fragment of a datagram leaves its ports.
#[derive(Clone, Copy, Debug)]
pub struct Datagram(FragmentKey);

impl Datagram {
    /// A datagram of an endpoint, by any of its fragments. `direction`: [`FragmentKey::direction`] without the family.
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

    /// The ports that the first fragment left.
    ///
    /// # Errors
    /// [`Reason::FragmentWithoutFirst`], also if that is too long ago; [`Reason::NoTable`].
    #[inline(always)]
    pub fn first<T: Tables>(&self, tables: &T) -> Result<FragmentPorts, Reason> {
        let settings = tables.settings().ok_or(Reason::NoTable)?;
        let ports = tables.fragment(&self.0).ok_or(Reason::FragmentWithoutFirst)?;
        if tables.now().wrapping_sub(ports.seen) >= settings.timeouts[TIMEOUT_FRAGMENT] {
            return Err(Reason::FragmentWithoutFirst);
        }
        Ok(ports)
    }

    /// Leaves the ports of the first fragment, which passed.
    #[inline(always)]
    pub fn remember<T: Tables>(&self, tables: &T, transport: &Transport, sent: bool) {
        let Transport { protocol, source, destination, .. } = *transport;
        let (local_port, remote_port) =
            if sent { (source, destination) } else { (destination, source) };
        let seen = tables.now();
        let ports = FragmentPorts { local_port, remote_port, seen, protocol, reserved: [0; 3] };
        tables.remember_fragment(&self.0, &ports);
    }
}

#[inline(always)]
fn datagram<F: Family, D: Direction, T: Tables>(
    context: &EndpointContext<'_, D, T>,
    packet: &Packet<'_, F>,
) -> Datagram {
    let (remote, local) = (packet.remote::<D>(), packet.local::<D>());
    let direction = u32::from(D::EGRESS);
    Datagram::new::<F>(context.id, direction, remote, local, &packet.network.fragment)
}

/// The transport header of a later fragment, by its first. Where no port matters the first
/// need not have been seen.
///
/// # Errors
/// A verdict: passes where every port is allowed, drops if the first was not passed before.
#[inline(always)]
pub(crate) fn transport_of_first<F: Family, D: Direction, T: Tables>(
    context: &EndpointContext<'_, D, T>,
    packet: &Packet<'_, F>,
    class: ClassId,
) -> Result<Transport, Reason> {
    let policy = &context.policy;
    if !policy.is_isolated() {
        return Err(policy.passing(Reason::NotIsolated, class));
    }
    if context.is_from_node(&packet.network.fragment) {
        return Err(Reason::Node);
    }
    if policy.allows_every_port(class) {
        return Err(policy.passing(Reason::Allowed, class));
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
    // Never an opening packet: that was the first's to say.
    let transport = Transport { protocol: ports.protocol, flags: TCP_ACK, source, destination };
    // An error's quoted packet is in the first fragment, which was judged by it.
    if icmp::is_error(&transport) { Err(Reason::Related) } else { Ok(transport) }
}

/// Leaves the ports of a first fragment that passed.
#[inline(always)]
pub(crate) fn remember_first<F: Family, D: Direction, T: Tables>(
    context: &EndpointContext<'_, D, T>,
    packet: &Packet<'_, F>,
) {
    datagram(context, packet).remember(context.tables, &packet.transport, D::EGRESS);
}
