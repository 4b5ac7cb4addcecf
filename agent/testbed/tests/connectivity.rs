//! The testbed itself: without policies every host reaches every other, and probes distinguish deliberate faults.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests, which clippy cannot know")]

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use netpold_testbed::{
    Cni, Host, PodSpec, ProbeProtocol, ProbeResult, ReachProbe, TestNode, TestPod, link_nodes,
    probe_all, require_root, udp_frame,
};

const TIMEOUT: Duration = Duration::from_secs(1);
const PORTS: [u16; 2] = [80, 81];

/// Two linked nodes, one of each kind, with `each` pods on each of them.
fn cluster(each: usize) -> (Vec<TestNode>, Vec<TestPod>) {
    let nodes = vec![
        TestNode::new("ptp", Cni::Ptp, "10.1.1.0/24", "fd00:1:1::/64").unwrap(),
        TestNode::new("bridge", Cni::Bridge, "10.1.2.0/24", "fd00:1:2::/64").unwrap(),
    ];
    link_nodes(&nodes[0], &nodes[1]).unwrap();
    let mut pods = Vec::new();
    for node in &nodes {
        for number in 0..each {
            let name = format!("{}-{number}", node.name());
            pods.push(node.add_pod(&PodSpec::new("test", &name)).unwrap());
        }
    }
    (nodes, pods)
}

fn serve_all(host: &Host) {
    for protocol in ProbeProtocol::WITH_PORTS {
        for port in PORTS {
            host.serve(protocol, port).unwrap();
        }
    }
}

/// Probes of every protocol and port at an address.
fn all(from: &Host, to: IpAddr) -> Vec<ReachProbe<'_>> {
    let mut probes = vec![ReachProbe { from, protocol: ProbeProtocol::Icmp, to, port: 0 }];
    for protocol in ProbeProtocol::WITH_PORTS {
        probes.extend(PORTS.map(|port| ReachProbe { from, protocol, to, port }));
    }
    probes
}

#[track_caller]
fn assert_connected(probe: &ReachProbe<'_>, result: &ProbeResult, name: &str) {
    let expected = if probe.protocol == ProbeProtocol::Icmp { "" } else { name };
    assert_eq!(
        result,
        &ProbeResult::Connected(expected.into()),
        "{} to {name} ({}) {} {}",
        probe.from.name(),
        probe.to,
        probe.protocol,
        probe.port
    );
}

#[test]
fn everybody_reaches_everybody() {
    require_root!();
    let (nodes, pods) = cluster(4);
    let mut places: Vec<(&Host, Vec<IpAddr>)> = Vec::new();
    places.extend(pods.iter().map(|p| (&**p, p.addresses().to_vec())));
    places.extend(nodes.iter().map(|n| (&**n, n.addresses().to_vec())));
    places.iter().for_each(|(host, _)| serve_all(host));

    let mut probes = Vec::new();
    let mut names = Vec::new();
    for (from, _) in &places {
        for (to, addresses) in &places {
            let of_pair: Vec<_> = addresses.iter().flat_map(|a| all(from, *a)).collect();
            names.extend(std::iter::repeat_n(to.name(), of_pair.len()));
            probes.extend(of_pair);
        }
    }
    let start = Instant::now();
    let results = probe_all(&probes, TIMEOUT);
    eprintln!("{} probes in {:?}", probes.len(), start.elapsed());
    for ((probe, result), name) in probes.iter().zip(&results).zip(names) {
        assert_connected(probe, result, name);
    }
}

#[test]
fn refused_and_dropped_are_told_apart() {
    require_root!();
    let (nodes, pods) = cluster(2);
    serve_all(&pods[3]);
    for to in pods[3].addresses() {
        for protocol in ProbeProtocol::WITH_PORTS {
            let result = pods[0].probe(protocol, *to, 7, TIMEOUT);
            assert_eq!(result, ProbeResult::Refused, "{protocol} {to}, served on another port");
        }
    }
    for to in pods[1].addresses() {
        for protocol in ProbeProtocol::WITH_PORTS {
            let result = pods[0].probe(protocol, *to, 80, TIMEOUT);
            assert_eq!(result, ProbeResult::Refused, "{protocol} {to}, where nothing is served");
        }
    }
    // A node without forwarding is the simplest way to drop packets.
    nodes[0].netns().sysctl("ipv4/ip_forward", "0").unwrap();
    nodes[0].netns().sysctl("ipv6/conf/all/forwarding", "0").unwrap();
    let short = Duration::from_millis(400);
    let probes: Vec<_> = pods[3].addresses().iter().flat_map(|to| all(&pods[0], *to)).collect();
    let start = Instant::now();
    let results = probe_all(&probes, short);
    assert!(start.elapsed() < short * 3, "probes wait at the same time, not in turn");
    assert!(results.iter().all(ProbeResult::dropped), "{results:?}");
}

