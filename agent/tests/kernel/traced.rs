//! The traced programs judge as the ordinary ones do, and tell of what they are asked for alone.

use aya::maps::{Array, MapData, PerCpuArray};
use netpold::object::TRACED_OBJECT;
use netpold_ebpf::reason::Reason;
use netpold_ebpf::trace::{Clause, TraceFilter, TraceRecord};
use netpold_testkit::frames::{ACK, FAMILIES, SYN, TCP, Who, frame, ip, tcp};

use super::corpus::replay;
use super::world::World;

/// The programs that judge pods: the others' are never attached.
const PODS: [&str; 2] = ["netpold_ingress", "netpold_egress"];

fn traced() -> Option<World> {
    super::world()?;
    Some(World::of(TRACED_OBJECT, &PODS, 1024))
}

/// From now on these packets are told of.
fn ask(world: &mut World, clauses: &[Clause]) {
    let mut all = TraceFilter {
        until: u32::MAX / 4,
        second: 1000,
        burst: u32::MAX,
        count: clauses.len() as u32,
        clauses: Default::default(),
    };
    // The test knows no jiffies: half of all that can be told apart from now are before this.
    all.until = all.until.wrapping_add(world_jiffies(world));
    all.clauses[..clauses.len()].copy_from_slice(clauses);
    let map = world.bpf.map_mut("TRACE_FILTER").expect("TRACE_FILTER");
    let mut map: Array<&mut MapData, TraceFilter> = map.try_into().expect("TRACE_FILTER");
    map.set(0, all, 0).expect("TRACE_FILTER");
}

fn world_jiffies(world: &mut World) -> u32 {
    let clock = super::program(&mut world.bpf, "netpold_clock");
    if clock.fd().is_err() {
        clock.load().expect("netpold_clock");
    }
    let clock = std::os::fd::AsFd::as_fd(clock.fd().expect("netpold_clock"));
    netpold::bpf::test_run::jiffies(clock).expect("jiffies")
}

fn matched(world: &World) -> u64 {
    let records: PerCpuArray<&MapData, TraceRecord> =
        world.bpf.map("TRACE").expect("TRACE").try_into().expect("TRACE");
    records.get(&0, 0).expect("TRACE").iter().map(|record| record.matched).sum()
}

#[test]
fn traced_programs_and_host_agree_on_the_fuzz_corpus() {
    let Some(mut world) = traced() else { return };
    ask(&mut world, &[Clause::default()]);
    let packets = replay(&mut world);
    assert!(matched(&world) > packets / 2, "of {packets} packets {}", matched(&world));
}

/// Whoever is not traced pays nothing.
#[test]
fn ordinary_programs_have_nothing_of_it() {
    let has =
        |object: &[u8], name: &str| object.windows(name.len()).any(|it| it == name.as_bytes());
    for name in ["netpold_trace_note", "AYA_LOGS"] {
        assert!(has(TRACED_OBJECT, name), "{name}");
        assert!(!has(netpold::object::OBJECT, name), "{name}");
    }
}

#[test]
fn what_is_not_asked_for_is_not_told_of() {
    let Some(mut world) = traced() else { return };
    for family in FAMILIES {
        world.next_pod();
        let segment = |ports: (u16, u16), flags| {
            frame(&ip(family, Who::Client, Who::Pod, TCP, &tcp(ports.0, ports.1, flags)))
        };
        let before = matched(&world);
        ask(&mut world, &[Clause { local_port: 81, ..Clause::default() }]);
        assert_eq!(world.ingress(&segment((4000, 80), SYN)), Reason::Allowed);
        assert_eq!(matched(&world), before);
        assert_eq!(world.ingress(&segment((4000, 81), SYN)), Reason::Policy);
        assert_eq!(matched(&world), before + 1);
        ask(&mut world, &[]);
        assert_eq!(world.ingress(&segment((4000, 80), ACK)), Reason::Allowed);
        assert_eq!(world.ingress(&segment((4000, 81), SYN)), Reason::Policy);
        assert_eq!(matched(&world), before + 1);
    }
}
