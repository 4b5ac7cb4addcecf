//! The kernel side of the agent: maps, programs, and their attachments.
//!
//! [`Dataplane`] orders the steps. Each part has its own state and depends on none of the parts above it:
//!
//! | part | keeps |
//! |---|---|
//! | [`generation`] | a set of maps with the programs that read them |
//! | [`active`] | the generation in force, with the fill and the audit of its tables |
//! | [`tc_hooks`] | the programs at pods and devices, in front of foreign ones |
//! | [`uplink_xdp`], [`pod_xdp`] | the XDP programs in front of those |
//! | `settings` | the settings written with each generation, and the demands on packets |
//! | `flow_migration` | flows of other tables, until they are migrated |
//! | [`fragments`] | the nftables rules for fragments that bypass the programs |

pub mod active;
pub mod attach;
pub mod audit;
pub mod barrier;
pub mod bpf;
pub mod bpffs;
pub mod bridges;
mod checksum;
pub mod closing;
mod clsact;
mod connection;
pub mod conntrack;
pub mod features;
mod flow_growth;
mod flow_migration;
pub mod flow_numbers;
pub mod fragments;
mod front;
pub mod gate;
pub mod generation;
pub mod generation_inputs;
pub mod global_sections;
pub mod hook;
pub mod import_conntrack;
pub mod ipv6_blocks;
pub mod ipv6_hosts;
mod kernel_types;
mod local_endpoints;
mod maps;
pub mod names;
mod namespace;
pub mod netlink;
pub mod nftables;
pub mod object;
mod order;
mod other_layout;
mod packet_counters;
pub mod pinned_state;
pub mod pod_xdp;
pub mod priority;
mod probing;
pub mod quiescence;
pub mod role;
mod settings;
pub mod shared_maps;
pub mod tables;
pub mod tc_hooks;
pub mod traced;
pub mod uplink_xdp;
pub mod xdp;

use std::collections::{BTreeMap, BTreeSet};

use netpold_core::ops::{Capacity, Op};
use netpold_ebpf::judge::proof::DEFAULT_BIT;

use active::ActiveGeneration;
use attach::{AttachMode, Attacher, Hook};
use bpffs::PinRoot;
use bridges::Bridge;
use flow_growth::FlowGrowth;
use flow_migration::FlowMigration;
use fragments::FragmentFilter;
use generation::{FlowTables, Generation, GenerationError};
use generation_inputs::GenerationInputs;
use packet_counters::PacketCounts;
use pinned_state::PinnedState;
use pod_xdp::PodXdp;
pub use probing::ProbeRun;
use role::{Program, Role, Roles};
use settings::ActiveSettings;
use tc_hooks::{InterfaceProblems, TcHooks};
use traced::TracedPrograms;
use uplink_xdp::{DesiredUplinks, UplinkXdp};

use crate::conntrack::Buckets;

/// Problem of a device without a place in `Settings::devices`.
const NO_PLACE: &str = "no slot for this device (too many devices on the node, or colliding indexes): packets that \
                        arrive by it drop as unknown_device where they would reach a pod or leave the node";

/// Options of a [`Dataplane`].
#[derive(Clone, Debug)]
pub struct DataplaneOptions {
    /// Sizes of the flow tables.
    pub buckets: Buckets,
    /// Seed of the flow tables' hash.
    pub hash_seed: u64,
    /// Bit of `skb->mark` by which programs recognise judged packets, see [`netpold_ebpf::judge::proof`].
    pub proof: u32,
    /// Devices where XDP drops packets that policy denies.
    pub uplinks: Option<DesiredUplinks>,
    /// Whether XDP drops packets that pods may not send, in front of their hooks.
    pub pod_xdp: bool,
    /// Limits of the answers to denied packets.
    pub rejections: Rejections,
}

/// Maximum number of answers to denied packets per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejections {
    /// For each pod's interface and direction.
    pub pod: u32,
    /// For all pods of the node together.
    pub node: u32,
}

