//! Closes each new veth until the engine has attached the programs of its role.
//!
//! The programs of a role are attached after the discovery of the interface, and the first generation of an agent takes
//! seconds to verify. As soon as the kernel reports a veth with a peer in another network namespace, the guard raises a
//! barrier there ([`netpold_dataplane::barrier`]), and attaches a program that drops every packet.
//!
//! The same code runs in the agent from its start, and in `netpold standby` while no agent runs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use netpold_core::lock::lock;
use netpold_core::model::Direction;
use netpold_dataplane::closing::HookCloser;
use netpold_dataplane::hook::Hook;
use netpold_dataplane::netlink::{NetlinkConnection, NetlinkListener, ReceiveResult};
use netpold_dataplane::priority;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::message::{OutsideVeth, links_request, outside_veth};

/// `RTNLGRP_LINK`
const LINKS: [u32; 1] = [1];
/// Receive buffer of link events, in bytes: some 1,500 events.
const RECEIVE_BUFFER: usize = 2 << 20;
/// Delay before a failed listing is tried again, in milliseconds.
const AGAIN: u16 = 50;
/// Interval of checks whether a listing has ended, in milliseconds.
const LISTING: u16 = 2;
/// Effect of the missing right to run first: a pod may get packets for as long as these threads wait for a processor.
pub const BUSY: &str = "new veths are closed later";
/// Number of threads that attach. Each call waits for the kernel's RTNL lock and, with TCX, for a grace period while
/// holding it. The lock is granted in order of arrival, so a single thread would fall behind twenty CNI plugins that
/// request it repeatedly.
const THREADS: usize = 8;

/// A hook to close: of a new interface or not, with a value that is dropped afterwards.
type ClosingJob<T> = (Hook, bool, T);

/// Threads that close veths. Each closing comes with a value that is dropped after it.
#[derive(Debug)]
pub struct ClosingThreads<T> {
    closing: HookCloser,
    hooks: Sender<ClosingJob<T>>,
}

impl<T: Clone + Send + 'static> ClosingThreads<T> {
    /// Starts the threads in the network namespace of the caller. They end when the returned value is dropped.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(closing: HookCloser) -> io::Result<Self> {
        let (hooks, received) = channel();
        let received = Arc::new(Mutex::new(received));
        for _ in 0..THREADS {
            let (closing, received) = (closing.clone(), Arc::clone(&received));
            let thread = std::thread::Builder::new().name("closing".into()).stack_size(64 << 10);
            thread.spawn(move || {
                priority::raise(BUSY);
                // One thread waits for the next hook, the others for the lock.
                let next = |received: &Mutex<Receiver<ClosingJob<T>>>| lock(received).recv();
                while let Ok((hook, is_new, _until_closed)) = next(&received) {
                    closing.close(hook, is_new);
                }
            })?;
        }
        Ok(Self { closing, hooks })
    }

    /// Bars a veth at once, and queues both its hooks for closing. `is_new`: it has just appeared, so no program judges
    /// it yet.
    pub fn close(&self, ifindex: u32, is_new: bool, until_closed: &T) {
        self.closing.bar(ifindex, is_new);
        for direction in Direction::BOTH {
            // Cannot fail: the threads end after the sender only.
            let _ = self.hooks.send((Hook { ifindex, direction }, is_new, until_closed.clone()));
        }
    }
}

/// Change of the veths of this network namespace with a peer in another one, by interface index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VethChange {
    /// A veth existed before [`VethWatcher::open`].
    Existing(u32),
    /// A veth appeared, or its peer moved to another namespace.
    New(u32),
    /// An attribute of a veth changed, such as its name.
    Changed(u32),
    /// An interface of any kind left the namespace, or the peer of a veth moved into it.
    Gone(u32),
}

/// Veths of this network namespace with a peer in another one, updated by link events.
///
/// Events arrive at once. A listing waits for the kernel's RTNL lock, up to seconds, so a thread of its own lists the
/// veths: at the start, and after missed events.
#[derive(Debug)]
pub struct VethWatcher {
    listener: NetlinkListener,
    known: ReportedVeths,
    /// Whether events may be missing, so that the veths have to be listed.
    incomplete: bool,
    listing: Option<JoinHandle<io::Result<BTreeSet<u32>>>>,
}

impl VethWatcher {
    /// Opens the listener: [`VethWatcher::changes`] reports every veth that appears from now on.
    ///
    /// # Errors
    /// A netlink socket cannot be opened, or the interfaces cannot be read.
    pub fn open() -> io::Result<Self> {
        // The first listing finds the interfaces that appear between these two.
        let existing = interfaces()?;
        let listener = NetlinkListener::open(&LINKS, false, RECEIVE_BUFFER)?;
        let known = ReportedVeths { known: existing.clone(), existing, since: BTreeMap::new() };
        Ok(Self { listener, known, incomplete: true, listing: None })
    }

