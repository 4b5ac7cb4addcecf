//! Drops as the kernel tells of them: the latest for status, a bounded number of log lines.
//!
//! The kernel program limits what it sends per CPU and says how much it left out; here the same
//! drop is logged at most once per [`QUIET`], with the number of times it was seen; and of drops that
//! all differ, as those of a flood from random sources, no more than [`DISTINCT`] in that time, with
//! the number of the others.

mod journal;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aya::maps::{MapData, RingBuf};
use k8s_openapi::jiff::Timestamp;
use netpold_core::model::{Direction, Key};
use netpold_core::probe::IpProtocol;
use netpold_ebpf::layout::DropEvent;
use netpold_ebpf::reason::Reason;
use serde::Serialize;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::info;

use crate::conntrack::FlowTuple;
use crate::lock::lock;
pub use journal::{Cursor, Journal, Lost, Outcome, Seen};

/// Events of probes that are waited for.
const EXPECTED: usize = 256;
/// For how long.
const SOON: Duration = Duration::from_secs(2);
/// Drops that are kept for status.
const KEPT: usize = 64;
/// How long a drop that was logged is not logged again.
pub const QUIET: Duration = Duration::from_secs(10);
/// Distinct drops told apart at a time; beyond that, new ones are counted and not logged.
const DISTINCT: usize = 128;
/// Distinct denials of a pod that are kept until somebody asks for them.
const DENIED_OF_POD: usize = 4;
/// Pods of which denials are kept.
const DENIED_PODS: usize = 256;

/// [`Dropped::reason`] of a flow that passed and that policies on trial would have denied.
pub const AUDIT: &str = "audit";

/// A dropped packet, or a flow that would be dropped ([`AUDIT`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Dropped {
    /// When the agent read it, in milliseconds since 1970.
    pub unix_millis: u64,
    /// Host-side interface index; 0 of an audited flow.
    pub ifindex: u32,
    /// Number of the pod instance.
    pub endpoint: u32,
    /// As the pod sees it.
    pub direction: Direction,
    /// Name of the reason; `unknown` for one of a newer program.
    pub reason: &'static str,
    /// The pod's address in this packet, if the packet was understood that far.
    pub local: Option<IpAddr>,
    /// The other side's address.
    pub remote: Option<IpAddr>,
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// The pod's port, or ICMP type and code.
    pub local_port: u16,
    /// The other side's port.
    pub remote_port: u16,
    /// Packet length in bytes.
    pub length: u32,
}

impl Dropped {
    pub(crate) fn new(event: &DropEvent) -> Self {
        let direction = if event.direction == 0 { Direction::Ingress } else { Direction::Egress };
        Self {
            unix_millis: unix_millis(),
            ifindex: event.ifindex,
            endpoint: event.endpoint,
            direction,
            reason: Reason::from_number(event.reason).map_or("unknown", Reason::as_str),
            local: address(event.family, &event.local),
            remote: address(event.family, &event.remote),
            protocol: (event.family != 0).then_some(event.protocol),
            local_port: event.local_port,
            remote_port: event.remote_port,
            length: event.length,
        }
    }

    /// The pod's port and the other side's, where the protocol has ports.
    pub(crate) fn ports(&self) -> Option<[u16; 2]> {
        let has_ports = self.protocol.is_some_and(|number| IpProtocol(number).has_ports());
        has_ports.then_some([self.local_port, self.remote_port])
    }

    /// When the agent read it, in RFC 3339 with milliseconds, UTC.
    pub(crate) fn time(&self) -> String {
        let time = Timestamp::from_millisecond(self.unix_millis.cast_signed());
        format!("{:.3}", time.unwrap_or_default())
    }

