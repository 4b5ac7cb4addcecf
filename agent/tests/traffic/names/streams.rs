//! Answers over TCP: lookups of the C library, by the tests' resolver and by dnsmasq, and connections that a change of the
//! rules meets.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{Cluster, MOMENT, PATIENCE, eventually};
use netpold_testbed::{Cni, KillOnDrop, Protocol, require_root, skip};
use netpold_testkit::names::{query, wire};
use netpold_testkit::streams::framed;
use nix::sys::signal::Signal;

use super::resolver::{DNS, Zone};
use super::{cluster, enforce, get_hosts, look_up, names, passes};

/// The C library meets a truncated answer, and asks again by TCP: both questions in one connection. While no agent runs,
/// too.
#[test]
fn lookups_by_tcp_open_both_families() {
    require_root!();
    let (mut cluster, zone) = cluster(Cni::Ptp, &["*.example.com"], &[]);
    let server = cluster.pod("server").addresses().to_vec();
    let dns = cluster.pod("dns").addresses().to_vec();
    // An answer over UDP has no address.
    for (name, at) in [("large-one.example.com", server[0]), ("large-two.example.com", server[1])] {
        zone.lock().unwrap().insert(name.into(), vec![at]);
    }
    assert!(look_up(cluster.pod("client"), dns[0], 1, "large-one.example.com"));
    assert!(!passes(&cluster, "client", Protocol::Tcp, server[0], MOMENT), "truncated");
    let found = get_hosts(&cluster, "client", dns[0], "timeout:5", "large-one");
    assert!(found.contains(&server[0].to_string()), "{found}");
    assert!(passes(&cluster, "client", Protocol::Tcp, server[0], PATIENCE), "{found}");
    assert!(!passes(&cluster, "other", Protocol::Tcp, server[0], MOMENT), "another pod");
    cluster.agents[0].end(Signal::SIGKILL);
    let found = get_hosts(&cluster, "client", dns[1], "timeout:5", "large-two");
    assert!(found.contains(&server[1].to_string()), "{found}");
    assert!(passes(&cluster, "client", Protocol::Tcp, server[1], PATIENCE), "without an agent");
}

/// A resolver as nodes have it, asked by the C library: over UDP, and over TCP alone (`use-vc`).
#[test]
fn answers_of_dnsmasq_open_addresses_by_udp_and_by_tcp() {
    require_root!();
    let mut cluster = Cluster::one(Cni::Ptp).with_pods(&["client", "other", "server", "dns"]);
    let (server, dns) = (addresses(&cluster, "server"), addresses(&cluster, "dns"));
    let mut dnsmasq = cluster.pod("dns").command("dnsmasq").unwrap();
    dnsmasq
        .args(["--keep-in-foreground", "--conf-file=/dev/null", "--user=root", "--pid-file="])
        .args([
            "--no-hosts",
            "--no-resolv",
            "--local-ttl=30",
            "--cname=alias.example.com,large.example.com",
        ])
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
    let listens = || {
        let at = |at: &IpAddr| TcpStream::connect_timeout(&(*at, DNS).into(), MOMENT).is_ok();
        cluster.pod("client").run(|| dns.iter().all(at)).unwrap()
    };
    eventually(PATIENCE, listens, || "dnsmasq does not listen".into());
    let opens = |from: &str, resolver: IpAddr, options: &str, name: &str, to: IpAddr| {
        assert!(!passes(&cluster, from, Protocol::Tcp, to, MOMENT), "{from} to {to} before");
        let found = get_hosts(&cluster, from, resolver, options, name);
        assert!(found.contains(&to.to_string()), "{options}: {found}");
        assert!(passes(&cluster, from, Protocol::Tcp, to, PATIENCE), "{options}: {from} to {to}");
    };
    opens("client", dns[0], "timeout:5 use-vc", "alias", server[0]);
    opens("client", dns[1], "timeout:5", "small", server[1]);
    opens("other", dns[1], "timeout:5 use-vc", "large", server[0]);
    opens("other", dns[0], "timeout:5 use-vc", "small", server[1]);
}

fn addresses(cluster: &Cluster, pod: &str) -> Vec<IpAddr> {
    cluster.pod(pod).addresses().to_vec()
}

/// A lookup by TCP of which the first half of the answer has arrived.
struct Halved<'a> {
    zone: &'a Zone,
    name: String,
    stream: TcpStream,
    length: usize,
}

impl<'a> Halved<'a> {
    /// Looks up a name of an address in the client.
    fn begin(cluster: &Cluster, zone: &'a Zone, name: &str, at: IpAddr) -> Self {
        let (name, kind) =
            (format!("halved-{name}.example.com"), if at.is_ipv4() { 1 } else { 28 });
        zone.lock().unwrap().insert(name.clone(), vec![at]);
        let resolver = SocketAddr::from((addresses(cluster, "dns")[0], DNS));
        let connect = || TcpStream::connect_timeout(&resolver, PATIENCE).unwrap();
        let mut stream = cluster.pod("client").run(connect).unwrap();
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

/// While a pod has no names, nobody reads its packets. So what it begins before is not read on behind that, within 20 s or
/// later, whether the agent runs or starts with the names. A lookup goes on over other edits and a restart.
#[test]
fn a_policy_that_loses_and_regains_names_reads_no_connection_on() {
    require_root!();
    let (mut cluster, zone) = cluster(Cni::Ptp, &["*.example.com"], &[]);
    let (server, dns) = (addresses(&cluster, "server"), addresses(&cluster, "dns"));
    let with = |cluster: &mut Cluster, patterns: &[&str]| {
        cluster.objects = vec![names("client", &dns, patterns)];
    };
    let halved = Halved::begin(&cluster, &zone, "lost", server[0]);
    cluster.objects.clear();
    cluster.enforce();
    with(&mut cluster, &["*.example.com"]);
    cluster.enforce();
    halved.end();
    assert!(!passes(&cluster, "client", Protocol::Tcp, server[0], MOMENT), "lost and regained");
    let halved = Halved::begin(&cluster, &zone, "restarted", server[0]);
    cluster.objects.clear();
    cluster.enforce();
    cluster.agents[0].end(Signal::SIGKILL);
    with(&mut cluster, &["*.example.com"]);
    cluster.write();
    cluster.restart(0);
    halved.end();
    assert!(!passes(&cluster, "client", Protocol::Tcp, server[0], MOMENT), "regained at a start");
    let edit = |cluster: &mut Cluster| {
        with(cluster, &["www.example.org", "*.example.com"]);
        cluster.enforce();
    };
    goes_on_over(&mut cluster, &zone, "edit", server[0], edit);
    let restart = |cluster: &mut Cluster| {
        cluster.agents[0].end(Signal::SIGKILL);
        cluster.restart(0);
    };
    goes_on_over(&mut cluster, &zone, "restart", server[1], restart);
}

/// Asserts that a change ends no lookup.
fn goes_on_over(
    cluster: &mut Cluster,
    zone: &Zone,
    what: &str,
    to: IpAddr,
    change: impl Fn(&mut Cluster),
) {
    for attempt in 0..5 {
        let begun = Instant::now();
        let halved = Halved::begin(cluster, zone, &format!("{what}-{attempt}"), to);
        change(cluster);
        halved.end();
        // An answer counts within 10 s.
        if begun.elapsed() < Duration::from_secs(9) {
            assert!(passes(cluster, "client", Protocol::Tcp, to, PATIENCE), "{what}");
            return;
        }
    }
    panic!("{what}: each attempt took longer than an answer counts");
}
