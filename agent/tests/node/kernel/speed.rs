//! Nanoseconds per packet on top of the empty program; run with `--ignored --nocapture`.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use netpold_dataplane::bpf::test_run::{Run, run};
use netpold_ebpf::layout::{EP_OBSERVE, EP_REJECT_INGRESS, Endpoint, endpoint_slot, mark};
use netpold_testbed::SkbMarker;

use netpold_testkit::frames::{ACK, FAMILIES, IpVersion, SYN, TCP, Who, frame, icmp, ip, tcp};

use super::{
    early::{EARLY, Early, run as run_xdp},
    world,
    world::{EGRESS_ROW, IFINDEX, INGRESS_ROW, World, program},
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

/// Returns the shortest time per packet, with the mark of [`SENDER`] written before each run.
fn fastest_marked(world: &mut World, name: &str, packet: &[u8]) -> u32 {
    let target = program(&mut world.bpf, name).fd().expect(name);
    let mark = mark(endpoint_slot(SENDER, 0), 0) as u16;
    let marker = SkbMarker::before(target.as_fd(), mark).expect("a program");
    let proof = world.host.flows.settings.proof;
    let repeated = Run { repeat: REPEAT, mark: proof, ..Run::once(packet) };
    (0..ROUNDS)
        .map(|_| run(marker.as_fd(), &repeated).expect(name).nanoseconds)
        .min()
        .unwrap_or_default()
}

/// A packet of a pod that no policy selects, with and without a record of its flow, and packets that begin flows.
#[test]
#[ignore = "a measurement, not a test"]
fn nanoseconds_per_observed_packet() {
    let Some(mut world) = world() else { return };
    for family in FAMILIES {
        let segment = |from, to, ports: (u16, u16), flags| {
            frame(&ip(family, from, to, TCP, &tcp(ports.0, ports.1, flags)))
        };
        let (c, p) = (Who::Client, Who::Pod);
        world.next_pod();
        world.set_rows(0, 0);
        let (forward, sent) = (segment(c, p, (4000, 80), ACK), segment(p, c, (80, 4000), ACK));
        let empty = fastest(&mut world, "netpold_empty", &forward);
        for observed in [false, true] {
            world.host.endpoint_mut(IFINDEX).flags |= if observed { EP_OBSERVE } else { 0 };
            world.set_rows(0, 0);
            let _ = world.ingress(&segment(c, p, (4000, 80), SYN));
            let _ = world.egress(&sent);
            let _ = world.ingress(&forward);
            for (case, name, packet) in
                [("to", "netpold_ingress", &forward), ("from", "netpold_egress", &sent)]
            {
                let case = format!("{case} a pod without policy, observed: {observed}");
                report(family, &case, fastest(&mut world, name, packet), empty);
            }
        }
        world.host.endpoint_mut(IFINDEX).flags &= !EP_OBSERVE;
    }
    new_flows(&mut world);
}

/// Times packets that each begin a flow: runs of one packet have the cost of a system call, so the difference between
/// observed and unobserved runs counts.
fn new_flows(world: &mut World) {
    for family in FAMILIES {
        let mut took = [u64::MAX; 2];
        for round in 0..ROUNDS {
            for (observed, least) in took.iter_mut().enumerate() {
                world.next_pod();
                let flags = &mut world.host.endpoint_mut(IFINDEX).flags;
                *flags = *flags & !EP_OBSERVE | if observed == 1 { EP_OBSERVE } else { 0 };
                world.set_rows(0, 0);
                let fd = program(&mut world.bpf, "netpold_egress").fd().expect("netpold_egress");
                let sum: u64 = (1..=900_u16)
                    .map(|port| {
                        let port = port + 1000 * (round as u16 % 50);
                        let segment = tcp(port, 443, SYN);
                        let packet = frame(&ip(family, Who::Pod, Who::Server, TCP, &segment));
                        let once = Run::once(&packet);
                        u64::from(run(fd.as_fd(), &once).expect("netpold_egress").nanoseconds)
                    })
                    .sum();
                *least = (*least).min(sum / 900);
            }
        }
        println!("{family:?} new flow: {} ns unobserved, {} observed", took[0], took[1]);
    }
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
        let sent = segment(p, c, (80, 4000), ACK);
        report(family, "its source alone", fastest(&mut world, "netpold_egress", &sent), empty);
        world.next_pod();
        let _ = world.ingress(&segment(c, p, (4000, 80), SYN));
        let answer = segment(p, c, (80, 4000), ACK);
        let _ = world.egress(&answer);
        report(family, "forward", fastest(&mut world, "netpold_ingress", &forward), empty);
        report(family, "reply", fastest(&mut world, "netpold_egress", &answer), empty);
        let denied = segment(Who::Stranger, p, (4000, 80), SYN);
        report(family, "denied", fastest(&mut world, "netpold_ingress", &denied), empty);
        world.host.endpoint_mut(IFINDEX).flags |= EP_REJECT_INGRESS;
        world.set_rows(INGRESS_ROW, EGRESS_ROW);
        let name = "denied, answers used up";
        report(family, name, fastest(&mut world, "netpold_ingress", &denied), empty);
        let name = "forward, where denied packets are answered";
        report(family, name, fastest(&mut world, "netpold_ingress", &forward), empty);
        world.host.endpoint_mut(IFINDEX).flags &= !EP_REJECT_INGRESS;
        world.set_rows(INGRESS_ROW, EGRESS_ROW);
        let denied = segment(Who::Stranger, p, (4000, 80), ACK);
        let name = "denied, no SYN";
        report(family, name, fastest(&mut world, "netpold_ingress", &denied), empty);
        // The slow path.
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
        // From a bridge with pods to the node itself.
        for (case, mark) in [("bridge, with the proof", true), ("bridge, without", false)] {
            let mark = if mark { world.host.flows.settings.proof } else { 0 };
            let [empty, took] = ["netpold_empty", "netpold_bridge"].map(|name| {
                let fd = program(&mut world.bpf, name).fd().expect(name);
                let repeated = Run { repeat: REPEAT, mark, ..Run::once(&forward) };
                let rounds =
                    (0..ROUNDS).map(|_| run(fd.as_fd(), &repeated).expect(name).nanoseconds);
                rounds.min().unwrap_or_default()
            });
            report(family, case, took, empty);
        }
    }
}

