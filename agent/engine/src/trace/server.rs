//! Agent side of traces: at most one trace at a time, which always ends.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netpold_api::trace::{LONGEST, TraceLine, TraceRequest, TracedPacket};
use netpold_core::lock::lock;
use netpold_dataplane::shared_maps::SharedMaps;
use netpold_dataplane::traced::TracedPrograms;
use netpold_ebpf::trace::{CLAUSES, Clause, TraceFilter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use super::steps::{Assembler, RawPacket};
use crate::lines::{LineSender, line};
use crate::observe::Attributions;

/// Reported packets per CPU and second.
const BURST: u32 = 100;
/// Pause between two reads of lines.
const PAUSE: Duration = Duration::from_millis(50);
/// Number of reads between two checks that the programs are still attached.
const READS: u32 = 20;
/// Longest time for a client to read the last lines.
const PATIENCE: Duration = Duration::from_secs(2);

/// Interfaces and filter of a trace.
#[derive(Debug)]
pub struct TraceTarget {
    /// Name of the node.
    pub node: String,
    /// Host sides of the pod's veths: index and name.
    pub interfaces: Vec<(u32, String)>,
    /// Maps in use, for the load of the traced programs.
    pub maps: SharedMaps,
    /// Clauses of the filter.
    pub clauses: Vec<Clause>,
}

/// Interface of the engine for traces.
pub trait Tracing: Send + 'static {
    /// Resolves a request on this node.
    ///
    /// # Errors
    /// There is no such pod on this node, or no such peer.
    fn target(&self, request: &TraceRequest) -> Result<TraceTarget, String>;
    /// Attaches the traced programs at interfaces. Returns the kernel's jiffies, and their number per second.
    ///
    /// # Errors
    /// The programs cannot be attached.
    fn begin(&mut self, ifindexes: &[u32], programs: &TracedPrograms)
    -> Result<(u32, u32), String>;
    /// Returns whether the traced programs are still attached.
    fn is_traced(&mut self) -> bool;
    /// Attaches the ordinary programs again.
    fn end(&mut self);
    /// Adds names, and the policies and rules that decided, to packets.
    fn name(
        &self,
        request: &TraceRequest,
        packets: Vec<RawPacket>,
        attributions: &mut Attributions,
    ) -> Vec<TracedPacket>;
}

/// Server of traces.
pub struct Tracer<T> {
    node: Arc<Mutex<T>>,
    turn: Arc<Semaphore>,
}

/// A running trace; attaches the ordinary programs again on drop.
struct TraceSession<T: Tracing> {
    node: Arc<Mutex<T>>,
    name: String,
    request: TraceRequest,
    programs: TracedPrograms,
    assembler: Assembler,
    attributions: Attributions,
    /// Numbers of packets that matched the filter before the last read, and of the lost ones among them.
    matched: u64,
    lost: u64,
    /// Permit that excludes another trace until this trace has ended.
    _turn: OwnedSemaphorePermit,
}

impl<T: Tracing> Drop for TraceSession<T> {
    fn drop(&mut self) {
        lock(&self.node).end();
    }
}

impl<T: Tracing> TraceSession<T> {
    fn begin(
        node: Arc<Mutex<T>>,
        request: TraceRequest,
        turn: OwnedSemaphorePermit,
    ) -> Result<(Self, TraceLine), String> {
        let pod = request.pod()?.clone();
        let target = lock(&node).target(&request)?;
        // The engine is not locked during the load: the verifier takes a second or more.
        let programs = TracedPrograms::load(&target.maps).map_err(|error| error.to_string())?;
        let ifindexes: Vec<u32> = target.interfaces.iter().map(|(index, _)| *index).collect();
        let now = lock(&node).begin(&ifindexes, &programs)?;
        let filter = filter(&target.clauses, request.seconds, now);
        let started = TraceLine::Started {
            node: target.node.clone(),
            pod,
            interfaces: target.interfaces.into_iter().map(|(_, name)| name).collect(),
            seconds: request.seconds,
        };
        let mut session = Self {
            node,
            name: target.node,
            request,
            programs,
            assembler: Assembler::default(),
            attributions: Attributions::default(),
            matched: 0,
            lost: 0,
            _turn: turn,
        };
        // From here on, the drop of `session` ends the trace.
        let asked =
            filter.and_then(|it| session.programs.set_filter(&it).map_err(|e| e.to_string()));
        asked.map(|()| (session, started))
    }

    /// Attaches the ordinary programs again. Returns the remaining lines.
    fn finish(&mut self) -> io::Result<Vec<u8>> {
        lock(&self.node).end();
        let mut text = self.read_lines()?;
        text.extend(self.read_lines()?);
        Ok(text)
    }

