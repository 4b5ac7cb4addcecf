//! Closes each new veth until the engine has attached the programs of its role.
//!
//! The programs of a role are attached after the discovery of the interface, and the first generation of an agent takes
//! seconds to verify. As soon as the kernel reports a veth with a peer in another network namespace, the guard raises a
//! barrier there ([`netpold_dataplane::barrier`]), and attaches a program that drops every packet.
//!
//! The same code runs in the agent from its start, and in `netpold standby` while no agent runs.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use netpold_core::lock::lock;
use netpold_core::model::Direction;
use netpold_dataplane::closing::Closing;
use netpold_dataplane::hook::Hook;
use netpold_dataplane::netlink::{Connection, Listener, Received};
use netpold_dataplane::priority;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::message::{OutsideVeth, links_request, outside_veth};

/// `RTNLGRP_LINK`
const LINKS: [u32; 1] = [1];
/// Receive buffer of link events, in bytes: some 1,500 events.
const RECEIVE_BUFFER: usize = 2 << 20;
/// Delay before a failed listing is tried again, in milliseconds.
const AGAIN: u16 = 50;
/// Effect of the missing right to run first: a pod may get packets for as long as these threads wait for a processor.
pub const BUSY: &str = "new veths are closed later";
/// Number of threads that attach. Each call waits for the kernel's RTNL lock and, with TCX, for a grace period while
/// holding it. The lock is granted in order of arrival, so a single thread would fall behind twenty CNI plugins that
/// request it repeatedly.
const THREADS: usize = 8;

/// Threads that close veths. Each closing comes with a value that is dropped after it.
#[derive(Debug)]
pub struct Closers<T> {
    closing: Closing,
    hooks: Sender<(Hook, T)>,
}

impl<T: Clone + Send + 'static> Closers<T> {
    /// Starts the threads in the network namespace of the caller. They end when the returned value is dropped.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(closing: Closing) -> io::Result<Self> {
        let (hooks, received) = channel();
        let received = Arc::new(Mutex::new(received));
        for _ in 0..THREADS {
            let (closing, received) = (closing.clone(), Arc::clone(&received));
            let thread = std::thread::Builder::new().name("closing".into()).stack_size(64 << 10);
            thread.spawn(move || {
                priority::raise(BUSY);
                // One thread waits for the next hook, the others for the lock.
                let next = |received: &Mutex<Receiver<(Hook, T)>>| lock(received).recv();
                while let Ok((hook, _until_closed)) = next(&received) {
                    closing.close(hook);
                }
            })?;
        }
        Ok(Self { closing, hooks })
    }

    /// Bars a veth at once, and queues both its hooks for closing.
    pub fn close(&self, ifindex: u32, until_closed: &T) {
        self.closing.bar(ifindex);
        for direction in Direction::BOTH {
            // Cannot fail: the threads end after the sender only.
            let _ = self.hooks.send((Hook { ifindex, direction }, until_closed.clone()));
        }
    }
}

/// Veths of this network namespace with a peer in another one, updated by link events.
#[derive(Debug)]
pub struct Veths {
    listener: Listener,
    requests: Connection,
    known: BTreeSet<u32>,
    /// Whether events may have been missed, so that the veths have to be listed.
    incomplete: bool,
}

impl Veths {
    /// Opens the sockets. The set is empty until [`Veths::list`].
    ///
    /// # Errors
    /// A netlink socket cannot be opened.
    pub fn open() -> io::Result<Self> {
        let listener = Listener::open(&LINKS, false, RECEIVE_BUFFER)?;
        let (requests, known) = (Connection::open()?, BTreeSet::new());
        Ok(Self { listener, requests, known, incomplete: false })
    }

    /// Lists all veths and returns the new ones.
    ///
    /// # Errors
    /// The netlink request fails.
    pub fn list(&mut self) -> io::Result<Vec<u32>> {
        let found = self.requests.dump(&links_request(None), outside_veth)?;
        let there: BTreeSet<u32> = found.into_iter().filter_map(OutsideVeth::index).collect();
        let new = there.difference(&self.known).copied().collect();
        self.known = there;
        self.incomplete = false;
        Ok(new)
    }

