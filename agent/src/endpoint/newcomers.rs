//! Closes each veth that comes, until the engine has attached the programs of its role.
//!
//! The programs of a role follow an interface's discovery, and before the first generation of an agent
//! they are verified for seconds. A program that drops everything is verified at once. The guard attaches
//! it as soon as the kernel reports a veth whose other side is in another network namespace.
//!
//! The same code runs in the agent, from its first moment, and in `netpold standby`, while no agent runs.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use netpold_core::model::Direction;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::message::{OutsideVeth, links_request, outside_veth};
use crate::dataplane::closing::Closing;
use crate::dataplane::hook::Hook;
use crate::lock::lock;
use crate::netlink::{Connection, Listener, Received};

/// `RTNLGRP_LINK`
const LINKS: [u32; 1] = [1];
/// Receive buffer of link events, in bytes: some 1,500 events.
const RECEIVE_BUFFER: usize = 2 << 20;
/// Milliseconds after which a listing that failed is tried again.
const AGAIN: u16 = 50;
/// Threads that attach. Each call waits for the kernel's configuration lock and, with TCX, for a grace
/// period under it. The lock is handed over in the order of arrival, so a single thread would fall behind
/// twenty CNI plugins that each want it again and again.
const THREADS: usize = 8;

/// Closes veths on threads of its own.
#[derive(Debug)]
pub struct Closers {
    hooks: Sender<Hook>,
}

impl Closers {
    /// Starts the threads, in the network namespace of the calling one. They end with the returned value.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start(closing: &Closing) -> io::Result<Self> {
        let (hooks, received) = channel();
        let received = Arc::new(Mutex::new(received));
        for _ in 0..THREADS {
            let (closing, received) = (closing.clone(), Arc::clone(&received));
            let thread = std::thread::Builder::new().name("closing".into()).stack_size(64 << 10);
            thread.spawn(move || {
                // One waits for the next hook, the others for their turn to wait.
                let next = |received: &Mutex<Receiver<Hook>>| lock(received).recv();
                while let Ok(hook) = next(&received) {
                    closing.close(hook);
                }
            })?;
        }
        Ok(Self { hooks })
    }

    /// Closes both hooks of a veth, soon.
    pub fn close(&self, ifindex: u32) {
        // The threads end after the sender only.
        Direction::BOTH.into_iter().for_each(|direction| {
            let _ = self.hooks.send(Hook { ifindex, direction });
        });
    }
}

/// The veths of this network namespace whose other sides are in others, followed by link events.
#[derive(Debug)]
pub struct Veths {
    listener: Listener,
    requests: Connection,
    known: BTreeSet<u32>,
    /// Something may have been missed: the veths have to be listed.
    incomplete: bool,
}

impl Veths {
    /// Listens from now on; nothing is known before [`Veths::list`].
    ///
    /// # Errors
    /// The netlink sockets cannot be made.
    pub fn open() -> io::Result<Self> {
        let listener = Listener::open(&LINKS, false, RECEIVE_BUFFER)?;
        let (requests, known) = (Connection::open()?, BTreeSet::new());
        Ok(Self { listener, requests, known, incomplete: false })
    }

    /// Lists the veths anew; returns those that were not known.
    ///
    /// # Errors
    /// Netlink's.
    pub fn list(&mut self) -> io::Result<Vec<u32>> {
        let found = self.requests.dump(&links_request(None), outside_veth)?;
        let there: BTreeSet<u32> = found.into_iter().filter_map(OutsideVeth::index).collect();
        let new = there.difference(&self.known).copied().collect();
        self.known = there;
        self.incomplete = false;
        Ok(new)
    }

    /// Takes in the events that are waiting; returns the veths that came. `gone` gets each index whose
    /// interface went. What fails is done again with the next call.
    pub fn changes(&mut self, mut gone: impl FnMut(u32)) -> Vec<u32> {
        let mut new = Vec::new();
        loop {
            let Self { listener, known, incomplete, .. } = self;
            let received = listener.receive(|_, message| match outside_veth(message) {
                Some(OutsideVeth::There(index)) => new.extend(known.insert(index).then_some(index)),
                Some(OutsideVeth::Gone(index)) => {
                    known.remove(&index);
                    gone(index);
                    // The other side of a veth that was whole in this namespace may have left it.
                    *incomplete = true;
                }
                // The pod's side has come home. Should it leave again, the veth is new.
                Some(OutsideVeth::Home(index)) => *incomplete |= known.contains(&index),
                None => {}
            });
            match received {
                Ok(Received::Messages) => {}
                Ok(Received::Overrun) => self.incomplete = true,
                Ok(Received::Nothing) => break,
                Err(error) => {
                    tracing::warn!(%error, "reading link events failed; interfaces are listed instead");
                    self.incomplete = true;
                    break;
                }
            }
        }
        if self.incomplete {
            let before = self.known.clone();
            match self.list() {
                Ok(found) => {
                    before.difference(&self.known).for_each(|index| gone(*index));
                    new.extend(found);
                }
                Err(error) => tracing::warn!(%error, "listing interfaces failed; tried again"),
            }
        }
        new
    }

    /// How long to wait for events: briefly, if something is to be done again.
    #[must_use]
    pub fn patience(&self) -> PollTimeout {
        if self.incomplete { PollTimeout::from(AGAIN) } else { PollTimeout::NONE }
    }
}

impl AsFd for Veths {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// The veths of this network namespace whose other sides are in others, by interface index, as of now.
///
/// # Errors
/// Netlink's.
pub fn outside() -> io::Result<BTreeSet<u32>> {
    let found = Connection::open()?.dump(&links_request(None), outside_veth)?;
    Ok(found.into_iter().filter_map(OutsideVeth::index).collect())
}

/// A running guard; it ends when it is dropped, and what it closed stays closed.
#[derive(Debug)]
pub struct Guard {
    /// Closed to end the thread.
    _stop: UnixStream,
}

impl Guard {
    /// Closes each veth that comes from now on to the network namespace of the calling thread. `all`: also
    /// those that are there and have no program of netpold's.
    ///
    /// # Errors
    /// Netlink, or a thread, is not to be had.
    pub fn start(closing: Closing, all: bool) -> io::Result<Self> {
        // Loaded before it is needed.
        if let Err(error) = closing.program() {
            tracing::warn!(%error, "new interfaces cannot be closed yet; tried again with each");
        }
        let (stop, stopped) = UnixStream::pair()?;
        let mut veths = Veths::open()?;
        let closers = Closers::start(&closing)?;
        let there = veths.list()?;
        there.into_iter().filter(|_| all).for_each(|ifindex| closers.close(ifindex));
        let thread = std::thread::Builder::new().name("newcomers".into());
        thread.spawn(move || {
            while wait(&veths, &stopped) {
                let new = veths.changes(|ifindex| closing.forget(ifindex));
                new.into_iter().for_each(|ifindex| closers.close(ifindex));
            }
        })?;
        Ok(Self { _stop: stop })
    }
}

/// Waits for link events; `false` once the other end of `stopped` is closed.
fn wait(veths: &Veths, stopped: &UnixStream) -> bool {
    let mut ready = [
        PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
        PollFd::new(veths.as_fd(), PollFlags::POLLIN),
    ];
    // EINTR and the like: look again.
    let _ = poll(&mut ready, veths.patience());
    ready[0].revents().is_none_or(|events| events.is_empty())
}
