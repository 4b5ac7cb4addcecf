//! Answers over TCP: lookups of the C library, answered by the tests' resolver or by dnsmasq, and connections during
//! which the rules change.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::ops::RangeInclusive;
use std::process::Stdio;
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{MOMENT, PATIENCE, TestCluster, eventually};
use netpold_testbed::{Cni, KillOnDrop, ProbeProtocol, require_root, skip};
use netpold_testkit::names::{query, wire};
use netpold_testkit::streams::framed;
use nix::sys::signal::Signal;

use super::resolver::{DNS, Zone};
use super::{
    add_clients, cluster_with_newcomers, enforce, get_hosts, look_up, names, passes, race,
};

/// The C library repeats both questions in one TCP connection after a truncated answer. Names open also while no agent
/// runs, and with an answer of one byte per segment.
#[test]
fn lookups_by_tcp_open_both_families() {
    require_root!();
    let (mut cluster, zone) = cluster_with_newcomers(&["*.example.com"]);
    let server = cluster.pod("server").addresses().to_vec();
    let dns = cluster.pod("dns").addresses().to_vec();
    // An answer over UDP has no address.
    for (name, at) in [("large-one.example.com", server[0]), ("large-two.example.com", server[1])] {
        zone.lock().unwrap().insert(name.into(), vec![at]);
    }
    assert!(look_up(cluster.pod("client"), dns[0], 1, "large-one.example.com"));
    assert!(!passes(&cluster, "client", ProbeProtocol::Tcp, server[0], MOMENT), "truncated");
    let found = get_hosts(&cluster, "client", dns[0], "timeout:5", "large-one");
    assert!(found.contains(&server[0].to_string()), "{found}");
    assert!(passes(&cluster, "client", ProbeProtocol::Tcp, server[0], PATIENCE), "{found}");
    assert!(!passes(&cluster, "other", ProbeProtocol::Tcp, server[0], MOMENT), "another pod");
    cluster.agents[0].end(Signal::SIGKILL);
    let found = get_hosts(&cluster, "client", dns[1], "timeout:5", "large-two");
    assert!(found.contains(&server[1].to_string()), "{found}");
    assert!(
        passes(&cluster, "client", ProbeProtocol::Tcp, server[1], PATIENCE),
        "without an agent"
    );
    for (resolver, at) in dns.iter().zip(&server) {
        let opens = |attempt| {
            let name = format!("split-{attempt}");
            zone.lock().unwrap().insert(format!("{name}.example.com"), vec![*at]);
            let found = get_hosts(&cluster, "other", *resolver, "timeout:5 use-vc", &name);
            assert!(found.contains(&at.to_string()), "{found}");
            passes(&cluster, "other", ProbeProtocol::Tcp, *at, MOMENT)
        };
        // Reading ends if two CPUs process the connection at the same time.
        assert!((0..3).any(opens), "{at}");
    }
}

/// A resolver that is common on nodes, queried by the C library: over UDP, and over TCP alone (`use-vc`).
#[test]
fn answers_of_dnsmasq_open_addresses_by_udp_and_by_tcp() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "dns"]);
    let (server, dns) = (addresses(&cluster, "server"), addresses(&cluster, "dns"));
    let hosts = cluster.directory.path().join("hosts");
    let others = (1..=40).map(|n| format!("198.51.100.{n} many.example.com\n"));
    std::fs::write(
        &hosts,
        others.chain([format!("{} many.example.com\n", server[0])]).collect::<String>(),
    )
    .unwrap();
    let mut dnsmasq = cluster.pod("dns").command("dnsmasq").unwrap();
    dnsmasq
        .args(["--keep-in-foreground", "--conf-file=/dev/null", "--user=root", "--pid-file="])
        .args([
            "--no-hosts",
            "--no-resolv",
            "--local-ttl=30",
            "--cname=alias.example.com,large.example.com",
        ])
        .arg(format!("--addn-hosts={}", hosts.display()))
        .arg(format!("--host-record=large.example.com,{}", server[0]))
        .arg(format!("--host-record=small.example.com,{}", server[1]))
        .stderr(Stdio::null());
    let _dnsmasq = match dnsmasq.spawn() {
        Ok(dnsmasq) => KillOnDrop(dnsmasq),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return skip("answers_of_dnsmasq_open_addresses_by_udp_and_by_tcp", "no dnsmasq");
        }
        Err(error) => panic!("dnsmasq: {error}"),
    };
    enforce(&mut cluster, &["*.example.com"], &[]);
    add_clients(&mut cluster);
    let listens = || {
        let at = |at: &IpAddr| TcpStream::connect_timeout(&(*at, DNS).into(), MOMENT).is_ok();
        cluster.pod("server").run(|| dns.iter().all(at)).unwrap()
    };
    eventually(PATIENCE, listens, || "dnsmasq does not listen".into());
    let opens = |from: &str, resolver: IpAddr, options: &str, name: &str, to: IpAddr| {
        assert!(!passes(&cluster, from, ProbeProtocol::Tcp, to, MOMENT), "{from} to {to} before");
        let found = get_hosts(&cluster, from, resolver, options, name);
        assert!(found.contains(&to.to_string()), "{options}: {found}");
        assert!(
            passes(&cluster, from, ProbeProtocol::Tcp, to, PATIENCE),
            "{options}: {from} to {to}"
        );
    };
    opens("client", dns[0], "timeout:5 use-vc", "alias", server[0]);
    opens("client", dns[1], "timeout:5", "small", server[1]);
    // More than 512 bytes: the answer over UDP is truncated, and has no address.
    opens("other", dns[1], "timeout:5", "many", server[0]);
    opens("other", dns[0], "timeout:5 use-vc", "small", server[1]);
}

