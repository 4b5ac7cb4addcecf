//! The agent's side: one trace at a time, which ends in all cases.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netpold_ebpf::trace::{CLAUSES, Clause, TraceFilter};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use super::packet::{Line, Packet};
use super::request::Request;
use super::steps::{Assembler, RawPacket};
use crate::dataplane::shared_maps::SharedMaps;
use crate::dataplane::traced::TracedPrograms;
use crate::lock::lock;
use crate::observe::Attributions;

/// The request for a trace: this, a space, and a [`Request`] in JSON.
pub const TRACE_REQUEST: &str = "trace";
/// Longest trace, in seconds.
pub(super) const LONGEST: u64 = 600;
/// Packets that each CPU tells of in a second.
const BURST: u32 = 100;
/// Between two looks for lines.
const PAUSE: Duration = Duration::from_millis(50);
/// Looks after which it is seen to that the programs are still there.
const LOOKS: u32 = 20;
/// How long a client may take to read the last lines.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where packets are traced, and which.
#[derive(Debug)]
pub struct Target {
    /// Name of the node.
    pub node: String,
    /// The host's sides of the pod's veths: index and name.
    pub interfaces: Vec<(u32, String)>,
    /// What the programs are loaded with.
    pub maps: SharedMaps,
    /// Which packets.
    pub clauses: Vec<Clause>,
}

/// Who enforces policy on the node.
pub trait Tracing: Send + 'static {
    /// What a request means here.
    ///
    /// # Errors
    /// There is no such pod on this node, or no such peer.
    fn target(&self, request: &Request) -> Result<Target, String>;
    /// Has traced programs judge at interfaces. Gives the kernel's jiffies, and how many a second has.
    ///
    /// # Errors
    /// They do not.
    fn begin(&mut self, ifindexes: &[u32], programs: &TracedPrograms)
    -> Result<(u32, u32), String>;
    /// Whether they still do.
    fn is_traced(&mut self) -> bool;
    /// Has the ordinary programs judge again.
    fn end(&mut self);
    /// Gives packets their names and reasons.
    fn name(
        &self,
        request: &Request,
        packets: Vec<RawPacket>,
        attributions: &mut Attributions,
    ) -> Vec<Packet>;
}

/// Serves traces.
pub struct Tracer<T> {
    node: Arc<Mutex<T>>,
    turn: Arc<Semaphore>,
}

/// A trace that runs. However it goes, the ordinary programs judge after it.
struct Session<T: Tracing> {
    node: Arc<Mutex<T>>,
    name: String,
    request: Request,
    programs: TracedPrograms,
    assembler: Assembler,
    attributions: Attributions,
    /// Packets that had been asked for at the last look, and those of them that were lost.
    matched: u64,
    lost: u64,
    /// The next trace begins after this one's end.
    _turn: OwnedSemaphorePermit,
}

impl<T: Tracing> Drop for Session<T> {
    fn drop(&mut self) {
        lock(&self.node).end();
    }
}

