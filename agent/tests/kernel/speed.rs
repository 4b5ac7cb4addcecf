//! Nanoseconds per packet over the empty program; run with `--ignored --nocapture`.

use std::os::fd::AsFd;

use netpold::dataplane::test_run::{Run, run};
use netpold_ebpf::layout::{Endpoint, endpoint_slot, mark};
use netpold_testbed::Stain;

use super::{
    packets::{ACK, FAMILIES, Family, SYN, TCP, Who, frame, icmp, ip, tcp},
    world,
    world::{EGRESS_ROW, World, program},
};

const REPEAT: u32 = 1_000_000;
const ROUNDS: u32 = 20;
const SENDER: u32 = 77;

fn fastest(world: &mut World, name: &str, packet: &[u8]) -> u32 {
    let fd = program(&mut world.bpf, name).fd().expect(name);
    let repeated = Run { repeat: REPEAT, ..Run::once(packet) };
    (0..ROUNDS)
        .map(|_| run(fd.as_fd(), &repeated).expect(name).nanoseconds)
        .min()
        .unwrap_or_default()
}

/// With the mark of [`SENDER`] written before each run.
fn fastest_marked(world: &mut World, name: &str, packet: &[u8]) -> u32 {
    let target = program(&mut world.bpf, name).fd().expect(name);
    let mark = mark(endpoint_slot(SENDER, 0)) as u16;
    let stain = Stain::before(target.as_fd(), mark).expect("a program");
    let repeated = Run { repeat: REPEAT, ..Run::once(packet) };
    (0..ROUNDS)
        .map(|_| run(stain.as_fd(), &repeated).expect(name).nanoseconds)
        .min()
        .unwrap_or_default()
}

#[test]
#[ignore = "a measurement, not a test"]
fn nanoseconds_per_packet() {
    let Some(mut world) = world() else { return };
    for family in FAMILIES {
        let segment = |from, to, ports: (u16, u16), flags| {
            frame(&ip(family, from, to, TCP, &tcp(ports.0, ports.1, flags)))
        };
        let (c, p) = (Who::Client, Who::Pod);
        let forward = segment(c, p, (4000, 80), ACK);
        let empty = fastest(&mut world, "netpold_empty", &forward);
        world.set_rows(0, 0);
        report(family, "not isolated", fastest(&mut world, "netpold_ingress", &forward), empty);
        world.next_pod();
        let _ = world.ingress(&segment(c, p, (4000, 80), SYN));
        report(family, "forward", fastest(&mut world, "netpold_ingress", &forward), empty);
        let answer = segment(p, c, (80, 4000), ACK);
        report(family, "reply", fastest(&mut world, "netpold_egress", &answer), empty);
        let denied = segment(Who::Stranger, p, (4000, 80), SYN);
        report(family, "denied", fastest(&mut world, "netpold_ingress", &denied), empty);
        // The thorough look.
        let ping = icmp(family.echo_request(), 0, [0, 5, 0, 1], b"ping");
        let ping = frame(&ip(family, p, Who::Server, family.icmp(), &ping));
        report(family, "echo", fastest(&mut world, "netpold_egress", &ping), empty);
        // A packet to a Service, where it leaves the node.
        let to = segment(p, Who::Server, (4000, 443), ACK);
        let sender = Endpoint {
            ifindex: SENDER,
            rows: Endpoint::pack_rows(0, EGRESS_ROW),
            ..Endpoint::default()
        };
        world.set_endpoint(sender);
        let empty = fastest_marked(&mut world, "netpold_empty", &to);
        report(family, "marked", fastest_marked(&mut world, "netpold_node", &to), empty);
    }
}

fn report(family: Family, case: &str, nanoseconds: u32, empty: u32) {
    println!("{family:?} {case}: {} ns (empty {empty})", nanoseconds.saturating_sub(empty));
}