fn addresses(cluster: &TestCluster, pod: &str) -> Vec<IpAddr> {
    cluster.pod(pod).addresses().to_vec()
}

/// As over UDP, each connection begins as soon as the answer is read.
#[test]
fn no_connection_is_faster_than_its_name_over_tcp() {
    require_root!();
    let (cluster, zone) = cluster_with_newcomers(&["*.race.example"]);
    const PAIRS: u16 = 300;
    let dns = addresses(&cluster, "dns");
    race(&cluster, &zone, PAIRS, |n, name| {
        let family = usize::from(n / (PAIRS / 2));
        if n % (PAIRS / 2) == 0 {
            // Each lookup has a port of its own, unaffected by earlier lookups.
            let ports = ["40000 40499", "40500 40999"][family];
            std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", ports).unwrap();
        }
        asks_by_tcp(dns[family], n, name)
    });
}

/// Growth of the flow tables does not end the reading of connections: while the programs of both generations run, no
/// lookup is missed by both or ended by both.
#[test]
fn lookups_by_tcp_go_on_while_flow_tables_grow() {
    require_root!();
    let (cluster, zone) = cluster_with_newcomers(&["*.race.example"]);
    /// Flows of one pod that fill more than a quarter of a node's initial IPv4 table, of 65,536.
    const FLOWS: RangeInclusive<u16> = 20_000..=37_500;
    const PAIRS: u16 = 600;
    let dns = addresses(&cluster, "dns")[0];
    let fill = || {
        for port in FLOWS {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
            socket.send_to(b"flow", (dns, DNS)).unwrap();
        }
    };
    let grows = || cluster.agents[0].bpffs().join("outgrown").exists();
    race(&cluster, &zone, PAIRS, |n, name| {
        if n == 0 {
            std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 41999").unwrap();
        } else if n == 50 {
            cluster.pod("other").run(fill).unwrap();
            let deadline = Instant::now() + 2 * PATIENCE + Duration::from_mins(1);
            while !grows() {
                assert!(Instant::now() < deadline, "the tables do not grow");
                std::thread::sleep(Duration::from_millis(1));
            }
        } else if n > 350 {
            // Continue until the former programs are detached.
            std::thread::sleep(Duration::from_millis(5));
        }
        asks_by_tcp(dns, n, name)
    });
    let has_grown = || cluster.agents[0].log().contains("migrated flows of other tables");
    eventually(PATIENCE, has_grown, || cluster.agents[0].log());
}

/// Looks up a name in a TCP connection of its own; returns whether an answer arrived.
fn asks_by_tcp(resolver: IpAddr, id: u16, name: &str) -> bool {
    let resolver = SocketAddr::from((resolver, DNS));
    let mut stream = TcpStream::connect_timeout(&resolver, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&framed(&query(id, &wire(name)))).unwrap();
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut message = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut message).is_ok()
}

