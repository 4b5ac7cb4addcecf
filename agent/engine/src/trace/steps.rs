//! Assembles packets from the lines of the traced programs.

use std::collections::BTreeMap;
use std::mem;

use netpold_core::model::Direction;
use netpold_core::probe::IpProtocol;
use netpold_ebpf::endpoint::Rows;
use netpold_ebpf::flow::control::Control;
use netpold_ebpf::layout::{
    CLASS_SERVICE, CLASS_TRANSLATED, CT_EGRESS, CT_INGRESS, CT_NODE, CT_REPLIED, DropEvent,
    MAX_CLASSES, PORTS_ALL, PORTS_NONE, PORTS_ONE, ports_of,
};
use netpold_ebpf::reason::Reason;
use netpold_ebpf::trace::{SETTLED, Step};

use netpold_api::trace::{TraceStep, TracedFlowEntry};

/// Maximum number of incomplete packets: one in progress on each CPU, and packets with lost lines.
const PENDING: usize = 1024;

/// A packet and the steps of its judgement, without names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawPacket {
    /// The packet, with the reason of the verdict.
    pub event: DropEvent,
    /// Whether the packet was dropped.
    pub dropped: bool,
    /// Steps of the judgement.
    pub steps: Vec<TraceStep>,
}

/// Lines of incomplete packets.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    pending: BTreeMap<u64, Vec<[u64; 3]>>,
    complete: u64,
}

impl Assembler {
    /// Adds lines, and returns the packets that the lines complete.
    pub(super) fn add_lines(&mut self, lines: &[String]) -> Vec<RawPacket> {
        let mut packets = Vec::new();
        for line in lines {
            let Some([number, step, first, second]) = parse(line) else { continue };
            let steps = self.pending.entry(number).or_default();
            steps.push([step, first, second]);
            if step == Step::Verdict as u64 {
                let steps = mem::take(steps);
                self.pending.remove(&number);
                if let Some(packet) = assemble(&steps) {
                    self.complete += 1;
                    packets.push(packet);
                }
            }
        }
        while self.pending.len() > PENDING {
            self.pending.pop_first();
        }
        packets
    }

    /// Returns the number of complete packets so far.
    pub(super) fn complete(&self) -> u64 {
        self.complete
    }
}

fn parse(line: &str) -> Option<[u64; 4]> {
    let mut numbers = line.split(' ').map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some([next()?, next()?, next()?, next()?])
}

/// Assembles a packet from all its lines; `None` if some are missing.
fn assemble(lines: &[[u64; 3]]) -> Option<RawPacket> {
    let (mut event, mut steps) = (DropEvent::default(), Vec::new());
    let (mut row, mut rows, mut dropped, mut last) = (None, [0; 2], false, None);
    for &[step, first, second] in lines {
        match Step::from_number(step) {
            Some(Step::Packet) => {
                let [direction, family, protocol, ..] = first.to_le_bytes();
                let ports = [second as u16, (second >> 16) as u16];
                event = DropEvent { direction, family, protocol, ..event };
                event.length = (first >> 32) as u32;
                [event.local_port, event.remote_port] = ports;
            }
            Some(Step::Local) => event.local = octets(first, second),
            Some(Step::Remote) => event.remote = octets(first, second),
            Some(Step::SlowPath) => steps.push(TraceStep::SlowPath),
            Some(Step::Endpoint) => {
                event.endpoint = first as u32;
                rows = [Rows(second).ingress(), Rows(second).egress()];
                let shown = endpoint(first, rows);
                // Functions of the slow path look the endpoint up again.
                if !steps.contains(&shown) {
                    steps.push(shown);
                }
            }
            Some(Step::Cached) => {
                steps.push(TraceStep::Cached { reason: reason(first), flow: entry(second) });
            }
            Some(Step::Class) => steps.push(class(first as u32)),
            Some(Step::Row) => row = Some(first),
            Some(Step::Ports) => {
                let own = if event.direction == 0 { Direction::Ingress } else { Direction::Egress };
                steps.push(row_lookup(row.take()?, [first, second], rows, own));
            }
            Some(Step::Flow) => {
                let flow = (first > 0).then(|| entry(second));
                steps.push(TraceStep::Flow { flow, expired: first == 1 });
            }
            Some(Step::NewFlow) => steps.push(TraceStep::NewFlow),
            Some(Step::Sender) => {
                last = Some(first as u8);
                steps.push(TraceStep::Sender { reason: reason(first) });
            }
            Some(Step::Verdict) => {
                // Number of lines before this one.
                if second >> 8 != lines.len() as u64 - 1 {
                    return None;
                }
                event.reason = if first == SETTLED { last? } else { first as u8 };
                dropped = second & 1 != 0;
            }
            None => steps.push(TraceStep::Unknown { number: step }),
        }
    }
    Some(RawPacket { event, dropped, steps })
}

fn endpoint(first: u64, [ingress_row, egress_row]: [u32; 2]) -> TraceStep {
    TraceStep::Endpoint {
        id: first as u32,
        revision: (first >> 32) as u32,
        ingress_row,
        egress_row,
    }
}

fn class(word: u32) -> TraceStep {
    TraceStep::Class {
        class: word & (MAX_CLASSES - 1),
        translated: word & CLASS_TRANSLATED != 0,
        service: word & CLASS_SERVICE != 0,
    }
}