impl Default for Rejections {
    fn default() -> Self {
        Self { pod: 100, node: 2000 }
    }
}

impl DataplaneOptions {
    /// Options without XDP, and with the default bit of `skb->mark`.
    #[must_use]
    pub fn new(buckets: Buckets, hash_seed: u64) -> Self {
        let proof = 1 << DEFAULT_BIT;
        let rejections = Rejections::default();
        Self { buckets, hash_seed, proof, uplinks: None, pod_xdp: false, rejections }
    }
}

/// The node's dataplane: the current generation and its attachments.
pub struct Dataplane {
    pins: PinRoot,
    active: ActiveGeneration,
    hooks: TcHooks,
    uplink_xdp: UplinkXdp,
    pod_xdp: PodXdp,
    fragments: FragmentFilter,
    migration: FlowMigration,
}

impl Dataplane {
    /// A dataplane without a generation.
    #[must_use]
    pub fn new(pins: PinRoot, attacher: Attacher, options: DataplaneOptions) -> Self {
        Self {
            active: ActiveGeneration::new(
                ActiveSettings::new(options.hash_seed, options.proof, options.rejections),
                FlowGrowth::new(options.buckets, attacher.mode()),
            ),
            hooks: TcHooks::new(attacher),
            uplink_xdp: UplinkXdp::new(pins.links(), options.uplinks),
            pod_xdp: PodXdp::new(pins.links(), options.pod_xdp),
            fragments: FragmentFilter::new(options.proof),
            migration: FlowMigration::find(&pins),
            pins,
        }
    }

    /// The generation in force.
    #[must_use]
    pub fn active(&self) -> &ActiveGeneration {
        &self.active
    }

    /// Returns the packets that programs have counted, an earlier agent's programs included: also before the first
    /// generation of this agent, and without packets of its probes.
    #[must_use]
    pub fn packets(&self) -> PacketCounts {
        let generation = self.active.generation().map(Generation::counters);
        let mut packets = generation.unwrap_or_else(|| packet_counters::pinned(&self.pins));
        for (counter, packets) in (0..).zip(&mut packets) {
            *packets = packets.saturating_sub(self.active.probed(counter));
        }
        packets
    }

    /// The generation in force, for changes of its tables.
    pub fn active_mut(&mut self) -> &mut ActiveGeneration {
        &mut self.active
    }

    /// The programs at pods and devices.
    #[must_use]
    pub fn hooks(&self) -> &TcHooks {
        &self.hooks
    }

    /// XDP at the uplinks.
    #[must_use]
    pub fn uplink_xdp(&self) -> &UplinkXdp {
        &self.uplink_xdp
    }

    /// XDP at the pods' interfaces.
    #[must_use]
    pub fn pod_xdp(&self) -> &PodXdp {
        &self.pod_xdp
    }

    /// Loads a new generation and fills it. The next [`Dataplane::attach`] replaces the attached programs; until then,
    /// and on failure, the old generation judges.
    ///
    /// # Errors
    /// See [`GenerationError`].
    pub fn install(&mut self, capacity: &Capacity, ops: &[Op]) -> Result<(), GenerationError> {
        let mut fresh =
            Generation::load_at(&self.pins.maps(), capacity, self.active.growth.first())?;
        self.introduce(&mut fresh)?;
        fresh.apply(ops)?;
        self.put_in_place(fresh).map(drop)
    }

    /// Inputs of the next generation; `None` before the first.
    #[must_use]
    pub fn generation_inputs(&self) -> Option<GenerationInputs> {
        self.active.generation()?;
        Some(GenerationInputs {
            pins: self.pins.maps(),
            flow_tables: self.active.growth.next(self.active.settings.buckets()?),
            settings: self.active.settings()?,
            xdp: self.uplink_xdp.program().into_iter().chain(self.pod_xdp.program()).collect(),
        })
    }

