//! A resolver in a pod, with answers chosen by the test.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netpold_testbed::TestPod;
use netpold_testkit::names::{Record, answer, wire};
use netpold_testkit::streams::framed;

pub(crate) const DNS: u16 = 53;
/// Types of records.
pub(crate) const A: u16 = 1;
pub(crate) const AAAA: u16 = 28;
/// Flag of a truncated message, in its third byte (RFC 1035 section 4.1.1).
const TRUNCATED: u8 = 2;

/// Names and their addresses.
pub(crate) type Zone = Arc<Mutex<HashMap<String, Vec<IpAddr>>>>;

/// Answers queries for A and AAAA at every address of a pod until the test ends: with an alias and the addresses of the
/// alias, or without records. By the start of the name: `silent`: no answer; `large`: a truncated answer by UDP, and 40
/// more addresses by TCP; `split`: a TCP answer byte by byte; `halved`: the second half of a TCP answer once the zone
/// has lost the name.
pub(crate) fn resolver(pod: &TestPod) -> Zone {
    let zone = Zone::default();
    for address in pod.addresses() {
        let socket = pod.run(|| UdpSocket::bind((*address, DNS)).unwrap()).unwrap();
        let of_datagrams = zone.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 1500];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                if let Some(answer) = respond(&of_datagrams, &buffer[..length], false) {
                    socket.send_to(&answer, from).unwrap();
                }
            }
        });
        let listener = pod.run(|| TcpListener::bind((*address, DNS)).unwrap()).unwrap();
        let of_streams = zone.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (zone, stream) = (of_streams.clone(), stream.unwrap());
                // The client closes the connection after the last answer.
                std::thread::spawn(move || drop(serve(&zone, stream)));
            }
        });
    }
    zone
}

/// Answers the queries of a connection, in segments of a few hundred bytes.
fn serve(zone: &Zone, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut message = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut message)?;
        let answer = framed(&respond(zone, &message, true).ok_or(io::ErrorKind::InvalidData)?);
        let name = text(&message[12..]);
        let is_halved = name.starts_with("halved");
        let longest = match name.split('-').next() {
            Some("halved") => answer.len().div_ceil(2),
            Some("split") => 1,
            _ => 300,
        };
        for part in answer.chunks(longest) {
            stream.write_all(part)?;
            while is_halved && zone.lock().unwrap().contains_key(&name) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn respond(zone: &Zone, message: &[u8], by_tcp: bool) -> Option<Vec<u8>> {
    let id = u16::from_be_bytes([message[0], message[1]]);
    let text = text(&message[12..]).to_ascii_lowercase();
    // An EDNS0 record may follow the question.
    let (name, rest) = message[12..].split_at(wire(&text).len());
    let kind = &rest[..2];
    if text.starts_with("silent") {
        return None;
    }
    let (alias, is_large) = (wire("edge.cdn.example"), text.starts_with("large"));
    let mut found: Vec<IpAddr> = zone.lock().unwrap().get(&text).cloned().unwrap_or_default();
    found.extend((1..=40).filter(|_| is_large).map(|n| IpAddr::from([198, 51, 100, n])));
    let mut records = vec![Record::alias(vec![0xc0, 12], alias.clone())];
    records.extend(
        found
            .into_iter()
            .map(|at| Record::address(alias.clone(), at, 30))
            .filter(|record| record.kind.to_be_bytes() == *kind),
    );
    let is_truncated = is_large && !by_tcp;
    let mut answer = answer(id, name, if is_truncated { &[] } else { &records });
    answer[12 + name.len()..][..2].copy_from_slice(kind);
    answer[2] |= if is_truncated { TRUNCATED } else { 0 };
    Some(answer)
}

/// Text of a name on the wire.
pub(super) fn text(mut name: &[u8]) -> String {
    let mut labels = Vec::new();
    while let Some((length, rest)) = name.split_first().filter(|(length, _)| **length != 0) {
        let (label, behind) = rest.split_at((*length).into());
        labels.push(String::from_utf8_lossy(label).into_owned());
        name = behind;
    }
    labels.join(".")
}
