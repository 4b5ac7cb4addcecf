//! Resolvers and clients from Debian: dnsmasq and unbound, queried by the GNU C library, musl and Go.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use netpold_testbed::cluster::{MOMENT, NAMESPACE, PATIENCE, TestCluster, eventually};
use netpold_testbed::{Cni, KillOnDrop, PodSpec, ProbeProtocol, require_root};

use super::resolver::DNS;
use super::{enforce, passes, run_configured};

/// Clients, and whether they retry over TCP. The musl of Debian 12 (1.2.3) uses the truncated answer, which is empty
/// from unbound.
const CLIENTS: [(&str, bool); 3] = [("glibc", true), ("musl", false), ("go", true)];
/// Number of a name's addresses in each family: answers over UDP are truncated, except for IPv4 with EDNS0.
const MANY: usize = 60;

const MUSL: &str = r"
#include <netdb.h>
#include <stdio.h>
int main(int count, char **arguments) {
    struct addrinfo hints = { .ai_socktype = 1 }, *found;
    char text[64];
    if (getaddrinfo(arguments[1], 0, &hints, &found)) return 1;
    for (; found; found = found->ai_next)
        if (!getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, 0, 0, 1)) puts(text);
}
";
const GO: &str = r#"
package main

import ("fmt"; "net"; "os")

func main() {
	found, err := net.LookupHost(os.Args[1])
	if err != nil { panic(err) }
	for _, address := range found { fmt.Println(address) }
}
"#;

/// Addresses of a client's name, of both families.
fn addresses(client: usize, count: usize) -> Vec<IpAddr> {
    let host = |n: usize| [client as u8, n as u8];
    let at4 = (0..count).map(host).map(|[client, n]| Ipv4Addr::new(198, 18, client, n + 1).into());
    let at6 = (0..count).map(host);
    let at6 = at6.map(|[client, n]| {
        Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, client.into(), u16::from(n) + 1).into()
    });
    at4.chain(at6).collect()
}

/// Names of each client, with their addresses.
fn zone() -> Vec<(String, Vec<IpAddr>)> {
    let of_client = |(number, (client, _)): (usize, &(&str, _))| {
        let names = [(format!("few-{client}"), 1), (format!("many-{client}"), MANY)];
        let names = names.into_iter().enumerate();
        names.map(move |(n, (name, count))| (name, addresses(10 * n + number, count)))
    };
    CLIENTS.iter().enumerate().flat_map(of_client).collect()
}

fn build(cluster: &TestCluster, source: (&str, &str), command: &[&str]) -> PathBuf {
    let directory = cluster.directory.path();
    let (file, built) = (directory.join(source.0), directory.join(format!("{}.out", source.0)));
    std::fs::write(&file, source.1).unwrap();
    let mut compiler = Command::new(command[0]);
    compiler.args(&command[1..]).arg(&built).arg(&file);
    compiler.env("CGO_ENABLED", "0").env("GOCACHE", directory.join("go"));
    let output = compiler.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    built
}

/// Starts dnsmasq in the resolver's pod.
fn dnsmasq(cluster: &TestCluster) -> Command {
    let hosts = cluster.directory.path().join("hosts");
    let mut text = String::new();
    for (name, addresses) in zone() {
        addresses.iter().for_each(|at| writeln!(text, "{at} {name}.example.com").unwrap());
    }
    std::fs::write(&hosts, text).unwrap();
    let mut dnsmasq = cluster.pod("dns").command("dnsmasq").unwrap();
    dnsmasq.args(["--keep-in-foreground", "--conf-file=/dev/null", "--user=root", "--pid-file="]);
    dnsmasq.args(["--no-hosts", "--no-resolv", "--local-ttl=30", "--local=/none.test/"]);
    dnsmasq.arg(format!("--addn-hosts={}", hosts.display()));
    dnsmasq
}