    /// A flow that policies on trial would deny.
    pub(crate) fn audited(tuple: &FlowTuple, direction: Direction, local: Option<IpAddr>) -> Self {
        // An echo's number makes no other flow for whoever reads it.
        let has_ports = IpProtocol(tuple.protocol).has_ports();
        let [local_port, remote_port] =
            [tuple.local_port, tuple.remote_port].map(|port| if has_ports { port } else { 0 });
        Self {
            unix_millis: unix_millis(),
            ifindex: 0,
            endpoint: tuple.endpoint,
            direction,
            reason: AUDIT,
            local,
            remote: Some(tuple.remote),
            protocol: Some(tuple.protocol),
            local_port,
            remote_port,
            length: 0,
        }
    }

    /// What makes two drops the same for the log: the port is that of the service.
    pub(crate) fn key(&self) -> DropKey {
        let port = match self.direction {
            Direction::Ingress => self.local_port,
            Direction::Egress => self.remote_port,
        };
        (self.endpoint, self.direction, self.reason, self.remote, self.protocol, port)
    }
}

/// The packet as its sender addressed it: `TCP 10.0.0.1:40000 to 10.0.0.2:80`.
impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(local), Some(remote), Some(protocol)) = (self.local, self.remote, self.protocol)
        else {
            return write!(f, "{} bytes", self.length);
        };
        let side = |address: IpAddr, port: u16| match protocol {
            6 | 17 | 132 => SocketAddr::new(address, port).to_string(),
            _ => address.to_string(),
        };
        let (local, remote) = (side(local, self.local_port), side(remote, self.remote_port));
        let (from, to) = match self.direction {
            Direction::Ingress => (remote, local),
            Direction::Egress => (local, remote),
        };
        write!(f, "{} {from} to {to}", IpProtocol(protocol))
    }
}

impl Dropped {
    /// Policy decided, and can say why.
    pub(crate) fn is_denial(&self) -> bool {
        [Reason::Policy, Reason::ServiceBackend].map(Reason::as_str).contains(&self.reason)
    }

    /// It passed: policies on trial would have dropped it.
    pub(crate) fn is_audit(&self) -> bool {
        self.reason == AUDIT
    }
}

/// Milliseconds since 1970.
pub(crate) fn unix_millis() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) type DropKey = (u32, Direction, &'static str, Option<IpAddr>, Option<u8>, u16);

fn address(family: u8, bytes: &[u8; 16]) -> Option<IpAddr> {
    match family {
        4 => Some(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into()),
        6 => Some(Ipv6Addr::from(*bytes).into()),
        _ => None,
    }
}

/// A drop to be logged, and how often it was seen since the last line about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The latest of them.
    pub dropped: Dropped,
    /// How many the line stands for.
    pub times: u64,
}

/// A denial to tell a pod's owner of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The pod.
    pub pod: Key,
    /// Its `metadata.uid`.
    pub uid: String,
    /// Denials with the same are the same to the owner.
    pub(crate) key: DropKey,
    /// What was denied and why, in a sentence.
    pub text: String,
}

/// Denials, and how fast they may be told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Denials {
    /// The denials, of as many pods as possible.
    pub all: Vec<Denial>,
    /// Nodes whose agents write Events beside this one's.
    pub nodes: usize,
}

#[derive(Debug)]
struct Quiet {
    until: Instant,
    /// Seen since the last line, and the latest of them.
    unsaid: Option<Line>,
}

/// The latest drops. Outlives the generations of maps that they are read from.
#[derive(Debug, Default)]
pub struct DropLog {
    recent: VecDeque<Dropped>,
    quiet: BTreeMap<DropKey, Quiet>,
    seen: u64,
    suppressed: u64,
    unnamed: u64,
    /// By endpoint number, so that the denials of one pod leave those of others room.
    denied: BTreeMap<u32, Vec<Line>>,
    journal: Arc<Journal>,
    /// Events of the agent's own probes that may come, and until when.
    expected: VecDeque<(DropEvent, Instant)>,
}

impl DropLog {
    /// A probe is about to be shown to a program: its event is nobody's drop. One event like it is left out, if
    /// it comes soon.
    pub fn expect(&mut self, event: DropEvent, now: Instant) {
        self.expected.retain(|(_, until)| now < *until);
        if self.expected.len() >= EXPECTED {
            self.expected.pop_front();
        }
        self.expected.push_back((event, now + SOON));
    }

