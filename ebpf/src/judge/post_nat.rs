//! Packets that were translated on their way: judged again, exactly, where they leave the node or
//! reach a pod.
//!
//! At the sender's veth a packet to a Service has the Service's address. It passes if policy allows
//! that address or some backend, and then carries its sender's slot along as a mark
//! ([`crate::layout::mark`]). Behind the translation the sender's row is asked about the address and
//! port that the packet has now. If that still is one of those that are translated, it was not:
//! then only what the address itself was granted counts ([`untranslated`]).
//!
//! An answer to such an address went back where its flow came from, as far as netpold knows. If the node's
//! conntrack has forgotten that flow, the answer is a new one to it, and led anywhere: so it passes only if
//! it goes back in the kernel's eyes, too, or goes where it was sent ([`crate::judge::connection`]). Else it is
//! judged as any other.
//!
//! A packet that nobody judged at its sender's veth is judged here for the first time ([`crate::judge::proof`]):
//! its source must be the sender's, and it answers nothing.

use crate::{
    endpoint::EndpointRef,
    judge::{connection::Course, proof::Origin},
    layout::{
        CLASS_TRANSLATED, ClassId, EP_CHECK_SOURCE, FragmentKey, FragmentPorts, PORTS_EVERY,
        ROW_NOT_ISOLATED, TIMEOUT_FRAGMENT, untranslated,
    },
    packet::{
        bytes::{Bytes, Window as _, short},
        family::{V4, V6},
        parse::{self, Network, Transport},
        protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6},
    },
    reason::Reason,
    tables::{
        TableFamily, Tables,
        local_endpoints::LocalEndpoints,
        policy::{row_allows, row_word},
    },
    verdict::Verdict,
};

/// What is added to [`FragmentKey::direction`]: the sender's first fragment was recorded with the
/// address that it was sent to, this one with what it was translated to.
const BEHIND: u32 = 4;
/// [`FragmentKey::direction`] of pod egress.
const EGRESS: u32 = 1;

/// Judges a packet for the endpoint that sent it, where it goes out of `ifindex`. `link`: its type
/// and where the IP header begins, as [`parse::link`] answers. `answer`: of one that is marked as an answer.
/// `agent_lives` is asked if that matters.
#[inline(always)]
pub fn judge<B: Bytes, T: Tables + LocalEndpoints>(
    bytes: &B,
    link: Result<(u16, u32), Reason>,
    tables: &T,
    origin: Origin,
    ifindex: u32,
    answer: Option<Course>,
    agent_lives: impl FnOnce() -> bool,
) -> Verdict {
    let (sender, judged) = match origin {
        Origin::Final => return Verdict::from(Ok(Reason::NotEndpoint)),
        // Nobody can say what it was allowed, so nothing is.
        Origin::Marked(None) => return Verdict::from(Err(Reason::ServiceBackend)),
        Origin::Marked(Some(sender)) => (sender, true),
        Origin::Unjudged(sender) => (sender, false),
        Origin::Unproven { isolated, open } => {
            let drops = match has_local_source(bytes, link, tables) {
                Ok(true) => isolated,
                Ok(false) => !open && agent_lives(),
                Err(reason) => return Verdict::from(Err(reason)),
            };
            let verdict = if drops { Err(Reason::SpoofedSource) } else { Ok(Reason::NotEndpoint) };
            return Verdict::from(verdict);
        }
    };
    // The pod reaches itself through its own Service. Sources cannot tell: they are masqueraded.
    if judged && sender.ifindex() == ifindex {
        return Verdict::from(Ok(Reason::Loopback));
    }
    let answer = answer.filter(|_| judged);
    if answer.is_some_and(Course::answers) {
        return Verdict::from(Ok(Reason::Reply));
    }
    let untracked = answer.is_some_and(|course| !course.is_known());
    let row = (sender.rows() >> 32) as u32;
    let check_source = !judged && sender.flags() & EP_CHECK_SOURCE != 0;
    if row == ROW_NOT_ISOLATED && !check_source {
        return Verdict::from(Ok(Reason::NotIsolated));
    }
    let packet = Translated { tables, sender, row, check_source, judged, untracked };
    match link {
        Ok((ETHERTYPE_IPV4, offset)) => packet.ip::<V4, B>(bytes, offset),
        Ok((ETHERTYPE_IPV6, offset)) => packet.ip::<V6, B>(bytes, offset),
        Ok(_) => Err(Reason::NotIp),
        Err(reason) => Err(reason),
    }
    .into()
}

/// Whether a packet has the source of an endpoint.
#[inline(always)]
fn has_local_source<B: Bytes, T: LocalEndpoints>(
    bytes: &B,
    link: Result<(u16, u32), Reason>,
    tables: &T,
) -> Result<bool, Reason> {
    let local = match link? {
        (ETHERTYPE_IPV4, offset) => {
            tables.local4(bytes.window::<20>(offset).ok_or(short::<B>())?.be32(12))
        }
        (ETHERTYPE_IPV6, offset) => {
            tables.local6(bytes.window::<40>(offset).ok_or(short::<B>())?.words(8))
        }
        _ => None,
    };
    Ok(local.is_some())
}