    /// Replaces the generation in force by a filled one, and returns the former, which continues to judge until the
    /// next [`Dataplane::attach`].
    ///
    /// # Errors
    /// See [`GenerationError`]; then the generation in force does not change.
    pub fn replace(
        &mut self,
        mut fresh: Generation,
    ) -> Result<Option<Generation>, GenerationError> {
        match (fresh.flow_tables(), self.active.generation()) {
            (FlowTables::Own(_), Some(former)) => self.migration.outgrow(former, &self.pins)?,
            (FlowTables::Kept, _) => self.active.growth.give_up(),
            _ => {}
        }
        self.introduce(&mut fresh)?;
        self.put_in_place(fresh)
    }

    /// Writes the settings in force to a generation.
    fn introduce(&mut self, fresh: &mut Generation) -> Result<(), GenerationError> {
        let settings = match self.active.settings() {
            Some(settings) => settings,
            None => {
                let mut first = self.active.settings.first(fresh)?;
                // An earlier agent's programs leave the same proof.
                let state = PinnedState::read(&self.pins)?;
                if state.proof == Some(self.active.proof()) {
                    first.demands_proof = 1;
                    first.closes_unknown = self.active.settings.closes_unknown();
                    first.bridges = self.hooks.inherit_bridges(state.bridges);
                } else {
                    // Rules of an earlier agent demand another proof.
                    self.fragments.apply(None);
                }
                first
            }
        };
        self.active.settings.write(settings, fresh)?;
        if self.migration.is_pending() && self.hooks.mode() == AttachMode::Tcx {
            fresh.set_handover(self.migration.handover_flags())?;
        }
        Ok(())
    }

    /// Makes a generation the one that is attached next; returns the one before it.
    fn put_in_place(
        &mut self,
        mut fresh: Generation,
    ) -> Result<Option<Generation>, GenerationError> {
        let former = self.active.generation();
        let named = match former.filter(|_| self.migration.shares_names()) {
            Some(former) => former.named(),
            // Without a readable former state, all connections to resolvers end.
            None => PinnedState::read(&self.pins).map(|state| state.named).unwrap_or_default(),
        };
        fresh.succeed(former, named)?;
        fresh.publish(&self.pins)?;
        self.hooks.renew();
        self.uplink_xdp.renew();
        self.pod_xdp.renew();
        Ok(self.active.generation.replace(fresh))
    }

    /// Closes hooks of isolated pods until their programs are attached; returns the number of closed hooks.
    pub fn close(&mut self, hooks: &[Hook]) -> usize {
        self.hooks.close(hooks)
    }

    /// Sets the bridges with pods. The demands on a bridge with a port without program are relaxed at once; those on
    /// the others are raised after the next [`Dataplane::attach`].
    pub fn set_bridges(&mut self, bridges: BTreeMap<u32, Bridge>) {
        self.hooks.set_bridges(bridges);
        if let Some((generation, settings)) = self.active.parts() {
            settings.demand_no_more(self.hooks.bridges(), generation);
        }
        self.follow_fragment_sources();
    }

    /// Sets the interfaces that may forward packets without the proof; all others may not, once all programs are
    /// attached.
    pub fn set_devices(&mut self, devices: BTreeSet<u32>) {
        let ActiveGeneration { settings, generation, .. } = &mut self.active;
        settings.devices_are(devices, generation.as_mut());
        self.follow_fragment_sources();
    }

    /// Writes changed interfaces to the rules for fragments at once, if these rules are due.
    fn follow_fragment_sources(&mut self) {
        if let Some(sources) = self.active.settings.fragment_sources() {
            self.fragments.apply(Some(&sources));
        }
    }

    /// Restores the rules for fragments that bypass the programs, and reads their counters. Returns whether another
    /// process had changed the rules.
    pub fn reconcile_fragments(&mut self) -> bool {
        let sources = self.active.settings.fragment_sources();
        sources.is_some_and(|sources| self.fragments.reconcile(&sources))
    }

