//! Programs at the TC hooks of pods' interfaces and of the node's other devices.

use std::collections::{BTreeMap, BTreeSet};

use netpold_core::model::Direction;
use netpold_ebpf::layout::BRIDGES;

use super::attach::{AttachError, AttachMode, Attacher, Hook};
use super::bpffs::PinRoot;
use super::bridges::{Bridge, Bridges};
use super::gate::Gate;
use super::generation::{Generation, GenerationError};
use super::order::ForeignPrograms;
use super::role::{Program, Role, Roles};
use super::traced::TracedPrograms;

/// Problems by interface; index 0 means all interfaces.
pub type InterfaceProblems = BTreeMap<u32, String>;

/// Programs at TC hooks, and their state.
pub struct TcHooks {
    attacher: Attacher,
    /// Interfaces with the current generation's programs.
    attached: Roles,
    /// Whether the attachments of an earlier agent were checked.
    swept: bool,
    order: ForeignPrograms,
    gate: Gate,
    bridges: Bridges,
    /// Identifiers of the traced programs that run in place of ordinary ones.
    traced: BTreeMap<Hook, u32>,
}

impl TcHooks {
    /// State without attachments, except for those of an earlier agent.
    pub(super) fn new(attacher: Attacher) -> Self {
        Self {
            attacher,
            attached: Roles::new(),
            swept: false,
            order: ForeignPrograms::default(),
            gate: Gate::find(),
            bridges: Bridges::default(),
            traced: BTreeMap::new(),
        }
    }

    /// Mode of attachment.
    #[must_use]
    pub fn mode(&self) -> AttachMode {
        self.attacher.mode()
    }

    /// Role of an interface where the current generation's programs run.
    #[must_use]
    pub fn attached(&self, ifindex: u32) -> Option<Role> {
        self.attached.get(&ifindex).copied()
    }

    /// Problems of hooks where foreign programs stay in front of netpold's.
    pub fn order_problems(&self) -> impl Iterator<Item = (Hook, &str)> {
        self.order.problems()
    }

    /// Endpoints by interface, where the current generation's programs run.
    pub(super) fn pods(&self) -> BTreeMap<u32, u32> {
        let pods = self.attached.iter().filter_map(|(index, role)| match role {
            Role::Pod(endpoint) => Some((*index, *endpoint)),
            Role::Device(_) | Role::Closed | Role::Unjudged => None,
        });
        pods.collect()
    }

    /// The attacher.
    pub(super) fn attacher(&mut self) -> &mut Attacher {
        &mut self.attacher
    }

    /// Basis of the demands on bridges.
    pub(super) fn bridges(&self) -> &Bridges {
        &self.bridges
    }

    /// Sets the bridges with pods.
    pub(super) fn set_bridges(&mut self, bridges: BTreeMap<u32, Bridge>) {
        self.bridges.are(bridges);
    }

    /// Drops ports that are not wanted any more, before they lose their programs.
    pub(super) fn bridges_lose_ports(&mut self, wanted: &Roles) {
        self.bridges.leaves(wanted);
    }

    /// Inherits the demands on bridges of an earlier agent's programs. Each interface with one of them at its incoming
    /// side counts as leaving the proof.
    pub(super) fn inherit_bridges(&mut self, demanded: [u32; BRIDGES]) -> [u32; BRIDGES] {
        match self.attacher.attached() {
            Ok(attached) => {
                let hooks = attached.into_iter().map(|found| found.hook);
                let comes_in = hooks.filter(|hook| hook.direction == Direction::Egress);
                self.bridges.prove(comes_in.map(|hook| hook.ifindex));
                demanded
            }
            Err(error) => {
                tracing::warn!(%error, "no proof required on bridges until all programs are attached");
                [0; BRIDGES]
            }
        }
    }

    /// Prepares for the programs of a new generation, which are to replace the former ones everywhere.
    pub(super) fn renew(&mut self) {
        self.attached.clear();
        self.swept = false;
        self.traced.clear();
    }

