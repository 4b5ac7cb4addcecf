//! The traced programs: same verdicts as the ordinary ones, and lines only about requested packets.

use std::os::fd::AsFd;

use aya::maps::{Array, MapData, PerCpuArray};
use netpold_dataplane::bpf::test_run::{self, Run};
use netpold_dataplane::object::TRACED_OBJECT;
use netpold_ebpf::reason::Reason;
use netpold_ebpf::trace::{Clause, TraceFilter, TraceRecord};
use netpold_testkit::frames::{ACK, FAMILIES, SYN, TCP, Who, frame, ip, tcp};

use super::corpus::replay;
use super::world::World;

/// Programs that judge pods: the other traced programs are never attached.
const PODS: [&str; 2] = ["netpold_ingress", "netpold_egress"];

fn traced() -> Option<World> {
    super::world()?;
    Some(World::of(TRACED_OBJECT, &PODS, 1024))
}

/// Starts a trace of packets that match the clauses.
fn ask(world: &mut World, clauses: &[Clause]) {
    ask_for(world, clauses, u32::MAX);
}

/// Starts a trace of packets that match the clauses, at most `burst` per second.
fn ask_for(world: &mut World, clauses: &[Clause], burst: u32) {
    let mut all = TraceFilter {
        until: u32::MAX / 4,
        second: 1000,
        burst,
        count: clauses.len() as u32,
        clauses: Default::default(),
    };
    // The end lies a quarter of the range of jiffies ahead, below the half at which comparisons wrap.
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
    test_run::jiffies(clock.fd().expect("netpold_clock").as_fd()).expect("jiffies")
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

/// Without a trace, the programs contain no tracing code.
#[test]
fn ordinary_programs_have_nothing_of_it() {
    let has =
        |object: &[u8], name: &str| object.windows(name.len()).any(|it| it == name.as_bytes());
    for name in ["netpold_trace_step", "AYA_LOGS"] {
        assert!(has(TRACED_OBJECT, name), "{name}");
        assert!(!has(netpold_dataplane::object::OBJECT, name), "{name}");
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

/// Measures a packet midstream in a flow: `cargo test -p netpold --test node traced_packet -- --ignored
/// --nocapture`.
#[test]
#[ignore = "a measurement, not a test"]
fn nanoseconds_per_traced_packet() {
    let Some(mut ordinary) = super::world() else { return };
    let mut traced = World::of(TRACED_OBJECT, &PODS, 1024);
    let segment =
        |flags| frame(&ip(FAMILIES[0], Who::Client, Who::Pod, TCP, &tcp(4000, 80, flags)));
    let measure = |world: &mut World, what: &str, repeat: u32| {
        let fd = super::program(&mut world.bpf, "netpold_ingress").fd().expect("loaded");
        let segment = segment(ACK);
        let run = Run { repeat, ..Run::once(&segment) };
        let all = (0..if repeat < 100 { 1 } else { 20 })
            .map(|_| test_run::run(fd.as_fd(), &run).expect("a run").nanoseconds);
        println!("{what}: {} ns", all.min().unwrap_or_default());
    };
    for world in [&mut ordinary, &mut traced] {
        world.next_pod();
        let _ = world.ingress(&segment(SYN));
    }
    measure(&mut ordinary, "ordinary", 100_000);
    measure(&mut traced, "traced, no time", 100_000);
    ask(&mut traced, &[Clause { local_port: 81, ..Clause::default() }]);
    measure(&mut traced, "traced, not asked for", 100_000);
    ask_for(&mut traced, &[Clause::default()], 0);
    measure(&mut traced, "traced, not told", 100_000);
    ask(&mut traced, &[Clause::default()]);
    measure(&mut traced, "told", 40);
}