impl<T: Tracing> Session<T> {
    fn begin(
        node: Arc<Mutex<T>>,
        request: Request,
        turn: OwnedSemaphorePermit,
    ) -> Result<(Self, Line), String> {
        let pod = request.pod()?.clone();
        let target = lock(&node).target(&request)?;
        // Without the engine: the kernel verifies the programs for a second or more.
        let programs = TracedPrograms::load(&target.maps).map_err(|error| error.to_string())?;
        let ifindexes: Vec<u32> = target.interfaces.iter().map(|(index, _)| *index).collect();
        let now = lock(&node).begin(&ifindexes, &programs)?;
        let filter = filter(&target.clauses, request.seconds, now);
        let started = Line::Started {
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
        // From here on it ends with the session.
        let asked = filter.and_then(|it| session.programs.ask(&it).map_err(|e| e.to_string()));
        asked.map(|()| (session, started))
    }

    /// Has the ordinary programs judge again. Gives what was told until then.
    fn finish(&mut self) -> io::Result<Vec<u8>> {
        lock(&self.node).end();
        let mut text = self.look()?;
        text.extend(self.look()?);
        Ok(text)
    }

    /// What was told since the last look, and what was lost before that.
    fn look(&mut self) -> io::Result<Vec<u8>> {
        let matched = self.programs.matched();
        let lines = self.programs.read();
        let packets = self.assembler.take(&lines);
        let packets = lock(&self.node).name(&self.request, packets, &mut self.attributions);
        let mut text = Vec::new();
        for packet in packets {
            text.extend(line(&Line::Packet(Box::new(packet)))?);
        }
        // All that was asked for at the last look has been told of by now, or never is.
        let lost = self.matched.saturating_sub(self.assembler.complete() + self.lost);
        if lost > 0 {
            self.lost += lost;
            text.extend(line(&Line::Lost { node: self.name.clone(), packets: lost })?);
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

fn line(line: &Line) -> io::Result<Vec<u8>> {
    let mut json = serde_json::to_vec(line)?;
    json.push(b'\n');
    Ok(json)
}

async fn refuse(stream: &mut UnixStream, error: String) -> io::Result<()> {
    stream.write_all(&line(&Line::Refused { error })?).await
}

impl<T: Tracing> Tracer<T> {
    /// Of this node.
    pub fn new(node: Arc<Mutex<T>>) -> Self {
        Self { node, turn: Arc::new(Semaphore::new(1)) }
    }

    /// Serves a client until its time is over, or until it ends.
    ///
    /// # Errors
    /// The client cannot be written to, as when it has ended.
    pub async fn serve(self: Arc<Self>, mut stream: UnixStream, request: String) -> io::Result<()> {
        let request: Request = match serde_json::from_str(&request) {
            Ok(request) => request,
            Err(error) => return refuse(&mut stream, format!("not understood: {error}")).await,
        };
        if !(1..=LONGEST).contains(&request.seconds) {
            let error = format!("a trace takes 1 to {LONGEST} seconds");
            return refuse(&mut stream, error).await;
        }
        let Ok(turn) = Arc::clone(&self.turn).try_acquire_owned() else {
            let error = "another trace is running on this node: try again when it has ended";
            return refuse(&mut stream, error.to_owned()).await;
        };
        let until = Duration::from_secs(request.seconds);
        let (node, seconds) = (Arc::clone(&self.node), request.seconds);
        let begun = spawn_blocking(move || Session::begin(node, request, turn)).await;
        let (session, started) = match begun.map_err(io::Error::other)? {
            Ok(begun) => begun,
            Err(error) => return refuse(&mut stream, error).await,
        };
        let node = session.name.clone();
        let session = Arc::new(Mutex::new(session));
        // A client that does not read must not keep the traced programs.
        let deadline = until + PATIENCE;
        let sent = timeout(deadline, send(&mut stream, &session, &started, until)).await;
        // It waits for the engine, which may be writing.
        let finished = spawn_blocking(move || lock(&session).finish()).await;
        let mut last = finished.map_err(io::Error::other)??;
        let reason = match sent {
            Err(_) | Ok(Ok(None)) => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Ok(Ok(Some(End::Time))) => format!("the {seconds} s are over"),
            Ok(Ok(Some(End::Replaced))) => {
                "the node's programs were replaced meanwhile, as when its tables grow: trace again"
                    .to_owned()
            }
        };
        last.extend(line(&Line::Ended { node, reason })?);
        timeout(PATIENCE, stream.write_all(&last)).await.unwrap_or(Ok(()))
    }
}

/// Why a trace ended whose client is there.
enum End {
    Time,
    Replaced,
}

/// Sends what is told. `None`: the client has ended.
async fn send<T: Tracing>(
    stream: &mut UnixStream,
    session: &Arc<Mutex<Session<T>>>,
    started: &Line,
    time: Duration,
) -> io::Result<Option<End>> {
    let until = Instant::now() + time;
    let mut nothing = [0];
    let (mut reader, mut writer) = stream.split();
    writer.write_all(&line(started)?).await?;
    let mut looks = 0;
    loop {
        tokio::select! {
            () = sleep(PAUSE) => {}
            // It says no more, so this is its end.
            _ = reader.read(&mut nothing) => return Ok(None),
        }
        looks += 1;
        let (this, check) = (Arc::clone(session), looks % LOOKS == 0);
        let look = move || {
            let mut session = lock(&this);
            let text = session.look()?;
            let stays = !check || lock(&session.node).is_traced();
            io::Result::Ok((text, stays))
        };
        let (text, stays) = spawn_blocking(look).await.map_err(io::Error::other)??;
        tokio::select! {
            written = writer.write_all(&text) => written?,
            _ = reader.read(&mut nothing) => return Ok(None),
        }
        if !stays {
            return Ok(Some(End::Replaced));
        }
        if Instant::now() >= until {
            return Ok(Some(End::Time));
        }
    }
}
