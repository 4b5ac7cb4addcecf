//! Answers to packets that policy denies after a Service's translation.

use netpold_ebpf::{
    endpoint::EndpointRef,
    host::HostSums,
    judge::reject,
    layout::EP_STATION_SHIFT,
    packet::{
        family::{V4, V6},
        rejection::{
            self, Denied, Ends, FRAME_OFFSET, LINK_HEADER, Rejection, RejectionFamily,
            RejectionFrame, quote_at,
        },
    },
    tables::find_endpoint,
};
use netpold_testkit::frames::{FAMILIES, IpVersion, SYN, TCP, UDP, Who, frame, ip, tcp, udp};
use netpold_testkit::one_pod::IFINDEX;

use super::{STATION, add, sum, tables};

/// The Service's port, and the client's.
const ASKED: u16 = 443;
const OWN: u16 = 4000;

/// The answer to a frame at an exit, whose packet had the ends `before` when it was sent.
fn answer<F: RejectionFamily>(
    sender: EndpointRef,
    frame: &[u8],
    before: &Ends<F::Address>,
) -> Option<Vec<u8>> {
    let denied: Denied<F::Address> = rejection::read_denied::<F, _>(&frame)?;
    let protocol = denied.network.protocol;
    let denied = reject::as_sent::<F>(sender, denied, before)?;
    let mut letter = RejectionFrame([0; 576]);
    let quote = |letter: &mut RejectionFrame, quoted: u32| {
        let to = quote_at::<F>();
        letter.0[to..to + quoted as usize]
            .copy_from_slice(&frame[LINK_HEADER..][..quoted as usize]);
        rejection::restore_ends::<F>(letter, before, protocol, &HostSums);
        quoted
    };
    let length = rejection::compose::<F>(&mut letter, &denied, quote, &HostSums) as usize;
    (length > 0).then(|| letter.0[FRAME_OFFSET..FRAME_OFFSET + length].to_vec())
}

/// The answer from a Service's address, to a source before the translation.
fn of(
    sender: EndpointRef,
    family: IpVersion,
    from: Who,
    service: Who,
    frame: &[u8],
) -> Option<Vec<u8>> {
    let ports = [OWN, ASKED];
    match family {
        IpVersion::V4 => {
            let addresses = [from, service].map(|who| u32::from_be_bytes(who.v4()));
            answer::<V4>(sender, frame, &Ends { addresses, ports })
        }
        IpVersion::V6 => {
            let words = |who: Who| V6::words(&who.v6());
            answer::<V6>(sender, frame, &Ends { addresses: [from, service].map(words), ports })
        }
    }
}

/// A packet to a backend, masqueraded by the node or not, is answered from the Service to the sender's own address and
/// station, and quoted as it was sent. A packet of another connection is not answered at all.
#[test]
fn answers_behind_a_translation_go_to_their_sender_alone() {
    let mut tables = tables();
    let sender = find_endpoint(&tables, IFINDEX).expect("the pod");
    for family in FAMILIES {
        let (at, addresses) = if family == IpVersion::V4 { (34, 26..34) } else { (54, 22..54) };
        let bytes =
            |who: Who| if family == IpVersion::V4 { who.v4().to_vec() } else { who.v6().to_vec() };
        let back = [bytes(Who::Client), bytes(Who::Pod)].concat();
        for now in [Who::Pod, Who::Friend] {
            let to_backend =
                |protocol, data: &[u8]| frame(&ip(family, now, Who::Stranger, protocol, data));
            let syn = to_backend(TCP, &tcp(61_000, 8443, SYN));
            let reset = of(sender, family, Who::Pod, Who::Client, &syn).expect("a reset");
            assert_eq!((&reset[..6], &reset[6..12]), (&STATION[..], &syn[6..12]));
            assert_eq!(reset[addresses.clone()], back);
            assert_eq!(reset[at..at + 4], [ASKED.to_be_bytes(), OWN.to_be_bytes()].concat());
            assert_eq!(sum(&reset, family), 0xffff);
            let datagram = to_backend(UDP, &udp(61_000, 8443, b"question"));
            let error = of(sender, family, Who::Pod, Who::Client, &datagram).expect("an error");
            assert_eq!((&error[..6], &error[addresses.clone()]), (&STATION[..], &back[..]));
            assert_eq!(sum(&error, family), 0xffff);
            let quoted = &error[at + 8..];
            let header = at - LINK_HEADER;
            let sent = [bytes(Who::Pod), bytes(Who::Client)].concat();
            assert_eq!(quoted[addresses.start - LINK_HEADER..addresses.end - LINK_HEADER], sent);
            assert_eq!(
                quoted[header..header + 4],
                [OWN.to_be_bytes(), ASKED.to_be_bytes()].concat()
            );
            assert_eq!(quoted[header + 4..][..4], datagram[at + 4..][..4]);
            if family == IpVersion::V4 {
                assert_eq!(add(&quoted[..20]), 0xffff, "the quoted header's checksum");
            }
            assert_eq!(of(sender, family, Who::Stranger, Who::Client, &syn), None, "another's");
            let mut group = syn.clone();
            group[0] |= 1;
            assert_eq!(of(sender, family, Who::Pod, Who::Client, &group), None);
        }
    }
    let reset = rejection::read_denied::<V4, _>(
        &&frame(&ip(IpVersion::V4, Who::Pod, Who::Stranger, TCP, &tcp(1, 2, 4)))[..],
    );
    assert_eq!(reset.expect("a denied reset").rejection, Rejection::Nothing);
    tables.endpoint_mut(IFINDEX).flags &= (1 << EP_STATION_SHIFT) - 1;
    let sender = find_endpoint(&tables, IFINDEX).expect("the pod");
    let syn = frame(&ip(IpVersion::V4, Who::Pod, Who::Stranger, TCP, &tcp(OWN, 80, SYN)));
    assert_eq!(of(sender, IpVersion::V4, Who::Pod, Who::Client, &syn), None, "an unknown station");
}
