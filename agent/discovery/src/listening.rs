//! Event sockets of discovery.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use netpold_dataplane::netlink::{MessageBody, NetlinkListener, ReceiveResult};

/// Maximum number of events taken from a socket in a row. With this many address events, a namespace causes them as
/// fast as they are read: the address socket rests for [`BREATH`], and later events end in one overrun.
const AT_ONCE: usize = 1024;
const BREATH: Duration = Duration::from_millis(20);

/// Event sockets of discovery.
pub(super) struct Listening {
    links: NetlinkListener,
    addresses: NetlinkListener,
    /// End of the socket pair that is closed to stop discovery.
    stopped: UnixStream,
    /// Whether the last read of address events reached [`AT_ONCE`].
    storm: bool,
}

impl Listening {
    /// Combines the sockets for link and route events of the agent's namespace, for address events of all, and for the
    /// stop.
    pub(super) fn new(
        links: NetlinkListener,
        addresses: NetlinkListener,
        stopped: UnixStream,
    ) -> Self {
        Self { links, addresses, stopped, storm: false }
    }

    /// Receives link and route events. Returns whether events were lost.
    pub(super) fn links(&mut self, mut each: impl FnMut(MessageBody<'_>)) -> io::Result<bool> {
        drain(&mut self.links, |_, message| each(message))
    }

    /// Receives address events with the identifier of their namespace. Returns whether events were lost.
    pub(super) fn addresses(
        &mut self,
        mut each: impl FnMut(Option<i32>, MessageBody<'_>),
    ) -> io::Result<bool> {
        let mut events = 0;
        let lost = drain(&mut self.addresses, |namespace, message| {
            events += 1;
            each(namespace, message);
        })?;
        self.storm = events >= AT_ONCE;
        Ok(lost)
    }

    /// Waits for an event until the given time at most. Returns `false` once discovery has to stop.
    pub(super) fn wait(&self, until: Instant) -> bool {
        let until = if self.storm { until.min(Instant::now() + BREATH) } else { until };
        // Rounded up: poll counts milliseconds, and a timeout of zero would spin.
        let millis = until.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
        let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
        let mut ready = [
            PollFd::new(self.stopped.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.links.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.addresses.as_fd(), PollFlags::POLLIN),
        ];
        let ready = if self.storm { &mut ready[..2] } else { &mut ready[..] };
        // Errors such as EINTR: the caller polls the sockets again.
        let _ = poll(ready, timeout);
        ready[0].revents().is_none_or(|events| events.is_empty())
    }
}

/// Receives until the socket is empty, at most [`AT_ONCE`] times. Returns whether events were lost.
fn drain(
    listener: &mut NetlinkListener,
    mut each: impl FnMut(Option<i32>, MessageBody<'_>),
) -> io::Result<bool> {
    let mut lost = false;
    for _ in 0..AT_ONCE {
        match listener.receive(&mut each)? {
            ReceiveResult::Messages => {}
            ReceiveResult::Overrun => lost = true,
            ReceiveResult::Nothing => break,
        }
    }
    Ok(lost)
}
