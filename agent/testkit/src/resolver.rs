//! Model of a resolver's TCP with the SYN cookies of Linux, as the target of attacks. The model keeps no state of a
//! SYN, and opens a connection for any ACK with a cookie of this minute or the last one.

use std::collections::BTreeMap;

use netpold_ebpf::packet::protocol::{TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN};

/// Flags that decide about the treatment of a segment.
const KINDS: u8 = TCP_SYN | TCP_ACK | TCP_FIN | TCP_RST;
/// Farthest distance of an old acknowledgement, and of a byte beyond a gap.
const WINDOW: u32 = 1 << 16;

/// A segment between a port of the pod and the resolver, of either side.
#[derive(Clone, Debug)]
pub struct Segment {
    /// The pod's port.
    pub port: u16,
    /// Header flags.
    pub flags: u8,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledged number.
    pub acknowledged: u32,
    /// Data.
    pub data: Vec<u8>,
}

/// A connection.
#[derive(Debug)]
pub struct ResolverStream {
    /// Number of the pod's next byte.
    pub next: u32,
    /// Number of the resolver's first byte.
    pub first: u32,
    /// Bytes that the resolver has written.
    pub written: Vec<u8>,
    unanswered: Vec<u8>,
    /// Bytes after a gap, by number.
    early: Vec<(u32, Vec<u8>)>,
}

/// The resolver.
#[derive(Debug, Default)]
pub struct Resolver {
    /// Connections by the pod's port.
    pub streams: BTreeMap<u16, ResolverStream>,
    /// Minutes, for cookies.
    pub minute: u32,
}

impl Resolver {
    /// Number of the SYN-ACK to a SYN with this number, of a minute, for one of four maximum segment sizes.
    #[must_use]
    pub fn cookie(port: u16, sequence: u32, minute: u32, size: u32) -> u32 {
        let hash = |word: u32| (word ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b1).rotate_left(13);
        let low = hash(u32::from(port) ^ minute.rotate_left(16)).wrapping_add(size & 3) & 0xff_ffff;
        hash(port.into()).wrapping_add(sequence).wrapping_add(minute << 24).wrapping_add(low)
    }

    /// Takes a segment of the pod; returns the immediate replies, which have no data. `answer` returns the answer to a
    /// message.
    pub fn receive(
        &mut self,
        segment: &Segment,
        size: u32,
        answer: impl Fn(&[u8]) -> Option<Vec<u8>>,
    ) -> Vec<Segment> {
        let Segment { port, flags, sequence, acknowledged, .. } = *segment;
        let reply = |flags, sequence, acknowledged| Segment {
            port,
            flags,
            sequence,
            acknowledged,
            data: Vec::new(),
        };
        if !self.streams.contains_key(&port) {
            if flags & KINDS == TCP_SYN {
                let number = Self::cookie(port, sequence, self.minute, size);
                return vec![reply(TCP_SYN | TCP_ACK, number, sequence.wrapping_add(1))];
            }
            if flags & (TCP_SYN | TCP_RST) != 0 || flags & TCP_ACK == 0 {
                return Vec::new();
            }
            let number = acknowledged.wrapping_sub(1);
            let is_cookie = |minute: u32| {
                let of = |size| Self::cookie(port, sequence.wrapping_sub(1), minute, size);
                (0..4).any(|size| of(size) == number)
            };
            if !is_cookie(self.minute) && !is_cookie(self.minute.wrapping_sub(1)) {
                return vec![reply(TCP_RST, acknowledged, 0)];
            }
            let stream = ResolverStream {
                next: sequence,
                first: acknowledged,
                written: Vec::new(),
                unanswered: Vec::new(),
                early: Vec::new(),
            };
            self.streams.insert(port, stream);
        }
        let Some(stream) = self.streams.get_mut(&port) else { return Vec::new() };
        let end = stream.first.wrapping_add(stream.written.len() as u32);
        let challenge = vec![reply(TCP_ACK, end, stream.next)];
        if flags & TCP_RST != 0 {
            if sequence == stream.next {
                self.streams.remove(&port);
                return Vec::new();
            }
            return challenge;
        }
        // An acknowledgement of bytes not sent yet, or a far older one (RFC 5961 section 5).
        if flags & TCP_SYN != 0
            || end.wrapping_sub(acknowledged) > stream.written.len() as u32 + WINDOW
        {
            return challenge;
        }
        if flags & TCP_ACK == 0 {
            return Vec::new();
        }
        stream.take(sequence, &segment.data, answer);
        if flags & TCP_FIN != 0 && sequence.wrapping_add(segment.data.len() as u32) == stream.next {
            let (end, next) = (stream.end(), stream.next.wrapping_add(1));
            self.streams.remove(&port);
            return vec![reply(TCP_FIN | TCP_ACK, end, next)];
        }
        if segment.data.is_empty() { Vec::new() } else { vec![stream.acknowledges(port)] }
    }
}

impl ResolverStream {
    fn end(&self) -> u32 {
        self.first.wrapping_add(self.written.len() as u32)
    }

    fn acknowledges(&self, port: u16) -> Segment {
        let (sequence, acknowledged) = (self.end(), self.next);
        Segment { port, flags: TCP_ACK, sequence, acknowledged, data: Vec::new() }
    }

    /// A segment with written bytes from a position on.
    #[must_use]
    pub fn transmit(&self, port: u16, from: usize, length: usize) -> Segment {
        let from = from.min(self.written.len());
        let end = (from + length).min(self.written.len());
        Segment {
            port,
            flags: TCP_ACK,
            sequence: self.first.wrapping_add(from as u32),
            acknowledged: self.next,
            data: self.written[from..end].to_vec(),
        }
    }

    /// Takes bytes of the pod at their position; bytes after a gap once the gap is filled.
    fn take(&mut self, sequence: u32, data: &[u8], answer: impl Fn(&[u8]) -> Option<Vec<u8>>) {
        if sequence.wrapping_sub(self.next).wrapping_add(WINDOW) <= 2 * WINDOW && !data.is_empty() {
            self.early.push((sequence, data.to_vec()));
        }
        let next = |of: &(u32, Vec<u8>), next: u32| {
            let known = next.wrapping_sub(of.0) as usize;
            (known < of.1.len()).then(|| of.1[known..].to_vec())
        };
        while let Some(bytes) = self.early.iter().find_map(|part| next(part, self.next)) {
            self.next = self.next.wrapping_add(bytes.len() as u32);
            self.unanswered.extend(bytes);
        }
        while let Some((length, rest)) = self.unanswered.split_first_chunk::<2>() {
            let length = usize::from(u16::from_be_bytes(*length));
            let Some(message) = rest.get(..length) else { break };
            let said = answer(message);
            self.unanswered.drain(..2 + length);
            self.written.extend(said.map(|it| crate::streams::framed(&it)).unwrap_or_default());
        }
    }
}
