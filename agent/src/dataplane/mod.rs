//! The kernel's side of the agent: maps, programs, and where they are attached.

pub mod attach;
pub mod bpffs;
pub mod bridges;
mod clsact;
mod connection;
pub mod direct;
pub mod features;
pub mod fresh;
mod front;
pub mod gate;
pub mod generation;
mod heritage;
pub mod hosts6;
mod locals;
pub mod mmap;
mod namespace;
mod order;
pub mod readback;
pub mod role;
mod sent;
pub mod sys;
pub mod tables;
mod takeover;
pub mod test_run;
pub mod uplink;
pub mod xdp;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::AsFd;
use std::path::Path;

use aya::maps::{MapData, PerCpuArray};
use netpold_core::model::Direction;
use netpold_core::ops::{Capacity, Op};
use netpold_ebpf::flow::key::hash_keys;
use netpold_ebpf::judge::proof::DEFAULT_BIT;
use netpold_ebpf::layout::{BRIDGES, Settings, Unproven, WITNESS_SHIFT, WITNESSES};

use attach::{Attacher, Hook, Mode};
use bpffs::PinRoot;
use bridges::Bridges;
use gate::Gate;
use generation::{Generation, GenerationError, Predecessor};
use heritage::Heritage;
use order::Order;
use readback::Strays;
use role::{Program, Role};
use sent::Sent;
use tables::TableError;
use uplink::Uplinks;

use crate::conntrack::{Pass, Sweeper, Tracked, measure_hz, tick_rate, timeouts};
use crate::seed::{Wanted, kernel_flows};

/// Drop events that one CPU may emit in a second.
const EVENT_BURST: u32 = 100;

/// [`Settings::witness`]: nothing that a pod knows.
fn witness() -> u32 {
    let (first, last) = (*WITNESSES.start(), *WITNESSES.end());
    let random = RandomState::new().hash_one(()) as u32;
    (first + random % (last - first + 1)) << WITNESS_SHIFT
}

/// The node's dataplane: the current generation and what it is attached to.
pub struct Dataplane {
    pins: PinRoot,
    attacher: Attacher,
    conntrack_buckets: u32,
    hash_seed: u64,
    /// What was written; known from the first generation on.
    settings: Option<Settings>,
    /// The bit of `skb->mark` that proves a judgement.
    proof: u32,
    /// The kernel's ticks a second, measured once.
    hz: u32,
    counters: Option<PerCpuArray<MapData, u64>>,
    generation: Option<Generation>,
    /// Interfaces with the current generation's programs.
    attached: BTreeMap<u32, Role>,
    /// What an earlier agent left attached was gone through.
    swept: bool,
    uplinks: Uplinks,
    sent: Sent,
    /// Other versions' tables, until their flows are carried over.
    heritage: Vec<Heritage>,
    /// Programs may run in front of others, an earlier agent's if not this one's.
    watching: bool,
    strays: Strays,
    order: Order,
    gate: Gate,
    bridges: Bridges,
}

impl Dataplane {
    /// A dataplane that has not written anything yet. `conntrack_buckets` is the size of the IPv4
    /// table where none is pinned yet (a power of two, four flows each); IPv6 gets half of that.
    #[must_use]
    pub fn new(pins: PinRoot, attacher: Attacher, conntrack_buckets: u32, hash_seed: u64) -> Self {
        let mut dataplane = Self {
            uplinks: Uplinks::new(pins.links()),
            sent: Sent::new(pins.links()),
            pins,
            attacher,
            conntrack_buckets,
            hash_seed,
            settings: None,
            proof: 1 << DEFAULT_BIT,
            hz: 0,
            counters: None,
            generation: None,
            attached: BTreeMap::new(),
            swept: false,
            heritage: Vec::new(),
            watching: true,
            strays: Strays::default(),
            order: Order::default(),
            gate: Gate::default(),
            bridges: Bridges::default(),
        };
        dataplane.find_closed();
        dataplane.find_heritage();
        dataplane
    }

    /// With another bit of `skb->mark` by which programs know what they have judged, see
    /// [`netpold_ebpf::judge::proof`].
    #[must_use]
    pub fn with_proof(mut self, bit: u32) -> Self {
        self.proof = bit;
        self
    }

