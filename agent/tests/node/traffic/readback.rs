//! Repair of changes that other processes make in the kernel.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aya::maps::{MapData, MapInfo};
use aya::programs::loaded_programs;
use netpold_dataplane::bpf::mmap::MappedArray;
use netpold_dataplane::ipv6_hosts::Ipv6Hosts;
use netpold_ebpf::layout::{ENDPOINT_SLOTS, Endpoint, LAYOUT_VERSION, PORTS_EVERY, Row, Settings};
use netpold_testbed::cluster::{ENFORCED, TestCluster, remount};
use netpold_testbed::{Cni, require_root};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::traffic::kernel;
use crate::traffic::load::guarded;

/// Returns a cluster with a guarded server and a readback every second.
fn watched(cni: Cni, prepare: fn(&mut Command)) -> TestCluster {
    let mut cluster = guarded(cni);
    cluster.arguments = ["--readback", "1"].map(str::to_owned).to_vec();
    cluster.prepare = prepare;
    cluster.enforce();
    cluster
}

fn repaired(status: &Value, kind: &str) -> u64 {
    status["repaired"][kind].as_u64().unwrap_or_default()
}

/// Changes the kernel's state, and waits until the status counts `least` more repairs of a kind.
#[track_caller]
fn tamper(cluster: &mut TestCluster, kind: &str, least: u64, act: impl FnOnce(&TestCluster)) {
    let before = repaired(&cluster.agents[0].status().unwrap(), kind);
    act(cluster);
    let enough = |status: &Value| repaired(status, kind) >= before + least;
    cluster.agents[0].wait_for("aware of it", ENFORCED, enough).unwrap();
    cluster.denied("stranger", "server");
    cluster.reaches("friend", "server");
}

pub(crate) fn pinned(cluster: &TestCluster, name: &str) -> MapData {
    let version = format!("v{LAYOUT_VERSION}");
    MapData::from_pin(cluster.agents[0].bpffs().join(version).join(name)).unwrap()
}

/// Returns an unpinned map of the agent's programs, found as by bpftool.
fn unpinned(cluster: &TestCluster, name: &str) -> u32 {
    let endpoints = pinned(cluster, "ENDPOINTS").info().unwrap().id();
    let programs = loaded_programs().filter_map(Result::ok);
    let mut maps = programs
        .filter_map(|program| program.map_ids().ok().flatten())
        .filter(|maps| maps.contains(&endpoints))
        .flatten();
    maps.find(|id| MapInfo::from_id(*id).is_ok_and(|map| map.name_as_str() == Some(name))).unwrap()
}

/// Removes the isolation of the server.
fn free_the_server(cluster: &TestCluster) {
    let endpoints = MappedArray::<Endpoint>::flat(&pinned(cluster, "ENDPOINTS")).unwrap();
    let index = cluster.pod("server").host_ifindex();
    let slots = 0..ENDPOINT_SLOTS;
    let slot = slots.into_iter().find(|slot| endpoints.read(*slot).unwrap().ifindex == index);
    let rows = std::mem::offset_of!(Endpoint, rows);
    endpoints.store_u64(slot.unwrap(), rows, 0).unwrap();
}

/// Makes every row allow everything to all classes below 256.
fn allow_everything(cluster: &TestCluster) {
    let rows = MapInfo::from_id(unpinned(cluster, "ROWS")).unwrap();
    let rows = MappedArray::<Row>::from_fd(rows.fd().unwrap().as_fd(), 8).unwrap();
    for row in 0..8 {
        rows.write_element(row, &Row { first: [PORTS_EVERY; 256], ..Row::EMPTY }).unwrap();
    }
}

/// Gives the stranger the friend's class.
fn disguise(cluster: &TestCluster) {
    let [buckets, filter] = ["HOSTS6", "HOSTS6_FILTER"].map(|name| unpinned(cluster, name));
    let [buckets, filter] = [buckets, filter].map(|id| MapData::from_id(id).unwrap());
    let hosts = Ipv6Hosts::open_maps(&buckets, &filter).unwrap();
    let settings = MappedArray::<Settings>::new(&pinned(cluster, "SETTINGS")).unwrap();
    let settings = settings.read(0).unwrap();
    let address = |pod: &str| match cluster.pod(pod).ip6() {
        Some(IpAddr::V6(address)) => address,
        _ => panic!("{pod} has no IPv6 address"),
    };
    let class = hosts.get(&settings, address("friend")).unwrap().unwrap();
    // The second address belongs to no object.
    for address in [address("stranger"), [0xfd; 16].into()] {
        assert_eq!(hosts.set(&settings, address, class).unwrap(), Ok(()));
    }
}

