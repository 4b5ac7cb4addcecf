//! Connections that a client reverses in the node's conntrack before policy exists: an RST with a TTL that expires at
//! the node closes the entry, both ends continue, and the server's next segment creates an entry with the server as
//! the originator.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use netpold_dataplane::import_conntrack::kernel_flows;
use netpold_testbed::cluster::{MOMENT, PATIENCE, TestCluster, allow_from, isolate};
use netpold_testbed::packet::{ipv4, tcp_message};
use netpold_testbed::{Cni, Host, RawSocket, TestPod, require_root};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt,
};
use std::os::fd::AsRawFd as _;

use crate::attacks::volley::Sender;

/// Port outside the ephemeral range.
const SERVER: u16 = 8080;
const TCP: u8 = 6;
const RST: u8 = 0x04;

/// TCP connection with both of its sockets.
struct Connection {
    client: TcpStream,
    server: TcpStream,
    from: SocketAddr,
}

impl Connection {
    /// Connects from the given port of the client.
    fn open(client: &TestPod, listener: &TcpListener, port: u16) -> Self {
        let SocketAddr::V4(to) = listener.local_addr().unwrap() else { panic!("IPv4") };
        let from = SocketAddrV4::new(ipv4_of(client), port);
        let open = || {
            let (family, kind) = (AddressFamily::Inet, SockType::Stream);
            let end = socket(family, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
            setsockopt(&end, sockopt::ReuseAddr, &true).unwrap();
            bind(end.as_raw_fd(), &SockaddrIn::from(from)).unwrap();
            connect(end.as_raw_fd(), &SockaddrIn::from(to)).unwrap();
            TcpStream::from(end)
        };
        let client = client.run(open).unwrap();
        let (server, from) = listener.accept().unwrap();
        let mut connection = Self { client, server, from };
        assert!(connection.answers(PATIENCE) && connection.asks(PATIENCE), "nothing forbids it");
        connection
    }

    /// Returns whether the client's data arrives.
    fn asks(&mut self, time: Duration) -> bool {
        passes(&mut self.client, &mut self.server, time)
    }

    /// Returns whether the server's data arrives.
    fn answers(&mut self, time: Duration) -> bool {
        passes(&mut self.server, &mut self.client, time)
    }
}

fn passes(from: &mut TcpStream, to: &mut TcpStream, time: Duration) -> bool {
    to.set_read_timeout(Some(time)).unwrap();
    from.write_all(b"!").unwrap();
    to.read(&mut [0; 64]).is_ok_and(|length| length > 0)
}

fn ipv4_of(host: &TestPod) -> Ipv4Addr {
    let Some(IpAddr::V4(address)) = host.ip4() else { panic!("an IPv4 address") };
    address
}

/// Closes the connection's entry at the client's node, and neither end of the connection.
fn reset_at_the_node(client: &TestPod, wire: &RawSocket, connection: &mut Connection) {
    while wire.arrived().is_some() {}
    assert!(connection.answers(PATIENCE));
    let deadline = Instant::now() + PATIENCE;
    let segment = loop {
        let frame = wire.arrived().unwrap_or_default();
        // Ethernet, IPv4 without options, TCP from the server's port to the client's.
        if frame.get(34..36) == Some(&SERVER.to_be_bytes())
            && frame.get(36..38) == Some(&connection.from.port().to_be_bytes())
        {
            break frame;
        }
        assert!(Instant::now() < deadline, "the server's segment is seen");
    };
    let number = |at: usize| u32::from_be_bytes(segment[at..at + 4].try_into().unwrap());
    let SocketAddr::V4(to) = connection.client.peer_addr().unwrap() else { panic!("IPv4") };
    let next = (number(42), number(38).wrapping_add(1));
    let reset = tcp_message(connection.from, to.into(), RST, next, &[]);
    let mut packet = ipv4((ipv4_of(client), *to.ip()), TCP, (0, 0), &[], &reset);
    // TTL 1, and its effect on the checksum (RFC 1624).
    let sum = u16::from_be_bytes([packet[10], packet[11]]);
    let before = u16::from_be_bytes([packet[8], packet[9]]);
    packet[8] = 1;
    let after = u16::from_be_bytes([packet[8], packet[9]]);
    let whole = u32::from(!sum) + u32::from(!before) + u32::from(after);
    let folded = (whole & 0xffff) + (whole >> 16);
    let sum = !((folded & 0xffff) + (folded >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    Sender::pod(client).send(&packet);
}

/// Returns the number of flows in the node's conntrack, and of flows picked up midstream.
fn tracked(node: &Host) -> (usize, usize) {
    let mut flows = Vec::new();
    let read = || kernel_flows(|_| true, |flow| flows.push(flow.seen_from_start));
    node.run(read).unwrap().unwrap();
    (flows.len(), flows.iter().filter(|seen| **seen == Some(false)).count())
}

#[test]
fn a_reset_that_ends_at_the_node_turns_no_connection() {
    require_root!();
    let clients = [("friend", 50_000), ("stranger", 50_001), ("sly", 1000), ("late", 1001)];
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server"]);
    clients.iter().for_each(|(name, _)| cluster.add(0, name));
    let rules = "table inet track { chain forward { type filter hook forward priority 0; ct state new,established accept; }; }";
    cluster.nodes[0].netns().nft(rules).unwrap();
    cluster.nodes[0].netns().sysctl("netfilter/nf_conntrack_tcp_timeout_close", "1").unwrap();
    cluster.enforce();
    let address = (ipv4_of(cluster.pod("server")), SERVER);
    let listener = cluster.pod("server").run(|| TcpListener::bind(address)).unwrap().unwrap();
    let mut open: Vec<Connection> = clients
        .iter()
        .map(|(name, port)| Connection::open(cluster.pod(name), &listener, *port))
        .collect();
    let (before, unseen) = tracked(&cluster.nodes[0]);
    assert!(before >= clients.len() && unseen == 0, "{before} flows, of {unseen} no beginning");
    for ((name, _), connection) in clients.iter().zip(&mut open) {
        let client = cluster.pod(name);
        let wire = client.wire("eth0").unwrap();
        reset_at_the_node(client, &wire, connection);
    }
    let deadline = Instant::now() + PATIENCE;
    let entries = || std::fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap();
    while !cluster.nodes[0].run(entries).unwrap().is_empty() {
        assert!(Instant::now() < deadline, "closed entries go");
        std::thread::sleep(Duration::from_millis(100));
    }
    // The last connection stays silent until policy exists: conntrack has no entry for it then.
    for connection in &mut open[..3] {
        assert!(connection.answers(PATIENCE), "both ends go on");
    }
    assert_eq!(tracked(&cluster.nodes[0]), (3, 3), "the server's segments made the entries");

    cluster.policy("server", isolate("server", &["Ingress"]));
    cluster.policy("friend", allow_from("server", "friend")).enforce();
    let _ = open[3].answers(MOMENT);
    for ((name, port), connection) in clients.iter().zip(&mut open) {
        let passes = connection.asks(MOMENT);
        println!("{name}, from port {port}: {}", if passes { "goes on" } else { "is cut" });
        assert_eq!(passes, *name == "friend", "{name}, from port {port}");
    }
    assert!(open[0].answers(PATIENCE) && open[0].asks(PATIENCE), "what policy allows stays");
}