/// Loads an XDP program that passes everything: `r0 = 2; exit`.
fn empty_xdp() -> OwnedFd {
    const PROG_LOAD: libc::c_int = 5;
    let (code, license) = ([2_u64 << 32 | 0xb7, 0x95], c"GPL");
    // Program type (XDP) and instructions, in `union bpf_attr`.
    let load = [6 | 2_u64 << 32, code.as_ptr() as u64, license.as_ptr() as u64, 0, 0, 0];
    // SAFETY: the attributes of BPF_PROG_LOAD; code and license outlive the call.
    let fd =
        unsafe { libc::syscall(libc::SYS_bpf, PROG_LOAD, &raw const load, size_of_val(&load)) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: a new descriptor.
    unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) }
}

fn fastest_xdp(program: BorrowedFd<'_>, packet: &[u8]) -> u32 {
    let rounds = (0..ROUNDS).map(|_| run_xdp(program, packet, REPEAT).1);
    rounds.min().unwrap_or_default()
}

#[test]
#[ignore = "a measurement, not a test"]
fn nanoseconds_per_packet_in_xdp() {
    let Some(mut world) = world() else { return };
    let empty = empty_xdp();
    for family in FAMILIES {
        world.next_pod();
        let segment = |from, to, flags| frame(&ip(family, from, to, TCP, &tcp(4000, 80, flags)));
        let (c, p, s) = (Who::Client, Who::Pod, Who::Server);
        let to_https = frame(&ip(family, p, s, TCP, &tcp(4000, 443, SYN)));
        let cases = [
            ("for no pod", segment(c, s, SYN)),
            ("denied to the pod", segment(Who::Stranger, p, SYN)),
            ("allowed to the pod", segment(c, p, SYN)),
            ("denied from the pod", segment(p, Who::Stranger, SYN)),
            ("allowed from the pod", to_https),
        ];
        for (case, packet) in cases {
            let nothing = fastest_xdp(empty.as_fd(), &packet);
            for program in EARLY {
                // Each program judges only packets of its own direction.
                if case.ends_with("from the pod") != (program == Early::Sent) {
                    continue;
                }
                let fd = world.early_fd(program);
                let took = fastest_xdp(fd, &packet);
                report(family, &format!("{case}, {}", program.name()), took, nothing);
            }
        }
    }
}

fn report(family: IpVersion, case: &str, nanoseconds: u32, empty: u32) {
    println!("{family:?} {case}: {} ns (empty {empty})", nanoseconds.saturating_sub(empty));
}
