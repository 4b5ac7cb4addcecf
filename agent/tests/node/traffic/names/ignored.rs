//! Answers that open no address, over real sockets, and their metric.
#![expect(clippy::float_cmp, reason = "counts, which floats hold exactly")]

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};

use netpold_ebpf::names::ignored::IgnoredAnswer;
use netpold_testbed::cluster::{PATIENCE, TestCluster, eventually};
use netpold_testbed::{Cni, TestPod, require_root};
use netpold_testkit::names::{Record, answer, query, wire};
use netpold_testkit::streams::framed;

use super::resolver::{DNS, text};
use super::{names, socket_to};
use crate::traffic::metrics::{LISTEN, Scrape};

/// Answers each question as the first label of its name demands.
fn serve(pod: &TestPod, at: IpAddr) {
    let socket = pod.run(|| UdpSocket::bind((at, DNS)).unwrap()).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            if let Some(message) = respond(&buffer[..length]) {
                socket.send_to(&message, from).unwrap();
            }
        }
    });
    let listener = pod.run(|| TcpListener::bind((at, DNS)).unwrap()).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut question = [0; 1500];
            let length = stream.read(&mut question).unwrap();
            let message = respond(&question[2..length]).unwrap();
            stream.write_all(&framed(&message)).unwrap();
        }
    });
}

fn respond(question: &[u8]) -> Option<Vec<u8>> {
    let id = u16::from_be_bytes([question[0], question[1]]);
    let name = text(&question[12..]);
    let record = |n| Record::address(vec![0xc0, 12], IpAddr::from([198, 18, 0, n]), 300);
    let found =
        |id, records| answer(id, &wire(&name), &(1..=records).map(record).collect::<Vec<_>>());
    Some(match name.split('.').next()? {
        "silent" => return None,
        "many" => found(id, 65),
        "other" => found(id + 1, 1),
        "cut" => found(id, 2)[..found(id, 2).len() - 1].to_vec(),
        // More than a packet.
        "large" => found(id, 200),
        _ => found(id, 1),
    })
}

/// Asks over UDP, and waits for the answer.
fn ask(from: &TestPod, server: IpAddr, id: u16, name: &str) {
    let asked = from.run(|| {
        let socket = socket_to(server);
        socket.send(&query(id, &wire(name))).unwrap();
        socket.recv(&mut [0; 4096])
    });
    asked.unwrap().unwrap_or_else(|error| panic!("{name}: {error}"));
}

#[test]
fn ignored_answers_have_a_metric() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["client", "dns", "stranger"]);
    let [dns, stranger] = ["dns", "stranger"].map(|name| cluster.pod(name).addresses()[0]);
    serve(cluster.pod("dns"), dns);
    serve(cluster.pod("stranger"), stranger);
    let arguments = ["--dns-servers", &dns.to_string(), "--listen", &format!(":{LISTEN}")];
    cluster.arguments = arguments.map(str::to_owned).to_vec();
    cluster.objects.push(names("client", &[dns, stranger], &["*.example.com"]));
    cluster.enforce();
    let client = cluster.pod("client");
    let mut expected = IgnoredAnswer::ALL.map(|_| 0.0);
    let mut counts = |one_more: Option<IgnoredAnswer>| {
        let series = |reason: IgnoredAnswer| {
            format!("netpold_ignored_dns_answers_total{{reason=\"{}\"}}", reason.as_str())
        };
        if let Some(reason) = one_more {
            expected[reason as usize] += 1.0;
        }
        let counted = || {
            let scrape = Scrape::of(&cluster);
            IgnoredAnswer::ALL.map(|reason| scrape.value(&series(reason)))
        };
        // During an update, a scrape returns the figures of before.
        eventually(
            PATIENCE,
            || counted() == expected,
            || format!("{one_more:?}: {:?} instead of {expected:?}", counted()),
        );
    };
    ask(client, dns, 1, "good.example.com");
    ask(client, dns, 2, "good.example.org");
    counts(None);
    ask(client, stranger, 3, "good.example.com");
    counts(Some(IgnoredAnswer::NotResolver));
    ask(client, dns, 4, "other.example.com");
    counts(Some(IgnoredAnswer::NoQuestion));
    ask(client, dns, 5, "cut.example.com");
    counts(Some(IgnoredAnswer::Malformed));
    ask(client, dns, 6, "large.example.com");
    counts(Some(IgnoredAnswer::Fragment));
    ask(client, dns, 7, "many.example.com");
    counts(Some(IgnoredAnswer::TooManyRecords));
    // The pod is older than its rules, so its first connections are not read.
    let answered = client.run(|| {
        let mut stream = TcpStream::connect((dns, DNS)).unwrap();
        stream.write_all(&framed(&query(8, &wire("good.example.com")))).unwrap();
        stream.read(&mut [0; 1500]).unwrap()
    });
    assert!(answered.unwrap() > 0);
    counts(Some(IgnoredAnswer::UnreadSegment));
    // More questions than there is room for.
    client
        .run(|| {
            let socket = socket_to(dns);
            for id in 0..10_000 {
                socket.send(&query(id, &wire("silent.example.com"))).unwrap();
            }
        })
        .unwrap();
    let no_room = "netpold_ignored_dns_answers_total{reason=\"no_room\"}";
    let counted = || Scrape::of(&cluster).value(no_room);
    eventually(PATIENCE, || counted() > 100.0, || format!("{} without room", counted()));
}