    /// How programs are attached.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.attacher.mode()
    }

    /// The generation in force, once there is one.
    pub fn generation(&mut self) -> Option<&mut Generation> {
        self.generation.as_mut()
    }

    /// What the agent before this one left pinned.
    ///
    /// # Errors
    /// A pin is there but cannot be read.
    pub fn predecessor(&self) -> Result<Predecessor, GenerationError> {
        Predecessor::read(&self.pins)
    }

    /// Loads a new generation and fills it. What is attached is replaced by the next
    /// [`Dataplane::attach`]; until then, and if this fails, the old generation judges.
    ///
    /// # Errors
    /// See [`GenerationError`].
    pub fn install(&mut self, capacity: &Capacity, ops: &[Op]) -> Result<(), GenerationError> {
        let mut fresh = Generation::load(&self.pins, capacity, self.conntrack_buckets)?;
        self.introduce(&mut fresh)?;
        fresh.apply(ops)?;
        self.put_in_place(fresh).map(drop)
    }

    /// Gives a generation the settings in force.
    fn introduce(&mut self, fresh: &mut Generation) -> Result<(), GenerationError> {
        let mut settings = match self.settings {
            Some(settings) => settings,
            None => self.first_settings(fresh)?,
        };
        // The flow table is shared with generations whose numbers are not known here.
        settings.revision = RandomState::new().hash_one(()) as u32;
        self.settings = Some(fresh.write_settings(settings)?);
        if !self.heritage.is_empty() && self.mode() == Mode::Tcx {
            fresh.watch_only(true)?;
        }
        Ok(())
    }

    /// What is attached next is of this generation. Gives back the one before it.
    fn put_in_place(
        &mut self,
        mut fresh: Generation,
    ) -> Result<Option<Generation>, GenerationError> {
        let counters = fresh.counters()?;
        fresh.publish(&self.pins)?;
        self.counters = Some(counters);
        let before = self.generation.replace(fresh);
        self.attached.clear();
        self.swept = false;
        self.uplinks.renew();
        self.sent.renew();
        Ok(before)
    }

    /// Settings in seconds become jiffies by the kernel's own tick rate.
    fn first_settings(&mut self, generation: &Generation) -> Result<Settings, GenerationError> {
        let hz = match tick_rate() {
            Some(hz) => hz,
            None => measure_hz(|| generation.jiffies()).map_err(GenerationError::Clock)?,
        };
        self.hz = hz;
        // An earlier agent's programs prove what they judge, as these do.
        let predecessor = self.predecessor()?;
        let demanded = predecessor.proof == Some(self.proof);
        let bridges = if demanded { self.inherit_bridges(&predecessor) } else { [0; BRIDGES] };
        Ok(Settings {
            hash_seed: self.hash_seed,
            hash_keys: hash_keys(self.hash_seed),
            timeouts: timeouts::current(hz, Path::new(timeouts::SYSCTLS)),
            refresh_after: hz,
            event_burst: EVENT_BURST,
            event_window: hz,
            proof: self.proof,
            netns_cookie: namespace::cookie().unwrap_or_default(),
            demands_proof: demanded.into(),
            agent_port: self.bridges.agent_port(),
            witness: witness(),
            bridges,
            ..Settings::default()
        })
    }

    /// Once all programs are attached: what comes from an endpoint without their proof went round
    /// them.
    fn demand_proof(&mut self) {
        let (Some(settings), Some(generation)) = (&mut self.settings, &mut self.generation) else {
            return;
        };
        if settings.demands_proof != 0 {
            return;
        }
        // What was let through before is on its way.
        tables::grace_period();
        match generation.tables().demand_proof() {
            Ok(()) => settings.demands_proof = 1,
            Err(error) => tracing::error!(%error, "proofs cannot be demanded; tried again"),
        }
    }

    /// Tidies flows away as [`Sweeper::pass`] does, by the timeouts that the node's own conntrack has
    /// now, and counts the others; `None` before the first generation.
    ///
    /// # Errors
    /// The tables cannot be mapped or the clock cannot be read.
    pub fn sweep(
        &mut self,
        endpoints: Option<&BTreeSet<u32>>,
    ) -> Result<Option<Pass>, GenerationError> {
        self.follow_timeouts()?;
        let Some(sweeper) = self.sweeper()? else { return Ok(None) };
        Ok(Some(sweeper.pass(self.now()?, endpoints)))
    }

    /// Takes over what has changed of the kernel's timeouts.
    fn follow_timeouts(&mut self) -> Result<(), TableError> {
        let (Some(settings), Some(generation)) = (&mut self.settings, &mut self.generation) else {
            return Ok(());
        };
        let current = timeouts::current(self.hz, Path::new(timeouts::SYSCTLS));
        if current != settings.timeouts {
            tracing::info!("the kernel's conntrack has other timeouts; flows are kept as long");
            generation.tables().write_timeouts(&current)?;
            settings.timeouts = current;
        }
        Ok(())
    }

    /// The flow tables; `None` before the first generation.
    fn sweeper(&self) -> Result<Option<Sweeper>, GenerationError> {
        let (Some(settings), Some(generation)) = (self.settings, &self.generation) else {
            return Ok(None);
        };
        let (four, six) = generation.conntrack()?;
        let sweeper = Sweeper::new(four, six, settings, self.hz)
            .map_err(|cause| TableError::Mapped { name: "CT4", cause })?;
        Ok(Some(sweeper))
    }

    /// The kernel's jiffies; 0 before the first generation.
    fn now(&self) -> Result<u32, GenerationError> {
        let jiffies = self.generation.as_ref().map_or(Ok(0), Generation::jiffies);
        jiffies.map_err(GenerationError::Clock)
    }

    /// Records the flows that the kernel's own conntrack knows of some endpoints; how many.
    ///
    /// # Errors
    /// The kernel does not tell, or the flow tables cannot be mapped.
    pub fn seed(&self, wanted: &Wanted) -> Result<u64, String> {
        let tables = self.sweeper().map_err(|error| error.to_string())?;
        let Some(tables) = tables else { return Ok(0) };
        let now = self.now().map_err(|error| error.to_string())?;
        let mut flows = 0;
        kernel_flows(|flow| {
            for side in wanted.sides(&flow, now) {
                let seen = tables.stamp(&side, flow.remaining, now);
                flows += u64::from(tables.adopt(&Tracked { seen, ..side }, now).is_ok());
            }
        })
        .map_err(|error| error.to_string())?;
        Ok(flows)
    }

    /// What an interface is that the current generation's programs run at.
    #[must_use]
    pub fn attached(&self, ifindex: u32) -> Option<Role> {
        self.attached.get(&ifindex).copied()
    }

    /// A drop counter summed over the CPUs; 0 before the first generation.
    #[must_use]
    pub fn counter(&self, index: u32) -> u64 {
        let values = self.counters.as_ref().and_then(|counters| counters.get(&index, 0).ok());
        values.map_or(0, |values| values.iter().sum())
    }

    /// Packets of the endpoint at an interface that exits missed the proof or the witness of, since this
    /// generation was made.
    #[must_use]
    pub fn unproven(&mut self, ifindex: u32) -> Unproven {
        self.generation.as_mut().map_or_else(Unproven::default, |it| it.tables().unproven(ifindex))
    }

    /// The bit of `skb->mark` that proves a judgement.
    #[must_use]
    pub fn proof(&self) -> u32 {
        self.proof
    }

    /// Writes operations to the generation in force, in order.
    ///
    /// # Errors
    /// The first one the kernel refused; those before it are in effect.
    pub fn apply(&mut self, ops: &[Op]) -> Result<(), TableError> {
        self.generation.as_mut().map_or(Ok(()), |generation| generation.apply(ops))
    }

    /// Makes the current generation's programs run at these interfaces and at no other: replaces a
    /// former generation's, or another role's, attaches, and leaves interfaces that are not wanted
    /// any more. Gives the interfaces where that failed, with the reason; index 0 stands for the
    /// clean-up.
    pub fn attach(&mut self, wanted: &BTreeMap<u32, Role>) -> BTreeMap<u32, String> {
        self.begin_takeover(wanted);
        self.leave_bridges(wanted);
        let mut problems = self.attach_roles(wanted);
        if self.uplinks.is_stale() {
            self.tend_uplinks();
        }
        self.end_takeover(problems.is_empty());
        self.open(|ifindex| wanted.contains_key(&ifindex));
        if let Err(reason) = self.leave(wanted) {
            problems.insert(0, reason);
        }
        self.demand_proof();
        problems.extend(self.demand_of_bridges());
        self.follow_pods(true);
        problems
    }

    /// As [`Dataplane::attach`], but leaves nothing: whatever else is attached stays.
    pub fn attach_new(&mut self, wanted: &BTreeMap<u32, Role>) -> BTreeMap<u32, String> {
        let mut problems = self.attach_roles(wanted);
        problems.extend(self.demand_of_bridges());
        self.follow_pods(false);
        problems
    }

    fn attach_roles(&mut self, wanted: &BTreeMap<u32, Role>) -> BTreeMap<u32, String> {
        let mut problems = BTreeMap::new();
        if self.generation.is_none() {
            return problems;
        }
        // New ports of bridges first: until each port has a program, not all that lacks the proof can be told
        // to be forged, and so long exits keep the programs of the generation before.
        let demanded = self.settings.map_or([0; BRIDGES], |settings| settings.bridges);
        let waits = |ifindex, role| self.bridges.waits_for(ifindex, role, &demanded);
        let (newcomers, others): (Vec<_>, Vec<_>) =
            wanted.iter().partition(|(ifindex, role)| waits(**ifindex, **role));
        self.attach_all(newcomers, &mut problems);
        problems.extend(self.demand_of_bridges());
        // Devices first, so that nothing is marked before it is judged there.
        let is_pod = |role: &Role| matches!(role, Role::Pod(_));
        let (pods, devices): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|(_, role)| is_pod(role));
        self.attach_all(devices.into_iter().chain(pods), &mut problems);
        problems
    }

    fn attach_all<'a>(
        &mut self,
        wanted: impl IntoIterator<Item = (&'a u32, &'a Role)>,
        problems: &mut BTreeMap<u32, String>,
    ) {
        for (&ifindex, &role) in wanted {
            if self.attached.get(&ifindex) == Some(&role) {
                continue;
            }
            match self.attach_one(ifindex, role) {
                Ok(()) => {
                    self.attached.insert(ifindex, role);
                    self.bridges.attached(ifindex, role);
                }
                Err(reason) => _ = problems.insert(ifindex, reason),
            }
        }
    }

    /// Pins again what was unpinned by somebody else, makes the pin root itself again if need be.
    /// Links follow with [`Dataplane::missing`]. Gives how many maps were pinned.
    ///
    /// # Errors
    /// What is in the way, and that this agent's end would be the end of enforcement.
    pub fn keep_pins(&mut self) -> Result<u64, String> {
        const LOST: &str = "what is enforced would not outlive this agent";
        self.pins.restore().map_err(|error| format!("{error}; {LOST}"))?;
        let Some(generation) = &self.generation else { return Ok(0) };
        generation.pin_again(&self.pins).map_err(|error| format!("{error}; {LOST}"))
    }

    /// Looks whether the current programs still run where they were attached. Gives the interfaces
    /// where one does not (a link or filter removed by hand, a qdisc deleted); the next
    /// [`Dataplane::attach`] puts it back.
    ///
    /// # Errors
    /// The attachments cannot be listed.
    pub fn missing(&mut self) -> Result<Vec<u32>, String> {
        let Some(generation) = &mut self.generation else { return Ok(Vec::new()) };
        let mut ids = BTreeMap::new();
        for program in Program::ALL {
            let info = generation.program(program).map_err(|e| e.to_string())?.info();
            ids.insert(program, info.map_err(|e| e.to_string())?.id());
        }
        let found: BTreeMap<Hook, u32> = self
            .attacher
            .attached()
            .map_err(|e| e.to_string())?
            .into_iter()
            .map(|found| (found.hook, found.program))
            .collect();
        let complete = |ifindex: u32, role: Role| {
            Direction::BOTH.into_iter().all(|direction| {
                let program = role.program(direction).and_then(|program| ids.get(&program));
                program.is_none() || found.get(&Hook { ifindex, direction }) == program
            })
        };
        let missing: Vec<u32> = self
            .attached
            .iter()
            .filter(|(i, role)| !complete(**i, **role))
            .map(|(i, _)| *i)
            .collect();
        for ifindex in &missing {
            self.attached.remove(ifindex);
            self.bridges.detached(*ifindex);
        }
        Ok(missing)
    }

    fn attach_one(&mut self, ifindex: u32, role: Role) -> Result<(), String> {
        let Some(generation) = &mut self.generation else { return Ok(()) };
        let mut result = Ok(());
        for direction in Direction::BOTH {
            let hook = Hook { ifindex, direction };
            let Some(program) = role.program(direction) else {
                self.attacher.detach(hook).map_err(|e| e.to_string())?;
                continue;
            };
            let program = generation.program(program).map_err(|e| e.to_string())?;
            let program = program.fd().map_err(|e| e.to_string())?;
            match self.attacher.attach(program.as_fd(), hook) {
                // Discovery will say that the interface is gone. What fails at one hook leaves the
                // other no less guarded.
                Err(error) if !error.is_gone() => result = result.and(Err(error.to_string())),
                _ => {}
            }
        }
        result
    }

    /// Detaches from what is not wanted: after a new generation from whatever an earlier agent left
    /// attached, else only from what this one attached to.
    fn leave(&mut self, wanted: &BTreeMap<u32, Role>) -> Result<(), String> {
        if !self.swept {
            self.attacher
                .retain(|hook| wanted.contains_key(&hook.ifindex))
                .map_err(|e| e.to_string())?;
            for (path, error) in self.pins.remove_other_versions() {
                tracing::warn!(path = %path.display(), %error, "an old version's pins stay");
            }
            self.swept = true;
        }
        let unwanted: Vec<u32> =
            self.attached.keys().filter(|i| !wanted.contains_key(i)).copied().collect();
        for ifindex in unwanted {
            for direction in Direction::BOTH {
                self.attacher.detach(Hook { ifindex, direction }).map_err(|e| e.to_string())?;
            }
            self.attached.remove(&ifindex);
            self.bridges.detached(ifindex);
        }
        Ok(())
    }
}