    /// Reason for which fragments that bypass the programs are reassembled.
    #[must_use]
    pub fn fragments_problem(&self) -> Option<&str> {
        self.fragments.failure()
    }

    /// Returns the number of fragments that bypassed the programs and were dropped, at the last
    /// [`Dataplane::reconcile_fragments`].
    #[must_use]
    pub fn dropped_fragments(&self) -> u64 {
        self.fragments.dropped()
    }

    /// Repeats failed writes of devices to the programs' settings.
    pub fn reconcile_devices(&mut self) {
        if let Some((generation, settings)) = self.active.parts() {
            settings.write_devices(generation);
        }
    }

    /// Attaches the current generation's programs to exactly these interfaces: replaces programs of a former generation
    /// or of another role, attaches missing programs, and detaches from all other interfaces. Has no effect before the
    /// first generation.
    pub fn attach(&mut self, wanted: &Roles) -> InterfaceProblems {
        let Self { active, hooks, fragments, migration, .. } = self;
        let Some((generation, settings)) = active.parts() else { return InterfaceProblems::new() };
        hooks.bridges_lose_ports(wanted);
        settings.demand_no_more(hooks.bridges(), generation);
        settings.write_devices(generation);
        migration.begin(wanted, hooks, settings, generation);
        let mut problems = attach_roles(wanted, hooks, settings, generation);
        if let Err(error) = generation.end_streams_attached(problems.is_empty()) {
            problems.insert(0, error.to_string());
        }
        if self.uplink_xdp.is_stale() {
            self.uplink_xdp.reconcile(generation);
        }
        migration.end(problems.is_empty(), hooks.attacher(), settings, generation);
        hooks.open(wanted);
        if let Err(error) = hooks.detach_unwanted(wanted, &self.pins) {
            problems.insert(0, error.to_string());
        }
        if generation.may_be_behind() && !migration.may_be_behind(&self.pins) {
            // A failed write only omits a check, and is repeated.
            let _ = generation.set_handover(0);
        }
        settings.demand_proof(generation);
        settings.close_unknown(generation);
        problems.extend(settings.demand_of_bridges(hooks.bridges(), hooks.mode(), generation));
        fragments.apply(settings.fragment_sources().as_ref());
        let left = settings.devices_left().map(|ifindex| (ifindex, NO_PLACE.to_owned()));
        problems.extend(left);
        self.pod_xdp.reconcile(&hooks.pods(), generation, true);
        problems
    }

    /// Attaches the current generation's programs to these interfaces, and keeps all other attachments, see
    /// [`Dataplane::attach`].
    pub fn attach_new(&mut self, wanted: &Roles) -> InterfaceProblems {
        let Self { active, hooks, .. } = self;
        let Some((generation, settings)) = active.parts() else { return InterfaceProblems::new() };
        let mut problems = attach_roles(wanted, hooks, settings, generation);
        problems.extend(settings.demand_of_bridges(hooks.bridges(), hooks.mode(), generation));
        self.pod_xdp.reconcile(&hooks.pods(), generation, false);
        self.follow_fragment_sources();
        problems
    }

    /// Reconciles the XDP programs with appearing and disappearing devices and foreign detachments. Returns the number
    /// of programs that were lost.
    pub fn reconcile_xdp(&mut self) -> u64 {
        let Some((generation, _)) = self.active.parts() else { return 0 };
        let uplinks = self.uplink_xdp.reconcile(generation);
        uplinks + self.pod_xdp.reconcile_lost(&self.hooks.pods(), generation)
    }

    /// Restores pins that another process removed, and the pin root if necessary. Links follow with
    /// [`Dataplane::missing`]. Returns the number of restored maps.
    ///
    /// # Errors
    /// The failure, with a note that enforcement would end with this agent.
    pub fn reconcile_pins(&mut self) -> Result<u64, String> {
        const LOST: &str = "enforcement would end with this agent";
        self.pins.restore().map_err(|error| format!("{error}; {LOST}"))?;
        let Some(generation) = self.active.generation() else { return Ok(0) };
        generation.pin_missing(&self.pins.maps()).map_err(|error| format!("{error}; {LOST}"))
    }

