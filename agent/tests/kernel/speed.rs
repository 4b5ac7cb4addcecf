//! Nanoseconds per packet over the empty program; run with `--ignored --nocapture`.

use std::os::fd::AsFd;

use netpold::dataplane::test_run::{Run, run};

use super::{
    packets::{ACK, FAMILIES, Family, SYN, TCP, Who, frame, icmp, ip, tcp},
    world,
    world::{World, program},
};

const REPEAT: u32 = 1_000_000;
const ROUNDS: u32 = 20;

fn fastest(world: &mut World, name: &str, packet: &[u8]) -> u32 {
    let fd = program(&mut world.bpf, name).fd().expect(name);
    let repeated = Run { repeat: REPEAT, ..Run::once(packet) };
    (0..ROUNDS)
        .map(|_| run(fd.as_fd(), &repeated).expect(name).nanoseconds)
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
    }
}

fn report(family: Family, case: &str, nanoseconds: u32, empty: u32) {
    println!("{family:?} {case}: {} ns (empty {empty})", nanoseconds.saturating_sub(empty));
}
