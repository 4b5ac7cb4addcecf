//! Leader election: only one of several controllers writes.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::controller::world::{USER, World, wait};

/// Longest takeover: a Lease expires after 15 s and is checked every 2 s; the rest is for slow machines.
const TAKEOVER: Duration = Duration::from_secs(45);

fn holder(world: &World) -> String {
    let lease = world.server.get("lease", "netpold-system", "netpold-controller").unwrap();
    let lease = lease.unwrap_or_default();
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

/// Returns the number of writes by verb and path.
fn writes(world: &World) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for request in world.server.requests(USER).unwrap() {
        let written = request.resource.starts_with("networkpolicystatuses")
            && !["list", "watch"].contains(&&*request.verb);
        if written {
            assert!(request.code < 300, "{request:?}");
            let path = request.uri.split('?').next().unwrap_or_default();
            *counts.entry(format!("{} {path}", request.verb)).or_default() += 1;
        }
    }
    counts
}

#[test]
fn another_controller_takes_over_from_a_killed_leader() {
    let Some(world) = World::new("another_controller_takes_over_from_a_killed_leader") else {
        return;
    };
    world.node("n1");
    world.pod("server", "server", "n1");
    world.report("n1", 0, &[]);
    let names = ["one", "two"];
    let mut controllers = names.map(|name| world.start(name, &[]));
    wait("a leader", || !holder(&world).is_empty());
    world.policy("server", "server", 1);
    world.becomes("server", [1, 0, 0], ["False", "Pending"]);
    let first = holder(&world);
    let leader = names.iter().position(|name| *name == first).unwrap();

    controllers[leader].end(Signal::SIGKILL);
    let killed = Instant::now();
    world.policy("late", "server", 1);
    world.report("n1", 0, &[("server", true, ""), ("late", true, "")]);
    world.becomes("late", [1, 1, 0], ["True", "AllNodes"]);
    assert!(killed.elapsed() < TAKEOVER, "{:?}", killed.elapsed());
    println!("taken over after {:?}", killed.elapsed());
    world.becomes("server", [1, 1, 0], ["True", "AllNodes"]);
    assert_eq!(holder(&world), names[1 - leader]);

    // A controller releases the Lease on SIGTERM, so the successor does not wait for its expiry.
    controllers[leader] = world.start("three", &[]);
    wait("the third controller in sync", || {
        controllers[leader].log().contains("every kind is in sync")
    });
    controllers[1 - leader].end(Signal::SIGTERM);
    wait("led by the third", || holder(&world) == "three");
    assert!(controllers[1 - leader].log().contains("released lease"));
    world.report("n1", 0, &[("server", true, "")]);
    world.becomes("late", [1, 0, 0], ["False", "Pending"]);

    // The new leader does not rewrite statuses that are unchanged.
    let counts = writes(&world);
    let of = |end: &str| {
        counts.iter().filter(|(path, _)| path.ends_with(end)).map(|(_, n)| n).sum::<usize>()
    };
    assert_eq!(of("networkpolicystatuses"), 2, "each was created once: {counts:?}");
    assert_eq!(of("/server/status"), 2, "Pending, and in force: {counts:?}");
    assert_eq!(of("/late/status"), 2, "in force at once, and Pending again: {counts:?}");
}

/// A leader is stopped until another controller takes over; it must not write when it resumes.
#[test]
fn a_stopped_leader_writes_nothing_after_it_resumes() {
    let Some(world) = World::new("a_stopped_leader_writes_nothing_after_it_resumes") else {
        return;
    };
    world.node("n1");
    world.pod("server", "server", "n1");
    let first = world.start("one", &[]);
    wait("led by the first", || holder(&world) == "one");
    world.policy("server", "server", 1);
    world.becomes("server", [1, 0, 0], ["False", "Pending"]);
    first.signal(Signal::SIGSTOP);
    let _second = world.start("two", &[]);
    wait("led by the second", || holder(&world) == "two");
    first.signal(Signal::SIGCONT);
    world.report("n1", 0, &[("server", true, "")]);
    world.becomes("server", [1, 1, 0], ["True", "AllNodes"]);
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(holder(&world), "two");
    let refused = world.server.requests(USER).unwrap().into_iter();
    let refused: Vec<_> =
        refused.filter(|it| it.code == 409 && it.resource.contains("networkpolicy")).collect();
    assert!(refused.is_empty(), "{refused:?}");
}

fn answer(port: u16, path: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return String::new() };
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let mut response = String::new();
    let done = stream.write_all(request.as_bytes());
    let _ = done.and_then(|()| stream.read_to_string(&mut response));
    response
}

#[test]
fn a_controller_serves_health_and_metrics() {
    let Some(world) = World::new("a_controller_serves_health_and_metrics") else { return };
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let _controller = world.start("one", &["--listen", &format!("127.0.0.1:{port}")]);
    world.policy("server", "server", 1);
    wait("ready", || answer(port, "/readyz").starts_with("HTTP/1.1 200"));
    assert!(answer(port, "/livez").starts_with("HTTP/1.1 200"));
    wait("written", || {
        let metrics = answer(port, "/metrics");
        let has = |line: &str| metrics.lines().any(|it| it.starts_with(line));
        has("netpold_controller_leader 1")
            && has("netpold_controller_policies 1")
            && has("netpold_controller_status_writes_total ")
            && !has("netpold_controller_status_writes_total 0")
    });
}