    /// Checks that the current programs still run at their hooks. Returns the interfaces where one is missing (a link
    /// or filter removed by hand, a qdisc deleted); the next [`Dataplane::attach`] restores it.
    ///
    /// # Errors
    /// The attachments cannot be listed.
    pub fn missing(&mut self) -> Result<Vec<u32>, String> {
        self.active.generation().map_or(Ok(Vec::new()), |it| self.hooks.missing(it))
    }

    /// Opens the interfaces of `home` (the node's own) that a guard has closed; returns the opened interfaces.
    /// `leads_away`: whether an interface is now a veth with its peer in another namespace.
    ///
    /// # Errors
    /// The attachments cannot be listed, or the kernel refuses.
    pub fn reopen(
        &mut self,
        home: &BTreeSet<u32>,
        leads_away: impl Fn(u32) -> bool,
    ) -> Result<BTreeSet<u32>, String> {
        self.hooks.reopen(home, leads_away).map_err(|error| error.to_string())
    }

    /// Moves netpold's programs in front of foreign programs that were attached in front of them. Returns the hooks.
    ///
    /// # Errors
    /// The attachments cannot be listed.
    pub fn reconcile_order(&mut self) -> Result<Vec<Hook>, String> {
        self.active.generation().map_or(Ok(Vec::new()), |it| self.hooks.reconcile_order(it))
    }

    /// Attaches traced programs to pods' interfaces, until [`Dataplane::end_trace`] or the next generation.
    ///
    /// # Errors
    /// The programs are of another generation, an interface is not a pod's, or the kernel refuses; then the ordinary
    /// programs judge.
    pub fn trace(&mut self, ifindexes: &[u32], programs: &TracedPrograms) -> Result<(), String> {
        let generation = self.active.generation().ok_or("nothing is enforced yet")?;
        if generation.id(Program::Ingress).map_err(|e| e.to_string())? != programs.generation {
            return Err("the node's tables were just replaced: try again".to_owned());
        }
        self.hooks.trace(ifindexes, programs, generation)
    }

    /// Attaches the ordinary programs again in place of traced ones.
    ///
    /// # Errors
    /// The kernel refuses; the next readback tries again.
    pub fn end_trace(&mut self) -> Result<(), String> {
        self.active.generation().map_or(Ok(()), |generation| self.hooks.end_trace(generation))
    }

    /// Whether the traced programs of [`Dataplane::trace`] still run at all their interfaces.
    pub fn is_traced(&mut self) -> bool {
        self.hooks.is_traced()
    }
}

/// Attaches the programs of the roles, in an order that gives no packet a wrong verdict in between.
fn attach_roles(
    wanted: &Roles,
    hooks: &mut TcHooks,
    settings: &mut ActiveSettings,
    generation: &mut Generation,
) -> InterfaceProblems {
    // New ports of bridges first: until each port has a program, a packet without the proof is not necessarily forged.
    // Until then exits keep the programs of the former generation.
    let demanded = settings.bridges();
    let waits = |ifindex, role| hooks.bridges().waits_for(ifindex, role, &demanded);
    let (newcomers, others): (Vec<_>, Vec<_>) =
        wanted.iter().partition(|(ifindex, role)| waits(**ifindex, **role));
    let mut problems = hooks.attach(newcomers, generation);
    problems.extend(settings.demand_of_bridges(hooks.bridges(), hooks.mode(), generation));
    // Devices before pods, so that no packet is marked before the exits judge it.
    let (pods, devices): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|(_, role)| matches!(role, Role::Pod(_)));
    problems.extend(hooks.attach(devices, generation));
    problems.extend(hooks.attach(pods, generation));
    problems
}