    fn is_expected(&mut self, event: &DropEvent, now: Instant) -> bool {
        let found = DropEvent { reason: 0, suppressed: 0, ..*event };
        let mut expected = self.expected.iter();
        let place = expected.position(|(event, until)| *event == found && now < *until);
        place.is_some_and(|place| self.expected.remove(place).is_some())
    }

    /// Where everything is recorded for whoever watches.
    #[must_use]
    pub fn journal(&self) -> Arc<Journal> {
        Arc::clone(&self.journal)
    }

    /// The latest drops, oldest first.
    #[must_use]
    pub fn recent(&self) -> Vec<Dropped> {
        self.recent.iter().cloned().collect()
    }

    /// Events read.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Events the kernel left out to keep its limit.
    #[must_use]
    pub fn suppressed(&self) -> u64 {
        self.suppressed
    }

    /// Takes in an event; what to log of it now.
    pub fn record(&mut self, event: &DropEvent, now: Instant) -> Option<Line> {
        self.suppressed += u64::from(event.suppressed);
        self.journal.unsent(event.suppressed.into());
        if self.is_expected(event, now) {
            return None;
        }
        self.seen += 1;
        let dropped = Dropped::new(event);
        self.journal.dropped(&dropped);
        self.say_of(dropped, now)
    }

    /// As [`DropLog::record`], of what no event told.
    pub fn take_in(&mut self, dropped: Dropped, now: Instant) -> Option<Line> {
        self.journal.dropped(&dropped);
        self.say_of(dropped, now)
    }

    fn say_of(&mut self, dropped: Dropped, now: Instant) -> Option<Line> {
        if self.recent.len() == KEPT {
            self.recent.pop_front();
        }
        self.recent.push_back(dropped.clone());
        self.keep_denial(&dropped);
        let key = dropped.key();
        if let Some(quiet) = self.quiet.get_mut(&key) {
            let times = quiet.unsaid.as_ref().map_or(1, |line| line.times + 1);
            let line = Line { dropped, times };
            if now < quiet.until {
                quiet.unsaid = Some(line);
                return None;
            }
            *quiet = Quiet { until: now + QUIET, unsaid: None };
            return Some(line);
        }
        if self.quiet.len() >= DISTINCT {
            self.unnamed += 1;
            return None;
        }
        self.quiet.insert(key, Quiet { until: now + QUIET, unsaid: None });
        Some(Line { dropped, times: 1 })
    }

    fn keep_denial(&mut self, dropped: &Dropped) {
        let is_full =
            self.denied.len() >= DENIED_PODS && !self.denied.contains_key(&dropped.endpoint);
        if is_full || !dropped.is_denial() {
            return;
        }
        let kept = self.denied.entry(dropped.endpoint).or_default();
        if let Some(line) = kept.iter_mut().find(|line| line.dropped.key() == dropped.key()) {
            *line = Line { dropped: dropped.clone(), times: line.times + 1 };
        } else if kept.len() < DENIED_OF_POD {
            kept.push(Line { dropped: dropped.clone(), times: 1 });
        }
    }

    /// Denials since the last call, some of each pod.
    pub fn take_denied(&mut self) -> BTreeMap<u32, Vec<Line>> {
        std::mem::take(&mut self.denied)
    }

    /// How many events since the last call were beyond what is told apart.
    pub fn take_unnamed(&mut self) -> u64 {
        std::mem::take(&mut self.unnamed)
    }

    /// What is left to say of drops whose quiet time is over; those without news are forgotten.
    pub fn flush(&mut self, now: Instant) -> Vec<Line> {
        let mut lines = Vec::new();
        self.quiet.retain(|_, quiet| {
            if now < quiet.until {
                return true;
            }
            quiet.until = now + QUIET;
            quiet.unsaid.take().map(|line| lines.push(line)).is_some()
        });
        lines
    }
}