/// A packet's judgement for its sender.
struct Translated<'a, T> {
    tables: &'a T,
    sender: EndpointRef,
    row: u32,
    check_source: bool,
    /// The sender's own program has judged it.
    judged: bool,
    /// It was sent as an answer, and the node's conntrack does not know it.
    untracked: bool,
}

impl<T: Tables> Translated<'_, T> {
    #[inline(always)]
    fn ip<F: TableFamily, B: Bytes>(&self, bytes: &B, offset: u32) -> Result<Reason, Reason> {
        let mut network = F::network(bytes, offset, false)?;
        if self.check_source && !F::owns(self.sender, network.source) {
            return Err(Reason::SpoofedSource);
        }
        if self.row == ROW_NOT_ISOLATED {
            return Ok(Reason::NotIsolated);
        }
        if self.untracked && self.is_as_sent::<F>(&network) {
            return Ok(Reason::Reply);
        }
        F::extensions(bytes, &mut network)?;
        let read = parse::transport(bytes, &network, false)?;
        // No router forwarded it, so it goes to a neighbour.
        if self.forget((self.judged && F::is_solicitation(&network, &read)).into()) != 0 {
            return Ok(Reason::Neighbour);
        }
        let class = untranslated(F::class(self.tables, network.destination));
        // Opaque: of its two parts, put together behind a mask, Linux 6.1 forgets the bounds.
        let class = self.tables.opaque(class as usize, u64::from(self.row)) as ClassId;
        let mut transport = Transport {
            protocol: self.forget(read.protocol.into()) as u8,
            source: self.forget(read.source),
            destination: self.forget(read.destination),
            ..read
        };
        if network.fragment.is_later() {
            if self.allows_all(class) {
                return Ok(Reason::Allowed);
            }
            let first = self.first::<F>(&network)?;
            transport.protocol = first.protocol;
            transport.destination = first.remote_port;
        }
        if !row_allows(self.tables, self.row, class, transport.protocol, transport.destination) {
            return Err(if self.judged { Reason::ServiceBackend } else { Reason::Policy });
        }
        if network.fragment.is_first() {
            let seen = self.tables.now();
            let Transport { source: local_port, destination: remote_port, .. } = transport;
            let protocol = transport.protocol;
            let ports = FragmentPorts { local_port, remote_port, seen, protocol, reserved: [0; 3] };
            self.tables.remember_fragment(&self.fragment_key::<F>(&network), &ports);
        }
        Ok(Reason::Allowed)
    }

    /// Whether an answer to an address that may be translated still has one, and its sender's source. In a
    /// tunnel (of IPsec) it has not.
    #[inline(always)]
    fn is_as_sent<F: TableFamily>(&self, network: &Network<F::Address>) -> bool {
        let checked = self.sender.flags() & EP_CHECK_SOURCE != 0;
        F::class(self.tables, network.destination) & CLASS_TRANSLATED != 0
            && (!checked || F::owns(self.sender, network.source))
    }

    /// Hides from the verifier how a value came about; see [`crate::judge::evaluator::PacketEvaluator`].
    #[inline(always)]
    fn forget(&self, value: u16) -> u16 {
        self.tables.opaque(usize::from(value), u64::from(self.row)) as u16
    }

    /// Whether no port matters.
    #[inline(always)]
    fn allows_all(&self, class: ClassId) -> bool {
        row_word(self.tables, self.row, class) == PORTS_EVERY
    }

    /// What the datagram's first fragment was sent to.
    #[inline(always)]
    fn first<F: TableFamily>(
        &self,
        network: &Network<F::Address>,
    ) -> Result<FragmentPorts, Reason> {
        let settings = self.tables.settings().ok_or(Reason::NoTable)?;
        let first = self
            .tables
            .fragment(&self.fragment_key::<F>(network))
            .ok_or(Reason::FragmentWithoutFirst)?;
        let age = self.tables.now().wrapping_sub(first.seen);
        if age >= settings.timeouts[TIMEOUT_FRAGMENT] {
            return Err(Reason::FragmentWithoutFirst);
        }
        Ok(first)
    }

    #[inline(always)]
    fn fragment_key<F: TableFamily>(&self, network: &Network<F::Address>) -> FragmentKey {
        FragmentKey {
            endpoint: self.sender.id(),
            direction: EGRESS + F::FRAGMENT_OFFSET + BEHIND,
            remote: F::octets(network.destination),
            local: F::octets(network.source),
            ident: network.fragment.ident,
            protocol: u32::from(network.fragment.next),
        }
    }
}