    /// Handles the pending events. Failed operations are repeated by the next call.
    pub fn changes(&mut self, mut each: impl FnMut(VethChange)) {
        loop {
            let Self { listener, known, incomplete, .. } = self;
            let received = listener.receive(|_, message| match outside_veth(message) {
                Some(OutsideVeth::There(index)) if known.insert(index) => {
                    each(VethChange::New(index));
                }
                Some(OutsideVeth::Gone { index, moved }) => {
                    known.remove(&index);
                    each(VethChange::Gone(index));
                    // Its peer, which stays, leads to another namespace now. No event reports that.
                    *incomplete |= moved;
                }
                // The pod's end moved to this namespace. If it leaves again, the veth counts as new.
                Some(OutsideVeth::Home(index)) => *incomplete |= known.contains(&index),
                Some(OutsideVeth::There(_)) | None => {}
            });
            match received {
                Ok(Received::Messages) => {}
                Ok(Received::Overrun) => self.incomplete = true,
                Ok(Received::Nothing) => break,
                Err(error) => {
                    tracing::warn!(%error, "cannot read link events; listing interfaces instead");
                    self.incomplete = true;
                    break;
                }
            }
        }
        // Waits for the RTNL lock, which may take seconds.
        if self.incomplete {
            let before = self.known.clone();
            match self.list() {
                Ok(found) => {
                    let gone = before.difference(&self.known).copied().map(VethChange::Gone);
                    gone.chain(found.into_iter().map(VethChange::New)).for_each(each);
                }
                Err(error) => tracing::warn!(%error, "cannot list interfaces; will retry"),
            }
        }
    }

    /// Returns the poll timeout: short if an operation has to be repeated, else none.
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

/// Change of the veths of this network namespace with a peer in another one, by interface index.
#[derive(Clone, Copy, Debug)]
pub enum VethChange {
    /// A veth appeared, or its peer moved to another namespace.
    New(u32),
    /// An interface of any kind left the namespace, or the peer of a veth moved into it.
    Gone(u32),
}

/// Returns the interface indexes of the veths of this network namespace with a peer in another one.
///
/// # Errors
/// A netlink socket cannot be opened, or the request fails.
pub fn outside() -> io::Result<BTreeSet<u32>> {
    let found = Connection::open()?.dump(&links_request(None), outside_veth)?;
    Ok(found.into_iter().filter_map(OutsideVeth::index).collect())
}

/// Running guard. It ends on drop; closed veths stay closed.
#[derive(Debug)]
pub struct Guard {
    /// Ends the thread when closed.
    _stop: UnixStream,
}

impl Guard {
    /// Closes each veth that appears in the network namespace of the calling thread from now on. `all`: also existing
    /// veths without a program of netpold.
    ///
    /// # Errors
    /// A netlink socket or a thread cannot be created, or the veths cannot be listed.
    pub fn start(closing: Closing, all: bool) -> io::Result<Self> {
        // Loads the program before the first veth needs it.
        if let Err(error) = closing.program() {
            tracing::warn!(%error, "cannot close new interfaces yet; retrying with each");
        }
        let (stop, stopped) = UnixStream::pair()?;
        let mut veths = Veths::open()?;
        let closers = Closers::start(closing.clone())?;
        let there: BTreeSet<u32> = veths.list()?.into_iter().collect();
        let barred: BTreeSet<u32> =
            closing.barred_hooks().iter().map(|hook| hook.ifindex).collect();
        barred.difference(&there).for_each(|ifindex| closing.forget(*ifindex));
        let open = there.iter().filter(|ifindex| all || barred.contains(ifindex));
        open.for_each(|ifindex| closers.close(*ifindex, &()));
        let thread = std::thread::Builder::new().name("newcomers".into());
        thread.spawn(move || {
            priority::raise(BUSY);
            while wait(&veths, &stopped) {
                veths.changes(|change| match change {
                    VethChange::New(ifindex) => closers.close(ifindex, &()),
                    VethChange::Gone(ifindex) => closing.forget(ifindex),
                });
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
    // Errors such as EINTR: the caller reads the events again.
    let _ = poll(&mut ready, veths.patience());
    ready[0].revents().is_none_or(|events| events.is_empty())
}