/// A lookup by TCP of which the first half of the answer has arrived.
struct Halved<'a> {
    zone: &'a Zone,
    name: String,
    stream: TcpStream,
    length: usize,
}

impl<'a> Halved<'a> {
    /// Looks up a name of an address in a pod.
    fn begin(cluster: &TestCluster, zone: &'a Zone, (pod, name): (&str, &str), at: IpAddr) -> Self {
        let (name, kind) =
            (format!("halved-{name}.example.com"), if at.is_ipv4() { 1 } else { 28 });
        zone.lock().unwrap().insert(name.clone(), vec![at]);
        let resolver = SocketAddr::from((addresses(cluster, "dns")[0], DNS));
        let connect = || TcpStream::connect_timeout(&resolver, PATIENCE).unwrap();
        let mut stream = cluster.pod(pod).run(connect).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut question = query(3, &wire(&name));
        let at = question.len() - 4;
        question[at..][..2].copy_from_slice(&u16::to_be_bytes(kind));
        stream.write_all(&framed(&question)).unwrap();
        let mut length = [0; 2];
        stream.read_exact(&mut length).unwrap();
        Self { zone, name, stream, length: u16::from_be_bytes(length).into() }
    }

    /// Receives the rest of the answer.
    fn end(mut self) {
        self.zone.lock().unwrap().remove(&self.name);
        let mut message = vec![0; self.length];
        self.stream.read_exact(&mut message).unwrap();
        assert_ne!(message[7], 0, "the answer has records");
    }
}

/// While a pod's rules have no names, the programs do not read its packets. A connection from that time is not read
/// after the rules have names again, within 20 s or later, whether the agent runs or starts with the names. A lookup
/// continues during other edits and a restart.
#[test]
fn a_policy_that_loses_and_regains_names_reads_no_connection_on() {
    require_root!();
    let (mut cluster, zone) = cluster_with_newcomers(&["*.example.com"]);
    let (server, dns) = (addresses(&cluster, "server"), addresses(&cluster, "dns"));
    let with = |cluster: &mut TestCluster, patterns: &[&str]| {
        cluster.objects = ["client", "other", "third"].map(|app| names(app, &dns, patterns)).into();
    };
    with(&mut cluster, &["*.example.com"]);
    cluster.add(0, "third");
    cluster.enforce();
    let edit = |cluster: &mut TestCluster| {
        with(cluster, &["www.example.org", "*.example.com"]);
        cluster.enforce();
    };
    goes_on_over(&mut cluster, &zone, "edit", server[0], edit);
    let restart = |cluster: &mut TestCluster| {
        cluster.agents[0].end(Signal::SIGKILL);
        cluster.restart(0);
    };
    goes_on_over(&mut cluster, &zone, "restart", server[1], restart);
    // The agent runs while one pod regains names, and starts with those of the other one.
    let lost = Halved::begin(&cluster, &zone, ("other", "lost"), server[0]);
    let restarted = Halved::begin(&cluster, &zone, ("third", "restarted"), server[0]);
    cluster.objects.clear();
    cluster.enforce();
    cluster.objects = vec![names("other", &dns, &["*.example.com"])];
    cluster.enforce();
    lost.end();
    assert!(!passes(&cluster, "other", ProbeProtocol::Tcp, server[0], MOMENT), "lost and regained");
    cluster.agents[0].end(Signal::SIGKILL);
    with(&mut cluster, &["*.example.com"]);
    cluster.write();
    cluster.restart(0);
    restarted.end();
    assert!(
        !passes(&cluster, "third", ProbeProtocol::Tcp, server[0], MOMENT),
        "regained at a start"
    );
}

/// Asserts that a change ends no lookup.
fn goes_on_over(
    cluster: &mut TestCluster,
    zone: &Zone,
    what: &str,
    to: IpAddr,
    change: impl Fn(&mut TestCluster),
) {
    for attempt in 0..5 {
        let begun = Instant::now();
        let halved = Halved::begin(cluster, zone, ("client", &format!("{what}-{attempt}")), to);
        change(cluster);
        halved.end();
        // An answer counts within 10 s.
        if begun.elapsed() < Duration::from_secs(9) {
            assert!(passes(cluster, "client", ProbeProtocol::Tcp, to, PATIENCE), "{what}");
            return;
        }
    }
    panic!("{what}: each attempt took longer than an answer counts");
}
