//! Time until a newly attached program judges its first packet. The kernel puts the program into force and then waits
//! for readers of the former list of programs, so the call returns later.

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use netpold_core::model::Direction;
use netpold_dataplane::attach::{AttachMode, Attacher, Hook};
use netpold_dataplane::bpf::mmap::MappedArray;
use netpold_testbed::Netns;

use crate::bytecode::{Code, SCHED_CLS, memory};
use crate::host;

/// `TCX_NEXT`
const NEXT: i32 = -1;

/// Milliseconds until a TCX program at the egress of each of `count` new pods judges a packet. Another interface
/// already has a program, as on a node with pods.
pub(crate) fn measure(count: u32, pins: &Path) -> Result<Vec<f64>> {
    let netns = Netns::create("effect")?;
    netns.ip("link set lo up\naddress add 10.191.0.1/32 dev lo\n")?;
    let mut attacher = Attacher::new(pins, AttachMode::Tcx)?;
    let mut times = Vec::new();
    for number in 0..=count {
        let ifindex = pod(&netns, number)?;
        let hook = Hook { ifindex, direction: Direction::Egress };
        times.push(first_packet(&netns, number, hook, &mut attacher)?);
    }
    attacher.retain(|_| false)?;
    // The first program enabled the hooks of the whole machine.
    Ok(times.split_off(1))
}

/// Creates a pod's veth with an address and a neighbour behind it.
fn pod(netns: &Netns, number: u32) -> Result<u32> {
    let (path, address) = (netns.path(), address(number));
    let path = path.display();
    host::ip(&[
        &format!("link add eff{number} type veth peer name efp{number} netns {path}"),
        &format!("link set eff{number} up"),
    ])?;
    netns.ip(&format!(
        "link set efp{number} up\nroute add {address}/32 dev efp{number} src 10.191.0.1\n\
         neigh add {address} lladdr 02:00:00:00:00:09 dev efp{number} nud permanent\n"
    ))?;
    host::ifindex(&format!("eff{number}"))
}

fn address(number: u32) -> std::net::Ipv4Addr {
    std::net::Ipv4Addr::from_bits(0x0ac0_0001 + number)
}

fn first_packet(netns: &Netns, number: u32, hook: Hook, attacher: &mut Attacher) -> Result<f64> {
    let counter = memory(8)?;
    let program = Code::default()
        .address(1, &counter)
        .load32(2, 1, 0)
        .add(2, 1)
        .store32(1, 0, 2)
        .end(NEXT)
        .load(SCHED_CLS)
        .context("cannot load a program that counts")?;
    let counted = MappedArray::<u64>::from_fd(counter.as_fd(), 1)?;
    let socket = netns.run(|| UdpSocket::bind("0.0.0.0:0"))?.context("cannot open a socket")?;
    socket.connect((address(number), 9))?;
    let (sending, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let sender = scope.spawn(|| -> Result<Instant> {
            while !stop.load(Ordering::Relaxed) {
                socket.send(&[0])?;
                sending.store(true, Ordering::Relaxed);
                if counted.read(0)? > 0 {
                    return Ok(Instant::now());
                }
            }
            anyhow::bail!("the program is attached and sees no packet")
        });
        while !sending.load(Ordering::Relaxed) && !sender.is_finished() {
            thread::yield_now();
        }
        let start = Instant::now();
        let attached = attacher.attach(program.as_fd(), hook);
        // Leaves time for at least one more packet.
        thread::sleep(std::time::Duration::from_millis(20));
        stop.store(true, Ordering::Relaxed);
        let seen = sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        attached?;
        Ok((seen - start).as_secs_f64() * 1e3)
    })
}