/// Reads one generation's events until it is dropped or the ring fails. `pod` names the pod of an
/// endpoint number.
///
/// # Errors
/// The ring's descriptor cannot be waited for.
pub async fn read(
    ring: RingBuf<MapData>,
    log: Arc<Mutex<DropLog>>,
    pod: impl Fn(u32) -> Option<String>,
) -> io::Result<()> {
    // SAFETY: the ring owns its map's descriptor, which stays open and the same while it lives; it
    // is never taken out of the AsyncFd.
    let mut ring = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) }?;
    let mut flush = tokio::time::interval(QUIET);
    flush.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            guard = ring.readable_mut() => {
                let mut guard = guard?;
                for line in take(guard.get_inner_mut(), &log) {
                    say(&line, &pod);
                }
                guard.clear_ready();
            }
            _ = flush.tick() => {
                let (lines, unnamed) = {
                    let mut log = lock(&log);
                    (log.flush(Instant::now()), log.take_unnamed())
                };
                for line in lines {
                    say(&line, &pod);
                }
                if unnamed > 0 {
                    info!(times = unnamed, "packets dropped that differ too much to name each");
                }
            }
        }
    }
}

fn take(ring: &mut RingBuf<MapData>, log: &Mutex<DropLog>) -> Vec<Line> {
    let (mut log, now) = (lock(log), Instant::now());
    let mut lines = Vec::new();
    while let Some(item) = ring.next() {
        lines.extend(decode(&item).and_then(|event| log.record(&event, now)));
    }
    lines
}

/// The event in a record; `None` for a record of another size.
fn decode(record: &[u8]) -> Option<DropEvent> {
    // SAFETY: as long as the event, of which every bit pattern is valid; alignment is not assumed.
    (record.len() == size_of::<DropEvent>())
        .then(|| unsafe { record.as_ptr().cast::<DropEvent>().read_unaligned() })
}