/// Converts a lookup in a row. The direction is the packet's own, unless only the other direction has the row.
fn row_lookup(row: u64, [asked, word]: [u64; 2], rows: [u32; 2], own: Direction) -> TraceStep {
    let (class, row) = ((row >> 32) as u32 & (MAX_CLASSES - 1), row as u32);
    let [protocol, low, high, ..] = asked.to_le_bytes();
    let direction = match rows {
        [ingress, egress] if ingress == egress => own,
        [ingress, _] if ingress == row => Direction::Ingress,
        _ => Direction::Egress,
    };
    TraceStep::Row {
        direction,
        row,
        class,
        protocol: IpProtocol(protocol),
        port: u16::from_le_bytes([low, high]),
        ports: ports(word, protocol),
        allows: asked >> 32 & 1 != 0,
    }
}

fn ports(word: u64, protocol: u8) -> String {
    match ports_of(word, protocol) {
        PORTS_NONE => "none".to_owned(),
        PORTS_ALL => "all".to_owned(),
        one if one & PORTS_ONE != 0 => (one as u16).to_string(),
        bitmap => format!("set {bitmap}"),
    }
}

fn entry(control: u64) -> TracedFlowEntry {
    let control = Control(control);
    let has = |flag: u16| control.flags() & flag != 0;
    TracedFlowEntry {
        ingress: has(CT_INGRESS),
        egress: has(CT_EGRESS),
        node: has(CT_NODE),
        replied: has(CT_REPLIED),
        closing: control.is_closing(),
    }
}

fn reason(number: u64) -> String {
    let known = u8::try_from(number).ok().and_then(Reason::from_number);
    known.map_or("unknown", Reason::as_str).to_owned()
}

fn octets(first: u64, second: u64) -> [u8; 16] {
    let mut octets = [0; 16];
    let (low, high) = octets.split_at_mut(8);
    low.copy_from_slice(&first.to_ne_bytes());
    high.copy_from_slice(&second.to_ne_bytes());
    octets
}

#[cfg(test)]
mod tests {
    use netpold_ebpf::layout::Endpoint;

    use super::*;

    fn line(number: u64, step: Step, first: u64, second: u64) -> String {
        format!("{number} {} {first} {second}", step as u64)
    }

    /// Lines of a TCP packet in pod ingress.
    fn packet(number: u64) -> Vec<String> {
        let (asked, word) = (6 | 80 << 8 | 1 << 32, u64::from(PORTS_ONE + 80));
        vec![
            line(number, Step::Packet, 4 << 8 | 6 << 16 | 60 << 32, 80 + (4000 << 16)),
            line(number, Step::Local, u64::from_ne_bytes([10, 0, 0, 5, 0, 0, 0, 0]), 0),
            line(number, Step::Remote, u64::from_ne_bytes([10, 0, 0, 7, 0, 0, 0, 0]), 0),
            line(number, Step::Endpoint, 9 | 77 << 32, Endpoint::pack_rows(2, 3)),
            line(number, Step::Class, 5 | u64::from(CLASS_TRANSLATED), 0),
            line(number, Step::Row, 2 | 5 << 32, word),
            line(number, Step::Ports, asked, word),
            line(number, Step::Verdict, Reason::Allowed as u64, 7 << 8),
        ]
    }

    #[test]
    fn lines_of_several_cpus_are_distinguished() {
        let (one, other) = (packet(1), packet(1 | 1 << 48));
        let mixed: Vec<String> = one.into_iter().zip(other).flat_map(|(a, b)| [a, b]).collect();
        let mut assembler = Assembler::default();
        assert_eq!(assembler.add_lines(&mixed[..9]), []);
        let packets = assembler.add_lines(&mixed[9..]);
        assert_eq!((packets.len(), assembler.complete()), (2, 2));
        let first = &packets[0];
        assert_eq!(first, &packets[1]);
        assert!(!first.dropped && first.event.reason == Reason::Allowed as u8);
        assert_eq!((first.event.local_port, first.event.remote_port), (80, 4000));
        assert_eq!((&first.event.remote[..4], first.event.length), (&[10, 0, 0, 7][..], 60));
        let row = TraceStep::Row {
            direction: Direction::Ingress,
            row: 2,
            class: 5,
            protocol: IpProtocol::TCP,
            port: 80,
            ports: "80".into(),
            allows: true,
        };
        let endpoint = TraceStep::Endpoint { id: 9, revision: 77, ingress_row: 2, egress_row: 3 };
        let class = TraceStep::Class { class: 5, translated: true, service: false };
        assert_eq!(first.steps, [endpoint, class, row]);
    }

    #[test]
    fn a_packet_that_lacks_a_line_is_not_shown() {
        for missing in 0..7 {
            let mut lines = packet(1);
            lines.remove(missing);
            let mut assembler = Assembler::default();
            assert_eq!(
                (assembler.add_lines(&lines), assembler.complete()),
                (vec![], 0),
                "{missing}"
            );
        }
        let mut assembler = Assembler::default();
        let endless = (0..5000).map(|number| line(number, Step::Class, 0, 0));
        assert_eq!(assembler.add_lines(&endless.collect::<Vec<_>>()), []);
        assert_eq!(assembler.pending.len(), PENDING, "incomplete packets are bounded");
        assert_eq!(assembler.add_lines(&["x".into(), "1 2".into(), "one 2 3 4".into()]), []);
    }

    #[test]
    fn a_verdict_of_the_senders_policy_has_its_reason() {
        let lines = [
            line(3, Step::Packet, 4 << 8, 0),
            line(3, Step::Sender, Reason::ServiceBackend as u64, 0),
            line(3, Step::Verdict, SETTLED, 1 | 2 << 8),
        ];
        let packets = Assembler::default().add_lines(&lines);
        assert_eq!(packets[0].event.reason, Reason::ServiceBackend as u8);
        assert!(packets[0].dropped);
    }
}