    /// The interfaces of any kind that existed before the listener, until they are listed.
    #[must_use]
    pub fn existing(&self) -> &BTreeSet<u32> {
        &self.known.existing
    }

    /// Handles the pending events and the result of a listing. A later call repeats failed steps.
    pub fn changes(&mut self, mut each: impl FnMut(VethChange)) {
        // The result lacks events that came later, so they are handled first.
        let finished = self.listing.take_if(|listing| listing.is_finished());
        loop {
            let Self { listener, known, .. } = self;
            let received = listener.receive(|_, message| {
                let event = outside_veth(message).map(|event| known.event(event));
                event.into_iter().flatten().for_each(&mut each);
            });
            match received {
                Ok(ReceiveResult::Messages) => {}
                Ok(ReceiveResult::Overrun) => self.incomplete = true,
                Ok(ReceiveResult::Nothing) => break,
                Err(error) => {
                    tracing::warn!(%error, "cannot read link events; listing interfaces instead");
                    self.incomplete = true;
                    break;
                }
            }
        }
        match finished.map(JoinHandle::join) {
            Some(Ok(Ok(listed))) => self.known.listed(&listed).into_iter().for_each(each),
            Some(failed) => {
                tracing::warn!(?failed, "cannot list interfaces; will retry");
                self.incomplete = true;
            }
            None => {}
        }
        if self.incomplete && self.listing.is_none() {
            self.known.since.clear();
            match std::thread::Builder::new().name("listing".into()).spawn(outside) {
                Ok(listing) => (self.listing, self.incomplete) = (Some(listing), false),
                Err(error) => tracing::warn!(%error, "cannot list interfaces; will retry"),
            }
        }
    }

    /// Returns the poll timeout: short while a listing runs or has to be repeated, else none.
    #[must_use]
    pub fn patience(&self) -> PollTimeout {
        match self.listing {
            Some(_) => PollTimeout::from(LISTING),
            None if self.incomplete => PollTimeout::from(AGAIN),
            None => PollTimeout::NONE,
        }
    }
}

impl AsFd for VethWatcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Interface indexes by their last reported state.
#[derive(Debug, Default)]
struct ReportedVeths {
    /// Interfaces of any kind that existed before the listener, until the first listing.
    existing: BTreeSet<u32>,
    /// Known interfaces; their next event reports no new interface.
    known: BTreeSet<u32>,
    /// Veths that appeared (`true`) or disappeared since the last listing was requested.
    since: BTreeMap<u32, bool>,
}

impl ReportedVeths {
    fn event(&mut self, event: OutsideVeth) -> Vec<VethChange> {
        match event {
            OutsideVeth::Present(index) if !self.known.contains(&index) => {
                vec![self.appeared(index)]
            }
            // Its listing may take long.
            OutsideVeth::Present(index) if self.existing.remove(&index) => {
                vec![VethChange::Existing(index)]
            }
            OutsideVeth::Left { index, peer } => vec![self.remove_link(index), self.appeared(peer)],
            OutsideVeth::Gone(index) => vec![self.remove_link(index)],
            OutsideVeth::BothEndsHere(peer) if self.known.contains(&peer) => {
                vec![self.remove_link(peer)]
            }
            OutsideVeth::Present(index) => vec![VethChange::Changed(index)],
            OutsideVeth::BothEndsHere(_) => Vec::new(),
        }
    }

    /// Merges a listing of all veths.
    fn listed(&mut self, listed: &BTreeSet<u32>) -> Vec<VethChange> {
        let Self { existing, known, since } = self;
        let mut changes = Vec::new();
        for index in listed.iter().filter(|index| since.get(index) != Some(&false)) {
            if known.insert(*index) {
                changes.push(VethChange::New(*index));
            } else if existing.contains(index) {
                changes.push(VethChange::Existing(*index));
            } else {
                changes.push(VethChange::Changed(*index));
            }
        }
        known.retain(|index| {
            let is_there = listed.contains(index) || since.get(index) == Some(&true);
            if !is_there {
                changes.push(VethChange::Gone(*index));
            }
            is_there
        });
        existing.clear();
        changes
    }

    fn appeared(&mut self, index: u32) -> VethChange {
        self.existing.remove(&index);
        self.known.insert(index);
        self.since.insert(index, true);
        VethChange::New(index)
    }

    fn remove_link(&mut self, index: u32) -> VethChange {
        self.existing.remove(&index);
        self.known.remove(&index);
        self.since.insert(index, false);
        VethChange::Gone(index)
    }
}

/// Returns the interfaces of any kind in the calling thread's network namespace, without the RTNL lock.
fn interfaces() -> io::Result<BTreeSet<u32>> {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let names = table.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim());
    Ok(names.filter_map(|name| nix::net::if_::if_nametoindex(name).ok()).collect())
}