#[test]
fn flows_stay_open_and_notice_a_cut() {
    require_root!();
    let (nodes, pods) = cluster(1);
    serve_all(&pods[1]);
    for to in pods[1].addresses() {
        let forwarding = if to.is_ipv4() { "ipv4/ip_forward" } else { "ipv6/conf/all/forwarding" };
        for protocol in [ProbeProtocol::Tcp, ProbeProtocol::Udp] {
            let to = SocketAddr::new(*to, 80);
            let mut flow = pods[0].open_flow(protocol, to, TIMEOUT).unwrap();
            assert!(flow.ping(TIMEOUT) && flow.ping(TIMEOUT), "{protocol} {to} open");
            nodes[0].netns().sysctl(forwarding, "0").unwrap();
            assert!(!flow.ping(TIMEOUT / 4), "{protocol} {to} cut");
            nodes[0].netns().sysctl(forwarding, "1").unwrap();
            assert!(flow.ping(TIMEOUT * 4), "{protocol} {to} goes on");
        }
    }
}

#[test]
fn pods_change_address_and_go() {
    require_root!();
    let (nodes, mut pods) = cluster(2);
    for index in [1, 3] {
        serve_all(&pods[index]);
        let old = pods[index].addresses().to_vec();
        let new: Vec<IpAddr> = match index {
            1 => vec!["10.1.1.99".parse().unwrap(), "fd00:1:1::99".parse().unwrap()],
            _ => vec!["10.1.2.99".parse().unwrap(), "fd00:1:2::99".parse().unwrap()],
        };
        pods[index].change_addresses(&new).unwrap();
        for to in &new {
            for probe in all(&pods[0], *to) {
                let result = pods[0].probe(probe.protocol, *to, probe.port, TIMEOUT);
                assert_connected(&probe, &result, pods[index].name());
            }
        }
        for to in old {
            let result = pods[0].probe(ProbeProtocol::Tcp, to, 80, TIMEOUT / 4);
            assert!(!result.connected(), "{to}: {result}");
        }
    }
    let gone = pods.remove(1);
    let (interface, index) = (gone.host_interface().to_owned(), gone.host_ifindex());
    let path = gone.netns().path();
    gone.delete().unwrap();
    assert_eq!(nodes[0].ifindex(&interface).unwrap(), None);
    assert!(!path.exists());
    let spec = PodSpec::new("test", "next").ifindex(index);
    assert_eq!(nodes[0].add_pod(&spec).unwrap().host_ifindex(), index);
}

#[test]
fn frames_go_out_as_written() {
    require_root!();
    let (_nodes, pods) = cluster(1);
    let [from, to] = &pods[..] else { unreachable!() };
    for (spoofed, target) in [("10.9.9.9", to.ip4()), ("fd00:9::9", to.ip6())] {
        let target = SocketAddr::new(target.unwrap(), 4000);
        let socket = to.run(|| std::net::UdpSocket::bind(target)).unwrap().unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        let spoofed = SocketAddr::new(spoofed.parse().unwrap(), 5);
        let frame = udp_frame(from.gateway_mac(), from.mac(), spoofed, target, b"hello").unwrap();
        from.send_frame("eth0", &frame).unwrap();
        let mut buffer = [0; 64];
        let (length, seen) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], seen), (&b"hello"[..], spoofed));
    }
}

#[test]
fn nothing_is_left_behind() {
    require_root!();
    let path = {
        let node = TestNode::new("brief", Cni::Ptp, "10.1.1.0/24", "fd00:1:1::/64").unwrap();
        let path = node.netns().path();
        let panicked = std::thread::spawn(move || {
            let pod = node.add_pod(&PodSpec::new("test", "pod")).unwrap();
            pod.serve(ProbeProtocol::Tcp, 80).unwrap();
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        assert!(panicked.join().is_err());
        path
    };
    assert!(!path.exists());
}
