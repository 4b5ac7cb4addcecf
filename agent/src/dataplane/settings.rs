//! The settings in force: written with each generation, and followed while it judges.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;

use netpold_ebpf::flow::key::hash_keys;
use netpold_ebpf::layout::{BRIDGES, Settings, WITNESS_SHIFT, WITNESSES};

use super::attach::Mode;
use super::bridges::Bridges;
use super::generation::{Generation, GenerationError};
use super::namespace;
use super::quiescence::grace_period;
use super::tables::TableError;
use crate::conntrack::{Sweeper, measure_hz, tick_rate, timeouts};

/// Drop events that one CPU may emit in a second.
const EVENT_BURST: u32 = 100;

/// The settings in force; nothing is in force before the first generation.
#[derive(Debug)]
pub(super) struct ActiveSettings {
    hash_seed: u64,
    /// The bit of `skb->mark` that proves a judgement.
    proof: u32,
    /// The kernel's ticks a second, measured once.
    hz: u32,
    /// What was written.
    written: Option<Settings>,
    /// See [`ActiveSettings::agent_port`].
    agent: Option<UdpSocket>,
}

impl ActiveSettings {
    /// Nothing was written yet. `proof` is the bit of `skb->mark` that proves a judgement.
    pub(super) fn new(hash_seed: u64, proof: u32) -> Self {
        Self { hash_seed, proof, hz: 0, written: None, agent: None }
    }

    /// The bit of `skb->mark` that proves a judgement.
    pub(super) fn proof(&self) -> u32 {
        self.proof
    }

    /// What was written; `None` before the first generation.
    pub(super) fn written(&self) -> Option<Settings> {
        self.written
    }

    /// Buckets of the IPv4 flow table; `None` before the first generation.
    pub(super) fn buckets(&self) -> Option<u32> {
        self.written.map(|settings| settings.ct4_mask + 1)
    }

    /// What is demanded of bridges, as [`Settings::bridges`].
    pub(super) fn bridges(&self) -> [u32; BRIDGES] {
        self.written.map_or([0; BRIDGES], |settings| settings.bridges)
    }

    /// The first settings. Those in seconds become jiffies by the kernel's own tick rate.
    pub(super) fn first(&mut self, generation: &Generation) -> Result<Settings, GenerationError> {
        let hz = match tick_rate() {
            Some(hz) => hz,
            None => measure_hz(|| generation.jiffies()).map_err(GenerationError::Clock)?,
        };
        self.hz = hz;
        Ok(Settings {
            hash_seed: self.hash_seed,
            hash_keys: hash_keys(self.hash_seed),
            timeouts: timeouts::current(hz, Path::new(timeouts::SYSCTLS)),
            refresh_after: hz,
            event_burst: EVENT_BURST,
            event_window: hz,
            proof: self.proof,
            netns_cookie: namespace::cookie().unwrap_or_default(),
            agent_port: self.agent_port(),
            witness: witness(),
            ..Settings::default()
        })
    }

    /// Writes settings to a generation, by a revision of its own.
    pub(super) fn write(
        &mut self,
        mut settings: Settings,
        generation: &mut Generation,
    ) -> Result<(), TableError> {
        // The flow table is shared with generations whose numbers are not known here.
        settings.revision = RandomState::new().hash_one(()) as u32;
        self.written = Some(generation.write_settings(settings)?);
        Ok(())
    }

    /// Once all programs are attached: what comes from an endpoint without their proof went round
    /// them.
    pub(super) fn demand_proof(&mut self, generation: &mut Generation) {
        let Some(settings) = self.written.as_mut().filter(|it| it.demands_proof == 0) else {
            return;
        };
        // What was let through before is on its way.
        grace_period();
        match generation.tables().demand_proof() {
            Ok(()) => settings.demands_proof = 1,
            Err(error) => tracing::error!(%error, "proofs cannot be demanded; tried again"),
        }
    }

    /// Demands less of bridges with a port that has no program.
    pub(super) fn demand_no_more(&mut self, bridges: &Bridges, generation: &mut Generation) {
        self.demand(bridges.kept(&self.bridges()), generation);
    }

    /// Demands the proof of all bridges that it can be demanded of. Gives those that there was no room
    /// for, with the reason.
    pub(super) fn demand_of_bridges(
        &mut self,
        bridges: &Bridges,
        mode: Mode,
        generation: &mut Generation,
    ) -> Vec<(u32, String)> {
        let (words, left) = bridges.demanded(&self.bridges());
        if words != self.bridges() {
            // What came by before is on its way. To attach a link takes as long.
            if mode == Mode::Clsact {
                grace_period();
            }
            self.demand(words, generation);
        }
        let reason = format!(
            "more than {BRIDGES} bridges have pods: packets that go round a pod's program are not found on \
             this one"
        );
        left.into_iter().map(|bridge| (bridge, reason.clone())).collect()
    }

    /// Changes what is demanded of bridges, place by place.
    fn demand(&mut self, words: [u32; BRIDGES], generation: &mut Generation) {
        let Some(settings) = &mut self.written else { return };
        for (place, (now, wanted)) in settings.bridges.iter_mut().zip(words).enumerate() {
            if wanted == *now {
                continue;
            }
            match generation.tables().demand_of(place, wanted) {
                Ok(()) => *now = wanted,
                Err(error) => tracing::error!(%error, "what is demanded of bridges stays"),
            }
        }
    }

    /// Takes over what has changed of the kernel's timeouts.
    pub(super) fn follow_timeouts(
        &mut self,
        generation: &mut Generation,
    ) -> Result<(), TableError> {
        let Some(settings) = &mut self.written else { return Ok(()) };
        let current = timeouts::current(self.hz, Path::new(timeouts::SYSCTLS));
        if current != settings.timeouts {
            tracing::info!("the kernel's conntrack has other timeouts; flows are kept as long");
            generation.tables().write_timeouts(&current)?;
            settings.timeouts = current;
        }
        Ok(())
    }

    /// The flow tables, and the kernel's jiffies; `None` before the first generation.
    pub(super) fn flow_tables(
        &self,
        generation: Option<&Generation>,
    ) -> Result<Option<(Sweeper, u32)>, GenerationError> {
        let (Some(settings), Some(generation)) = (self.written, generation) else {
            return Ok(None);
        };
        let (four, six) = generation.conntrack()?;
        let tables = Sweeper::new(four, six, settings, self.hz)
            .map_err(|cause| TableError::Mapped { name: "CT4", cause })?;
        Ok(Some((tables, generation.jiffies().map_err(GenerationError::Clock)?)))
    }

    /// The port, in network byte order, of a socket that ends with this process; 0 if there is none.
    fn agent_port(&mut self) -> u32 {
        let port = |socket: &UdpSocket| Ok(u32::from(socket.local_addr()?.port().to_be()));
        let own = || -> io::Result<UdpSocket> {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            socket.connect(socket.local_addr()?)?;
            Ok(socket)
        };
        let found = match &self.agent {
            Some(socket) => port(socket),
            None => own().and_then(|socket| port(self.agent.insert(socket))),
        };
        found.unwrap_or_else(|error| {
            tracing::warn!(
                %error,
                "no socket at 127.0.0.1: packets that go round a pod's program on a bridge drop only if \
                 they have a pod's source"
            );
            0
        })
    }
}

/// [`Settings::witness`]: nothing that a pod knows.
fn witness() -> u32 {
    let (first, last) = (*WITNESSES.start(), *WITNESSES.end());
    let random = RandomState::new().hash_one(()) as u32;
    (first + random % (last - first + 1)) << WITNESS_SHIFT
}
