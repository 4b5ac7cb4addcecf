//! Cost of either egress hook; run with `--ignored --nocapture`.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{TestCluster, allow_to};
use netpold_testbed::{Cni, require_root};

use super::{XDP, dropped, modes};
use crate::traffic::udp;

/// Numbers of rounds of streams, and of datagrams: the latter are short, so that at least one is undisturbed.
const ROUNDS: usize = 5;
const FLOODS: usize = 300;
/// Numbers of datagrams of a round, and per system call.
const DATAGRAMS: usize = 3_200;
const BATCH: usize = 64;
const STREAM: Duration = Duration::from_secs(2);
/// `USER_HZ`, equal on every Linux.
const TICKS: f64 = 100.0;

/// Returns a node with a `client` that may send to `server` only.
fn node(arguments: &[&str]) -> TestCluster {
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "client", "other"]);
    cluster.arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
    cluster.policy("client", allow_to("client", "server")).enforce();
    cluster
}

/// Sends datagrams from the client, in rounds on both nodes in turn. Returns the least nanoseconds per datagram. All
/// datagrams must drop, or none.
fn flood(nodes: [&TestCluster; 2], to: &str, family: usize, denied: bool) -> [f64; 2] {
    let open = |cluster: &TestCluster| {
        let (from, to) = (cluster.pod("client"), cluster.pod(to));
        let socket = udp::socket(from, from.addresses()[family], 0);
        socket.connect((to.addresses()[family], 4000)).unwrap();
        // Arriving datagrams fill the buffer of this socket, and the rest is lost there.
        (socket, udp::socket(to, to.addresses()[family], 4000))
    };
    let before = nodes.map(|cluster| dropped(&cluster.agents[0].status().unwrap()));
    let sockets = nodes.map(open);
    let mut least = [f64::MAX; 2];
    for _ in 0..FLOODS {
        for ((socket, _), least) in sockets.iter().zip(&mut least) {
            let began = Instant::now();
            (0..DATAGRAMS / BATCH).for_each(|_| send_batch(socket));
            *least = least.min(began.elapsed().as_nanos() as f64 / DATAGRAMS as f64);
        }
    }
    for (cluster, before) in nodes.iter().zip(before) {
        let count = dropped(&cluster.agents[0].status().unwrap()) - before;
        let all = (FLOODS * DATAGRAMS) as u64;
        assert!(if denied { count > all * 9 / 10 } else { count == 0 }, "{count} of {all} dropped");
    }
    least
}

fn send_batch(socket: &UdpSocket) {
    let payload = [0_u8; 18];
    let mut part =
        libc::iovec { iov_base: payload.as_ptr().cast_mut().cast(), iov_len: payload.len() };
    // SAFETY: all zeroes is a valid mmsghdr.
    let mut messages: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
    for message in &mut messages {
        message.msg_hdr.msg_iov = &raw mut part;
        message.msg_hdr.msg_iovlen = 1;
    }
    // SAFETY: the messages and their buffers outlive the call.
    let sent =
        unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), BATCH as u32, 0) };
    assert_eq!(sent, BATCH as i32, "{}", std::io::Error::last_os_error());
}

/// Returns the busy seconds of all CPUs since the start of the machine.
fn busy() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let fields = stat.lines().next().unwrap().split_whitespace().skip(1);
    let ticks: Vec<f64> = fields.map(|field| field.parse().unwrap()).collect();
    // user, nice, system, irq, softirq
    [0, 1, 2, 5, 6].map(|field| ticks[field]).iter().sum::<f64>() / TICKS
}

/// Returns the rate of one TCP stream in Gbit/s, and CPU seconds per gigabyte.
fn stream(cluster: &TestCluster) -> (f64, f64) {
    let server = cluster.pod("server");
    let address = server.ip4().unwrap();
    let listener = server.run(|| TcpListener::bind((address, 5001)).unwrap()).unwrap();
    let (began, cpu) = (Instant::now(), busy());
    let bytes = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut buffer, mut bytes) = (vec![0; 1 << 17], 0);
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                bytes += length;
            }
            bytes
        });
        let connect = || TcpStream::connect((address, 5001)).unwrap();
        let mut stream = cluster.pod("client").run(connect).unwrap();
        let data = vec![0; 1 << 17];
        while began.elapsed() < STREAM {
            stream.write_all(&data).unwrap();
        }
        drop(stream);
        receiver.join().unwrap()
    });
    let (took, cpu) = (began.elapsed().as_secs_f64(), busy() - cpu);
    (bytes as f64 * 8e-9 / took, cpu / (bytes as f64 * 1e-9))
}

/// Returns least and median.
fn least(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[0], values[values.len() / 2])
}

/// Pins the thread to one CPU, which then also drops the datagrams, so that its time is the whole cost.
fn pin() {
    let mut set = nix::sched::CpuSet::new();
    set.set(1).unwrap();
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set).unwrap();
}

#[test]
#[ignore = "a measurement, not a test"]
fn pod_egress_by_either_hook() {
    require_root!();
    let nodes = [("tc", node(&[])), ("xdp", node(&XDP))];
    println!("{:?}", modes(&nodes[1].1.agents[0].status().unwrap()));
    let streams: Vec<_> = (0..ROUNDS).map(|_| nodes.each_ref().map(|(_, n)| stream(n))).collect();
    for (number, (hook, _)) in nodes.iter().enumerate() {
        let speed = streams.iter().map(|round| -round[number].0).collect();
        let (speed, cost) = (least(speed), least(streams.iter().map(|r| r[number].1).collect()));
        println!(
            "{hook}: TCP {:.1} Gbit/s (median {:.1}), {:.2} CPU s/GB (median {:.2})",
            -speed.0, -speed.1, cost.0, cost.1
        );
    }
    let floods = || {
        pin();
        let pair = [&nodes[0].1, &nodes[1].1];
        for (to, denied) in [("other", true), ("server", false)] {
            for family in [0, 1] {
                let [tc, xdp] = flood(pair, to, family, denied);
                let what = if denied { "dropped" } else { "delivered" };
                println!(
                    "a datagram sent and {what}, family {family}: tc {tc:.0}, xdp {xdp:.0} ns"
                );
            }
        }
    };
    std::thread::scope(|scope| scope.spawn(floods).join().unwrap());
}