    /// Attaches the programs of interfaces' roles, in order, where they do not run yet.
    pub(super) fn attach<'a>(
        &mut self,
        wanted: impl IntoIterator<Item = (&'a u32, &'a Role)>,
        generation: &Generation,
    ) -> InterfaceProblems {
        let mut problems = InterfaceProblems::new();
        for (&ifindex, &role) in wanted {
            if self.attached.get(&ifindex) == Some(&role) {
                continue;
            }
            match self.attach_one(ifindex, role, generation) {
                Ok(()) => {
                    self.attached.insert(ifindex, role);
                    self.bridges.attached(ifindex, role);
                }
                Err(reason) => _ = problems.insert(ifindex, reason),
            }
        }
        problems
    }

    fn attach_one(
        &mut self,
        ifindex: u32,
        role: Role,
        generation: &Generation,
    ) -> Result<(), String> {
        let mut result = Ok(());
        for direction in Direction::BOTH {
            let hook = Hook { ifindex, direction };
            let attached = match (role, role.program(direction)) {
                (Role::Closed, _) => self.attacher.close(hook),
                (_, None) => self.attacher.detach(hook),
                (_, Some(program)) => {
                    let program = generation.fd(program).map_err(|e| e.to_string())?;
                    self.attacher.attach(program, hook)
                }
            };
            match attached {
                // Discovery reports that the interface is gone. A failure at one hook must not leave the other
                // unguarded.
                Err(error) if !error.is_gone() => result = result.and(Err(error.to_string())),
                _ => {}
            }
        }
        result
    }

    /// Detaches from unwanted interfaces: after a new generation from all hooks of an earlier agent too, else only
    /// from those of this one.
    pub(super) fn detach_unwanted(
        &mut self,
        wanted: &Roles,
        pins: &PinRoot,
    ) -> Result<(), AttachError> {
        if !self.swept {
            // Hooks closed by a guard are not among the wanted ones yet.
            let closing = self.attacher.closing().clone();
            self.attacher.retain(|found| {
                wanted.contains_key(&found.hook.ifindex) || closing.is_by(found.program)
            })?;
            for (path, error) in pins.remove_other_tables() {
                tracing::warn!(path = %path.display(), %error, "cannot remove pins of unused tables");
            }
            self.swept = true;
        }
        let unwanted: Vec<u32> =
            self.attached.keys().filter(|i| !wanted.contains_key(i)).copied().collect();
        for ifindex in unwanted {
            for direction in Direction::BOTH {
                self.attacher.release_hook(Hook { ifindex, direction })?;
            }
            self.forget(ifindex);
        }
        Ok(())
    }

    /// Interfaces where a program of the current generation no longer runs (a link or filter removed by hand, a qdisc
    /// deleted); [`TcHooks::attach`] restores it.
    pub(super) fn missing(&mut self, generation: &Generation) -> Result<Vec<u32>, String> {
        let ids = Program::ALL.map(|program| Ok((program, generation.id(program)?)));
        let ids: Result<BTreeMap<Program, u32>, GenerationError> = ids.into_iter().collect();
        let ids = ids.map_err(|e| e.to_string())?;
        let found = self.attacher.attached().map_err(|e| e.to_string())?;
        let found: BTreeMap<Hook, u32> =
            found.into_iter().map(|found| (found.hook, found.program)).collect();
        let closed = self.attacher.closing().program().ok().map(|closed| closed.id);
        let complete = |ifindex: u32, role: Role| {
            Direction::BOTH.into_iter().all(|direction| {
                let program = role.program(direction).and_then(|program| ids.get(&program));
                let program = if role == Role::Closed { closed.as_ref() } else { program };
                let hook = Hook { ifindex, direction };
                let program = self.traced.get(&hook).or(program);
                program.is_none() || found.get(&hook) == program
            })
        };
        let attached = self.attached.iter().filter(|(ifindex, role)| !complete(**ifindex, **role));
        let missing: Vec<u32> = attached.map(|(ifindex, _)| *ifindex).collect();
        missing.iter().for_each(|ifindex| self.forget(*ifindex));
        Ok(missing)
    }

    /// Opens the interfaces of `home`, which have no role and lead to no pod, that a guard has closed; returns the
    /// opened ones.
    pub(super) fn reopen(
        &mut self,
        home: &BTreeSet<u32>,
        leads_away: impl Fn(u32) -> bool,
    ) -> Result<BTreeSet<u32>, AttachError> {
        let closing = self.attacher.closing().clone();
        let (has_role, mut opened) = (&self.attached, BTreeSet::new());
        let is_home = |ifindex: u32| home.contains(&ifindex) && !has_role.contains_key(&ifindex);
        let closed = self.attacher.attached()?.into_iter();
        let closed = closed.filter(|found| closing.is_by(found.program)).map(|found| found.hook);
        // Barriers stay where the closing program could not be attached.
        for hook in closed.chain(closing.barred_hooks()).collect::<BTreeSet<_>>() {
            let ifindex = hook.ifindex;
            if is_home(ifindex) && self.attacher.reopen(hook, || leads_away(ifindex))? {
                opened.insert(ifindex);
            }
        }
        Ok(opened)
    }

    fn forget(&mut self, ifindex: u32) {
        self.attached.remove(&ifindex);
        self.traced.retain(|hook, _| hook.ifindex != ifindex);
        self.bridges.detached(ifindex);
    }

    /// Attaches traced programs to pods' interfaces, replacing each hook's program in one step.
    pub(super) fn trace(
        &mut self,
        ifindexes: &[u32],
        programs: &TracedPrograms,
        generation: &Generation,
    ) -> Result<(), String> {
        if !self.traced.is_empty() {
            return Err("another trace is running on this node".to_owned());
        }
        if !ifindexes.iter().all(|it| matches!(self.attached.get(it), Some(Role::Pod(_)))) {
            return Err("netpold's programs are not attached to the pod's interface".to_owned());
        }
        let mut put = || {
            for &ifindex in ifindexes {
                for direction in Direction::BOTH {
                    let hook = Hook { ifindex, direction };
                    let (program, id) = programs.program(direction).map_err(|e| e.to_string())?;
                    // Recorded first, so that the end of the trace replaces it even after a failure.
                    self.traced.insert(hook, id);
                    self.attacher.attach(program, hook).map_err(|e| e.to_string())?;
                }
            }
            Ok(())
        };
        put().inspect_err(|_| {
            if let Err(error) = self.end_trace(generation) {
                tracing::warn!(error, "cannot detach a traced program; it stays for now");
            }
        })
    }

    /// Attaches the ordinary programs again.
    pub(super) fn end_trace(&mut self, generation: &Generation) -> Result<(), String> {
        let mut result = Ok(());
        // The next readback repairs a failure, since it expects ordinary programs.
        for (hook, _) in std::mem::take(&mut self.traced) {
            let program = generation.fd(hook.direction.into()).map_err(|e| e.to_string())?;
            match self.attacher.attach(program, hook) {
                Err(error) if !error.is_gone() => result = result.and(Err(error.to_string())),
                _ => {}
            }
        }
        result
    }

    /// Whether the traced programs still run at all their hooks.
    pub(super) fn is_traced(&mut self) -> bool {
        let Ok(found) = self.attacher.attached() else { return false };
        let found: BTreeMap<Hook, u32> =
            found.into_iter().map(|found| (found.hook, found.program)).collect();
        !self.traced.is_empty() && self.traced.iter().all(|(hook, id)| found.get(hook) == Some(id))
    }

    /// Moves netpold's programs in front of foreign programs; returns the hooks.
    pub(super) fn reconcile_order(&mut self, generation: &Generation) -> Result<Vec<Hook>, String> {
        self.order.reconcile(&mut self.attacher, &self.attached, generation)
    }

    /// Closes hooks of isolated pods until their programs are attached; returns the number of closed hooks.
    pub(super) fn close(&mut self, hooks: &[Hook]) -> usize {
        self.gate.close(hooks)
    }

    /// Opens closed hooks where programs judge now, or where none are wanted.
    pub(super) fn open(&mut self, wanted: &Roles) {
        let attached = &self.attached;
        self.gate.open(|index| attached.contains_key(&index) || !wanted.contains_key(&index));
    }
}