    /// Returns the lines since the last read, and a line about packets that were lost before the last read.
    fn read_lines(&mut self) -> io::Result<Vec<u8>> {
        let matched = self.programs.matched();
        let lines = self.programs.read();
        let packets = self.assembler.add_lines(&lines);
        let packets = lock(&self.node).name(&self.request, packets, &mut self.attributions);
        let mut text = Vec::new();
        for packet in packets {
            text.extend(line(&TraceLine::Packet(Box::new(packet)))?);
        }
        // Every packet that matched before the last read is complete by now, or lost.
        let lost = self.matched.saturating_sub(self.assembler.complete() + self.lost);
        if lost > 0 {
            self.lost += lost;
            text.extend(line(&TraceLine::Lost { node: self.name.clone(), packets: lost })?);
        }
        self.matched = matched;
        Ok(text)
    }
}

fn filter(
    given: &[Clause],
    seconds: u64,
    (now, second): (u32, u32),
) -> Result<TraceFilter, String> {
    let mut clauses = [Clause::default(); CLAUSES];
    let Some(place) = clauses.get_mut(..given.len()) else {
        return Err(format!("more than {CLAUSES} addresses: give one of them, or a block"));
    };
    place.copy_from_slice(given);
    let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
    let until = now.wrapping_add(second.saturating_mul(seconds).min(u32::MAX / 4));
    let count = u32::try_from(given.len()).unwrap_or_default();
    Ok(TraceFilter { until, second, burst: BURST, count, clauses })
}

impl<T: Tracing> Tracer<T> {
    /// Creates the server for this node.
    pub fn new(node: Arc<Mutex<T>>) -> Self {
        Self { node, turn: Arc::new(Semaphore::new(1)) }
    }

    /// Begins a trace. The returned future sends the lines until the time is over, the traced programs are replaced, or
    /// the client disconnects.
    ///
    /// # Errors
    /// The request is refused.
    pub async fn begin(
        self: Arc<Self>,
        request: TraceRequest,
        lines: LineSender,
    ) -> Result<impl Future<Output = io::Result<()>>, String> {
        if !(1..=LONGEST).contains(&request.seconds) {
            return Err(format!("a trace takes 1 to {LONGEST} seconds"));
        }
        let turn = Arc::clone(&self.turn).try_acquire_owned().map_err(|_| {
            "another trace is running on this node: try again when it has ended".to_owned()
        })?;
        let node = Arc::clone(&self.node);
        let begun = spawn_blocking(move || TraceSession::begin(node, request, turn)).await;
        let (session, started) = begun.map_err(|error| error.to_string())??;
        Ok(serve(session, started, lines))
    }
}

/// Serves a client until the trace ends.
async fn serve<T: Tracing>(
    session: TraceSession<T>,
    started: TraceLine,
    lines: LineSender,
) -> io::Result<()> {
    let (node, seconds) = (session.name.clone(), session.request.seconds);
    let session = Arc::new(Mutex::new(session));
    // A client that does not read must not keep the traced programs attached.
    let time = Duration::from_secs(seconds);
    let sent = timeout(time + PATIENCE, send(&lines, &session, &started, time)).await;
    // On a blocking thread, because the engine's lock may be held for a write.
    let finished = spawn_blocking(move || lock(&session).finish()).await;
    let mut last = finished.map_err(io::Error::other)??;
    let reason = match sent {
        Err(_) | Ok(Ok(None)) => return Ok(()),
        Ok(Err(error)) => return Err(error),
        Ok(Ok(Some(TraceEnd::Time))) => format!("ended after {seconds} s"),
        Ok(Ok(Some(TraceEnd::Replaced))) => {
            "the node's programs were replaced meanwhile, as when its tables grow: trace again"
                .to_owned()
        }
    };
    last.extend(line(&TraceLine::Ended { node, reason })?);
    timeout(PATIENCE, lines.send(last)).await.unwrap_or(Ok(()))
}

/// Reasons for a trace to end before the client disconnects.
enum TraceEnd {
    Time,
    Replaced,
}

/// Sends lines until the trace ends; `None` if the client has disconnected.
async fn send<T: Tracing>(
    lines: &LineSender,
    session: &Arc<Mutex<TraceSession<T>>>,
    started: &TraceLine,
    time: Duration,
) -> io::Result<Option<TraceEnd>> {
    let until = Instant::now() + time;
    lines.send(line(started)?).await?;
    let mut reads = 0;
    loop {
        tokio::select! {
            () = sleep(PAUSE) => {}
            () = lines.closed() => return Ok(None),
        }
        reads += 1;
        let (this, check) = (Arc::clone(session), reads % READS == 0);
        let read_lines = move || {
            let mut session = lock(&this);
            let text = session.read_lines()?;
            let stays = !check || lock(&session.node).is_traced();
            io::Result::Ok((text, stays))
        };
        let (text, stays) = spawn_blocking(read_lines).await.map_err(io::Error::other)??;
        lines.send(text).await?;
        if !stays {
            return Ok(Some(TraceEnd::Replaced));
        }
        if Instant::now() >= until {
            return Ok(Some(TraceEnd::Time));
        }
    }
}
