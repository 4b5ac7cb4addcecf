//! The events that discovery waits for.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::netlink::{Listener, Message, Received};

/// Events of a kind that are taken in at once. Where there are as many addresses' events, a namespace
/// makes them as fast as they are read: none are for a while, and what comes then is one overrun.
const AT_ONCE: usize = 1024;
const BREATH: Duration = Duration::from_millis(20);

/// See the module.
pub(super) struct Listening {
    links: Listener,
    addresses: Listener,
    /// Closed by who wants discovery to end.
    stopped: UnixStream,
    /// More address events than are taken in at once.
    storm: bool,
}

impl Listening {
    /// To link and route events of our namespace, to address events of all, and to the end.
    pub(super) fn new(links: Listener, addresses: Listener, stopped: UnixStream) -> Self {
        Self { links, addresses, stopped, storm: false }
    }

    /// Receives link and route events; whether some were lost.
    pub(super) fn links(&mut self, mut each: impl FnMut(Message<'_>)) -> io::Result<bool> {
        drain(&mut self.links, |_, message| each(message))
    }

    /// Receives address events, with the identifier of their namespace; whether some were lost.
    pub(super) fn addresses(
        &mut self,
        mut each: impl FnMut(Option<i32>, Message<'_>),
    ) -> io::Result<bool> {
        let mut events = 0;
        let lost = drain(&mut self.addresses, |namespace, message| {
            events += 1;
            each(namespace, message);
        })?;
        self.storm = events >= AT_ONCE;
        Ok(lost)
    }

    /// Waits for an event, until then at the longest; whether discovery is to go on.
    pub(super) fn wait(&self, until: Instant) -> bool {
        let until = if self.storm { until.min(Instant::now() + BREATH) } else { until };
        // Rounded up: poll counts milliseconds, and zero would spin.
        let millis = until.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
        let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
        let mut ready = [
            PollFd::new(self.stopped.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.links.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.addresses.as_fd(), PollFlags::POLLIN),
        ];
        let ready = if self.storm { &mut ready[..2] } else { &mut ready[..] };
        // EINTR and the like: look again.
        let _ = poll(ready, timeout);
        ready[0].revents().is_none_or(|events| events.is_empty())
    }
}

/// Receives until nothing is waiting, or enough has come; whether something was lost.
fn drain(
    listener: &mut Listener,
    mut each: impl FnMut(Option<i32>, Message<'_>),
) -> io::Result<bool> {
    let mut lost = false;
    for _ in 0..AT_ONCE {
        match listener.receive(&mut each)? {
            Received::Messages => {}
            Received::Overrun => lost = true,
            Received::Nothing => break,
        }
    }
    Ok(lost)
}