/// Hides all IPv6 addresses from the programs.
fn hide_addresses(cluster: &TestCluster) {
    let filter = MapData::from_id(unpinned(cluster, "HOSTS6_FILTER")).unwrap();
    let filter = MappedArray::<u64>::new(&filter).unwrap();
    filter.words().unwrap().iter().for_each(|word| word.store(0, Ordering::Relaxed));
}

fn forget_flows(cluster: &TestCluster) {
    let settings = MappedArray::<Settings>::new(&pinned(cluster, "SETTINGS")).unwrap();
    settings.store_u32(0, std::mem::offset_of!(Settings, timeouts), 0).unwrap();
    settings.store_u32(0, std::mem::offset_of!(Settings, handover), 1).unwrap();
}

#[test]
fn changed_entries_are_put_right() {
    require_root!();
    let mut cluster = watched(Cni::Ptp, |_| ());
    std::thread::sleep(Duration::from_millis(2500));
    let status = cluster.agents[0].status().unwrap();
    assert_eq!(repaired(&status, "entries"), 0, "nobody has changed anything yet: {status}");
    tamper(&mut cluster, "entries", 1, free_the_server);
    // All columns of a row, except those of retired classes.
    tamper(&mut cluster, "entries", 200, allow_everything);
    tamper(&mut cluster, "entries", 2, disguise);
    tamper(&mut cluster, "entries", 1, hide_addresses);
    tamper(&mut cluster, "entries", 1, forget_flows);
    let log = cluster.agents[0].log();
    assert!(log.contains("repaired table: contents differed from the desired state"), "{log}");
}

#[test]
fn changed_rules_for_fragments_are_put_right() {
    require_root!();
    let mut cluster = watched(Cni::Bridge, |_| ());
    std::thread::sleep(Duration::from_millis(2500));
    let status = cluster.agents[0].status().unwrap();
    assert_eq!(repaired(&status, "nftables"), 0, "nobody has changed anything yet: {status}");
    for change in [
        "delete table ip netpold-fragments",
        "flush chain ip6 netpold-fragments prerouting",
        "add element ip netpold-fragments node-devices { cni0 }",
    ] {
        tamper(&mut cluster, "nftables", 1, |cluster| {
            cluster.nodes[0].netns().nft(change).unwrap();
        });
    }
}

/// Unmounts the file system of the pins: programs stay, pins are restored, and enforcement outlives the agent again.
#[test]
fn pins_that_are_gone_come_back() {
    require_root!();
    let mut cluster = watched(Cni::Ptp, |_| ());
    let bpffs = cluster.agents[0].bpffs();
    tamper(&mut cluster, "pins", 8, |_| {
        umount2(&bpffs, MntFlags::MNT_DETACH).unwrap();
    });
    let pinned_again = |status: &Value| repaired(status, "programs") >= 3;
    cluster.agents[0].wait_for("three pods' links pinned again", ENFORCED, pinned_again).unwrap();
    cluster.agents[0].end(Signal::SIGKILL);
    cluster.denied("stranger", "server");
    cluster.reaches("friend", "server");
    cluster.restart(0);
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
}

/// Makes pins impossible: a new pod is still judged, and the missing pin is reported, then created later.
#[test]
fn a_read_only_bpffs_leaves_no_new_pod_open() {
    require_root!();
    let mut cluster = watched(Cni::Ptp, |_| ());
    let bpffs = cluster.agents[0].bpffs();
    remount(&bpffs, "ro");
    cluster.add(0, "late");
    cluster.policy("late", netpold_testbed::cluster::isolate("late", &["Ingress", "Egress"]));
    cluster.write();
    let index = cluster.pod("late").host_ifindex();
    let told = |status: &Value| {
        let problem = format!("interface {index}: ");
        status["endpoints"].to_string().contains("\"late\"")
            && status["problems"].as_array().is_some_and(|all| {
                let mut all = all.iter().filter_map(Value::as_str);
                all.any(|p| p.starts_with(&problem) && p.contains("but not pinned"))
            })
    };
    cluster.agents[0].wait_for("aware of it", ENFORCED, told).unwrap();
    cluster.denied("stranger", "late");
    cluster.reaches("friend", "server");
    remount(&bpffs, "rw");
    cluster.wait();
    cluster.agents[0].end(Signal::SIGKILL);
    cluster.denied("stranger", "late");
}

#[test]
fn a_qdisc_that_is_deleted_comes_back() {
    require_root!();
    let mut cluster = watched(Cni::Bridge, kernel::without_tcx);
    tamper(&mut cluster, "programs", 1, |cluster| {
        let link = cluster.pod("server").host_interface().to_owned();
        let mut tc = cluster.nodes[0].command("tc").unwrap();
        let done = tc.args(["qdisc", "del", "dev", &link, "clsact"]).status().unwrap();
        assert!(done.success());
        std::thread::sleep(Duration::from_millis(1));
    });
}