/// Starts unbound in the resolver's pod.
fn unbound(cluster: &TestCluster) -> Command {
    let file = cluster.directory.path().join("unbound.conf");
    let mut text = "server:\n do-daemonize: no\n chroot: \"\"\n username: \"\"\n pidfile: \"\"\n \
                    use-syslog: no\n module-config: \"iterator\"\n access-control: 0.0.0.0/0 allow\n \
                    access-control: ::/0 allow\n local-zone: \"none.test.\" static\n \
                    local-zone: \"example.com.\" static\n"
        .to_owned();
    for address in cluster.pod("dns").addresses() {
        writeln!(text, " interface: {address}").unwrap();
    }
    for (name, addresses) in zone() {
        for at in addresses {
            let kind = if at.is_ipv4() { "A" } else { "AAAA" };
            writeln!(text, " local-data: \"{name}.example.com. 30 IN {kind} {at}\"").unwrap();
        }
    }
    text += "remote-control:\n control-enable: no\n";
    std::fs::write(&file, text).unwrap();
    let mut unbound = cluster.pod("dns").command("unbound").unwrap();
    unbound.arg("-c").arg(file);
    unbound
}

/// Addresses that a client prints are open, and addresses that it did not look up are closed. The second item of the
/// search list has the name; the queries for A and AAAA are sent concurrently; truncated answers are queried again over
/// TCP.
fn answers_open_addresses(resolver: fn(&TestCluster) -> Command) {
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "dns"]);
    let (server, dns) =
        (cluster.pod("server").addresses().to_vec(), cluster.pod("dns").addresses().to_vec());
    for (block, via) in ["198.18.0.0/16", "2001:db8:9::/48"].into_iter().zip(server) {
        cluster.pod("server").netns().ip(&format!("route add local {block} dev lo\n")).unwrap();
        cluster.nodes[0].netns().ip(&format!("route add {block} via {via}\n")).unwrap();
    }
    let musl = build(&cluster, ("musl.c", MUSL), &["musl-gcc", "-static", "-o"]);
    let go = build(&cluster, ("go.go", GO), &["go", "build", "-o"]);
    let _resolver = KillOnDrop(resolver(&cluster).stderr(Stdio::null()).spawn().unwrap());
    enforce(&mut cluster, &["*.example.com"], &["--check-source", "isolated"]);
    for (client, _) in CLIENTS {
        cluster.add_as(0, PodSpec::new(NAMESPACE, client).label("app", "client"));
    }
    cluster.enforce();
    let listens = || {
        let at = |at: &IpAddr| TcpStream::connect_timeout(&(*at, DNS).into(), MOMENT).is_ok();
        cluster.pod("server").run(|| dns.iter().all(at)).unwrap()
    };
    eventually(PATIENCE, listens, || "the resolver does not listen".into());
    let (musl, go) = (musl.to_str().unwrap(), go.to_str().unwrap());
    let programs: [&[&str]; 3] = [&["getent", "ahosts"], &[musl], &[go]];
    for (number, ((client, by_tcp), program)) in CLIENTS.into_iter().zip(programs).enumerate() {
        let opens = |name: &str, resolver: IpAddr, expected: Vec<IpAddr>, all: bool| {
            let open =
                |at: &IpAddr, patience| passes(&cluster, client, ProbeProtocol::Tcp, *at, patience);
            assert!(!open(&expected[0], MOMENT), "{client}: {name} before");
            let configuration =
                format!("nameserver {resolver}\nsearch none.test example.com\noptions timeout:5\n");
            let command = [program, &[name]].concat();
            let text = run_configured(&cluster, client, &configuration, &command);
            let lines =
                text.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok());
            let found: BTreeSet<IpAddr> = lines.collect();
            println!("{client}: {} addresses of {name} from {resolver}", found.len());
            let expected: BTreeSet<IpAddr> = expected.into_iter().collect();
            assert!(found.is_subset(&expected), "{client}: {name}: {text}");
            assert!(!all || found == expected, "{client}: {name}: {text}");
            let closed: Vec<&IpAddr> = found.iter().filter(|at| !open(at, PATIENCE)).collect();
            assert!(closed.is_empty(), "{client}: {name}: closed {closed:?}");
            let other = addresses(200, 1);
            assert!(other.iter().all(|at| !open(at, MOMENT)), "{client}: another address");
        };
        opens(&format!("few-{client}"), dns[0], addresses(number, 1), true);
        opens(&format!("many-{client}"), dns[1], addresses(10 + number, MANY), by_tcp);
    }
}

#[test]
#[ignore = "needs unbound, musl-gcc and Go"]
fn answers_of_dnsmasq_open_addresses_to_clients() {
    require_root!();
    answers_open_addresses(dnsmasq);
}

#[test]
#[ignore = "needs unbound, musl-gcc and Go"]
fn answers_of_unbound_open_addresses_to_clients() {
    require_root!();
    answers_open_addresses(unbound);
}