/// Returns the interface indexes of the veths of this network namespace with a peer in another one; waits for the RTNL
/// lock.
///
/// # Errors
/// A netlink socket cannot be opened, or the request fails.
pub fn outside() -> io::Result<BTreeSet<u32>> {
    let found = NetlinkConnection::open()?.dump(&links_request(None), outside_veth)?;
    Ok(found.into_iter().filter_map(OutsideVeth::index).collect())
}

/// Running guard. It ends on drop; closed veths stay closed.
#[derive(Debug)]
pub struct NewcomerGuard {
    /// Ends the thread when closed.
    _stop: UnixStream,
}

impl NewcomerGuard {
    /// Closes each veth that has appeared since [`VethWatcher::open`], in the network namespace of the calling thread. `all`:
    /// also existing veths without a program of netpold.
    ///
    /// # Errors
    /// A thread cannot be created.
    pub fn start(closing: HookCloser, mut veths: VethWatcher, all: bool) -> io::Result<Self> {
        // Loads the program before the first veth needs it, and pins it once no new veth is missed.
        if let Err(error) = closing.program() {
            tracing::warn!(%error, "cannot close new interfaces; will retry at each new interface");
        }
        let (stop, stopped) = UnixStream::pair()?;
        let closers = ClosingThreads::start(closing.clone())?;
        let barred: BTreeSet<u32> =
            closing.barred_hooks().iter().map(|hook| hook.ifindex).collect();
        barred.difference(veths.existing()).for_each(|ifindex| closing.forget(*ifindex));
        let thread = std::thread::Builder::new().name("newcomers".into());
        thread.spawn(move || {
            priority::raise(BUSY);
            // An agent before this one may have attached to veths of the first events.
            let mut is_first = true;
            loop {
                veths.changes(|change| match change {
                    VethChange::New(ifindex) => closers.close(ifindex, !is_first, &()),
                    VethChange::Existing(ifindex) if all || barred.contains(&ifindex) => {
                        closers.close(ifindex, false, &());
                    }
                    VethChange::Existing(_) => {}
                    VethChange::Changed(ifindex) => closing.renamed(ifindex),
                    VethChange::Gone(ifindex) => closing.forget(ifindex),
                });
                is_first = false;
                if !wait(&veths, &stopped) {
                    break;
                }
            }
        })?;
        Ok(Self { _stop: stop })
    }
}

/// Waits for link events; `false` once the other end of `stopped` is closed.
fn wait(veths: &VethWatcher, stopped: &UnixStream) -> bool {
    let mut ready = [
        PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
        PollFd::new(veths.as_fd(), PollFlags::POLLIN),
    ];
    // Errors such as EINTR: the caller reads the events again.
    let _ = poll(&mut ready, veths.patience());
    ready[0].revents().is_none_or(|events| events.is_empty())
}

#[cfg(test)]
mod tests {
    use super::VethChange::{Changed, Existing, Gone, New};
    use super::*;

    fn set<const N: usize>(indexes: [u32; N]) -> BTreeSet<u32> {
        indexes.into()
    }

    fn known<const N: usize>(existing: [u32; N]) -> ReportedVeths {
        ReportedVeths { existing: set(existing), known: set(existing), ..ReportedVeths::default() }
    }

    #[test]
    fn events_do_not_wait_for_the_first_listing() {
        let mut known = known([1, 2, 3]);
        assert_eq!(known.event(OutsideVeth::Present(2)), [Existing(2)]);
        assert_eq!(known.event(OutsideVeth::Present(2)), [Changed(2)]);
        assert_eq!(known.event(OutsideVeth::Present(4)), [New(4)]);
        assert_eq!(known.event(OutsideVeth::Gone(3)), [Gone(3)]);
        // The listing began before the two events. Interface 1 is not a veth, 5 appeared before the listener.
        assert_eq!(known.listed(&set([2, 3, 5])), [Changed(2), New(5), Gone(1)]);
        assert_eq!(known.event(OutsideVeth::Present(3)), [New(3)], "another veth with this index");
        assert_eq!(known.event(OutsideVeth::Present(4)), [Changed(4)]);
    }

    #[test]
    fn a_veth_is_new_once_its_peer_has_left() {
        let mut known = known([1, 2]);
        assert_eq!(known.event(OutsideVeth::Left { index: 2, peer: 1 }), [Gone(2), New(1)]);
        assert_eq!(known.listed(&set([1])), [Changed(1)], "it is no existing one");
        assert_eq!(known.event(OutsideVeth::BothEndsHere(1)), [Gone(1)]);
        assert_eq!(known.event(OutsideVeth::Left { index: 3, peer: 1 }), [Gone(3), New(1)]);
    }

    #[test]
    fn a_listing_corrects_missed_events() {
        let mut known = known([]);
        assert_eq!(known.event(OutsideVeth::Present(1)), [New(1)]);
        known.since.clear();
        assert_eq!(known.listed(&set([2])), [New(2), Gone(1)]);
    }
}