/// Logs a drop, or what would be one.
pub fn say(line: &Line, pod: impl Fn(u32) -> Option<String>) {
    let Line { dropped, times } = line;
    if dropped.is_audit() {
        info!(
            pod = pod(dropped.endpoint).as_deref().unwrap_or("unknown"),
            direction = %dropped.direction,
            verdict = AUDIT,
            flow = %dropped,
            times,
            "flow passed that policies on trial would deny"
        );
        return;
    }
    info!(
        pod = pod(dropped.endpoint).as_deref().unwrap_or("unknown"),
        direction = %dropped.direction,
        reason = dropped.reason,
        local = dropped.local.map(tracing::field::display),
        remote = dropped.remote.map(tracing::field::display),
        protocol = dropped.protocol,
        local_port = dropped.local_port,
        remote_port = dropped.remote_port,
        ifindex = dropped.ifindex,
        times,
        "packet dropped"
    );
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use aya::maps::Map;

    use super::*;
    use crate::bpf::sys::test_objects;
    use crate::bpf::test_run;

    fn event(endpoint: u32, local_port: u16, remote_port: u16) -> DropEvent {
        let mut remote = [0; 16];
        remote[..4].copy_from_slice(&[10, 0, 0, 9]);
        DropEvent {
            ifindex: 7,
            endpoint,
            reason: Reason::Policy as u8,
            family: 4,
            protocol: 6,
            local_port,
            remote_port,
            remote,
            ..DropEvent::default()
        }
    }

    #[test]
    fn the_same_drop_is_logged_once_in_a_while_with_its_count() {
        let (mut log, start) = (DropLog::default(), Instant::now());
        // The other side's port changes from attempt to attempt; the service is the same.
        let times: Vec<_> = (0..5u16)
            .map(|n| log.record(&event(1, 80, 40_000 + n), start).map(|line| line.times))
            .collect();
        assert_eq!(times, [Some(1), None, None, None, None]);
        assert!(log.record(&event(1, 81, 40_000), start).is_some(), "another service");
        assert!(log.record(&event(2, 80, 40_000), start).is_some(), "another pod");
        let mut egress = event(1, 80, 40_000);
        egress.direction = 1;
        assert!(log.record(&egress, start).is_some(), "another direction");
        let later = start + QUIET;
        assert_eq!(log.record(&event(1, 80, 40_005), later).unwrap().times, 5);
        assert_eq!((log.seen(), log.recent().len()), (9, 9));
    }

    #[test]
    fn what_was_not_said_is_said_at_the_end_and_then_forgotten() {
        let (mut log, start) = (DropLog::default(), Instant::now());
        for _ in 0..3 {
            log.record(&event(1, 80, 1), start);
        }
        log.record(&event(2, 80, 1), start);
        assert_eq!(log.flush(start), []);
        let lines = log.flush(start + QUIET);
        assert_eq!(lines.len(), 1, "nothing is left to say of the other");
        assert_eq!((lines[0].dropped.endpoint, lines[0].times), (1, 2));
        assert_eq!(log.flush(start + 2 * QUIET), []);
        assert!(log.quiet.is_empty());
    }

    #[test]
    fn memory_and_lines_are_bounded() {
        let (mut log, start) = (DropLog::default(), Instant::now());
        let lines = (0..10_000).filter(|&n| log.record(&event(n, 80, 1), start).is_some()).count();
        assert_eq!((lines, log.quiet.len()), (DISTINCT, DISTINCT));
        assert_eq!(log.take_unnamed(), 10_000 - DISTINCT as u64);
        assert_eq!(log.take_unnamed(), 0);
        let recent = log.recent();
        assert_eq!((recent.len(), recent[0].endpoint), (KEPT, 10_000 - KEPT as u32));
        assert_eq!(log.take_denied().len(), DENIED_PODS);
    }

    #[test]
    fn denials_of_one_pod_leave_those_of_others_room() {
        let (mut log, now) = (DropLog::default(), Instant::now());
        for port in 0..100 {
            log.record(&event(1, port, 1), now);
            log.record(&event(1, 0, 1), now);
        }
        log.record(&event(2, 80, 1), now);
        log.record(&DropEvent { reason: Reason::Malformed as u8, ..event(3, 80, 1) }, now);
        let denied = log.take_denied();
        assert_eq!(denied.keys().copied().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(denied[&1].iter().map(|line| line.times).collect::<Vec<_>>(), [101, 1, 1, 1]);
        assert!(log.take_denied().is_empty());
    }

    #[test]
    fn records_are_decoded_by_family_and_size() {
        let mut six = event(1, 80, 1);
        six.family = 6;
        six.suppressed = 4;
        // SAFETY: the event has no padding.
        let bytes: [u8; size_of::<DropEvent>()] = unsafe { std::mem::transmute(six) };
        assert_eq!(decode(&bytes), Some(six));
        assert_eq!(decode(&bytes[1..]), None);
        let mut log = DropLog::default();
        let line = log.record(&six, Instant::now()).unwrap().dropped;
        assert_eq!(line.remote, Some("a00:9::".parse().unwrap()));
        assert_eq!((line.reason, log.suppressed()), ("policy", 4));
        six.family = 0;
        six.reason = 255;
        let line = Dropped::new(&six);
        assert_eq!((line.remote, line.protocol, line.reason), (None, None, "unknown"));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn records_of_the_kernel_are_read_as_they_come() {
        let size = size_of::<DropEvent>() as i16;
        let ring = test_objects::ring(16_384);
        let writer = test_objects::ring_writer(ring.as_fd(), size, 77);
        let map = Map::from_map_data(MapData::from_fd(ring).unwrap()).unwrap();
        let log = Arc::new(Mutex::new(DropLog::default()));
        let reader = read(RingBuf::try_from(map).unwrap(), Arc::clone(&log), |_| None);
        let reader = tokio::spawn(reader);
        for seen in 1..=3 {
            test_run::run(writer.as_fd(), &test_run::Run::once(&[0; 14])).unwrap();
            let end = Instant::now() + Duration::from_secs(5);
            while lock(&log).seen() < seen {
                assert!(Instant::now() < end, "record {seen} was not read");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        assert_eq!(lock(&log).recent()[2].ifindex, 77);
        reader.abort();
    }
}
