//! Optional XDP at the host sides of pods' veths: drops packets that a pod may not send before the stack sees them.
//! The pods' own hooks judge all other packets, as without XDP.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use netpold_core::first_names::first_names;
use nix::net::if_::if_indextoname;

use super::generation::Generation;
use super::xdp::{Links, XdpDevices, XdpMode, XdpProgram};

/// Maximum number of interfaces that a problem names.
const NAMED: usize = 5;

/// XDP programs at the pods' interfaces.
#[derive(Debug)]
pub struct PodXdp {
    links: Links,
    wanted: bool,
    /// Endpoints with the current generation's program, by interface, and its mode.
    attached: BTreeMap<u32, (u32, XdpMode)>,
    /// Endpoints where the attachment failed, by interface, and the cause.
    failed: BTreeMap<u32, (u32, String)>,
    /// Interfaces that lost the program to another process, until it runs there again.
    lost: BTreeSet<u32>,
    /// Whether to try failed interfaces again.
    tries_again: bool,
    /// Reason why there is no program to attach.
    missing: Option<String>,
    /// Whether links of unwanted interfaces may exist.
    unswept: bool,
}

impl PodXdp {
    /// State without attachments. `links` is a directory on a bpffs.
    pub(super) fn new(links: PathBuf, wanted: bool) -> Self {
        Self {
            links: Links::new(links, XdpDevices::Pod),
            wanted,
            attached: BTreeMap::new(),
            failed: BTreeMap::new(),
            lost: BTreeSet::new(),
            tries_again: false,
            missing: None,
            unswept: true,
        }
    }

    /// The wanted program.
    pub(super) fn program(&self) -> Option<XdpProgram> {
        self.wanted.then_some(XdpProgram::Pod)
    }

    /// Prepares for the program of a new generation, which must replace the former program everywhere.
    pub(super) fn renew(&mut self) {
        self.attached.clear();
        self.failed.clear();
        self.unswept = true;
    }

    /// Mode in which XDP runs in front of a pod's hook, if it does.
    #[must_use]
    pub fn mode(&self, ifindex: u32) -> Option<XdpMode> {
        self.attached.get(&ifindex).map(|(_, mode)| *mode)
    }

    /// Attaches the program where the pods' hooks are attached (endpoints by interface); with `leave`, detaches it
    /// everywhere else.
    pub(super) fn reconcile(
        &mut self,
        pods: &BTreeMap<u32, u32>,
        generation: &mut Generation,
        leave: bool,
    ) {
        let known = self.problems();
        if self.wanted {
            match generation.xdp(XdpProgram::Pod) {
                Ok((program, _)) => self.attach(program, pods),
                Err(error) => self.missing = Some(error.to_string()),
            }
        }
        if leave {
            self.detach_unwanted(pods);
        }
        for problem in self.problems().iter().filter(|problem| !known.contains(problem)) {
            tracing::warn!("{problem}");
        }
    }

    /// Restores programs that another process detached, and tries failed interfaces again; returns the number of
    /// restored ones.
    pub(super) fn reconcile_lost(
        &mut self,
        pods: &BTreeMap<u32, u32>,
        generation: &mut Generation,
    ) -> u64 {
        if !self.wanted {
            return 0;
        }
        let Ok((_, id)) = generation.xdp(XdpProgram::Pod) else { return 0 };
        self.forget_lost(id);
        self.tries_again = true;
        self.reconcile(pods, generation, false);
        self.tries_again = false;
        self.restored()
    }

    fn attach(&mut self, program: BorrowedFd<'_>, pods: &BTreeMap<u32, u32>) {
        self.missing = None;
        for (&index, &endpoint) in pods {
            let attached = self.attached.get(&index).map(|(of, _)| *of);
            let failed = self.failed.get(&index).map(|(of, _)| *of);
            let failed = failed.filter(|_| !self.tries_again);
            if attached.or(failed) == Some(endpoint) {
                continue;
            }
            self.attached.remove(&index);
            self.failed.remove(&index);
            match self.links.attach(program, index) {
                Ok(mode) => _ = self.attached.insert(index, (endpoint, mode)),
                // Discovery reports that the interface is gone.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                Err(error) => _ = self.failed.insert(index, (endpoint, error.to_string())),
            }
        }
    }

    /// Detaches the program from interfaces that belong to no pod.
    fn detach_unwanted(&mut self, pods: &BTreeMap<u32, u32>) {
        let attached = self.attached.len();
        self.attached.retain(|index, _| pods.contains_key(index));
        self.failed.retain(|index, _| pods.contains_key(index));
        self.lost.retain(|index| pods.contains_key(index));
        if self.attached.len() == attached && !self.unswept {
            return;
        }
        let problems = self.links.retain(|index| self.attached.get(&index).map(|(_, mode)| *mode));
        problems.iter().for_each(|problem| tracing::warn!("{problem}"));
        self.unswept = !problems.is_empty();
    }

    /// Records the interfaces where the program no longer runs.
    fn forget_lost(&mut self, program: u32) {
        let runs = |index: u32, mode: XdpMode| self.links.runs(index, mode, program);
        let lost = self.attached.iter().filter(|(index, (_, mode))| !runs(**index, *mode));
        self.lost.extend(lost.map(|(index, _)| *index));
        self.attached.retain(|index, _| !self.lost.contains(index));
    }

    /// Number of interfaces where a lost program runs again.
    fn restored(&mut self) -> u64 {
        let lost = self.lost.len();
        self.lost.retain(|index| !self.attached.contains_key(index));
        (lost - self.lost.len()) as u64
    }

    /// Problems, each once for all its interfaces.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut reasons: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (index, (_, reason)) in &self.failed {
            reasons.entry(reason).or_default().push(*index);
        }
        let failed = reasons.into_iter().map(|(reason, at)| {
            format!(
                "--pod-egress-hook xdp at {}: {reason}; TC programs judge these packets instead",
                names(&at)
            )
        });
        let generic = self.attached.iter().filter(|(_, (_, mode))| *mode == XdpMode::Generic);
        let generic: Vec<u32> = generic.map(|(index, _)| *index).collect();
        let generic = (!generic.is_empty()).then(|| {
            format!(
                "--pod-egress-hook xdp at {}: no native XDP; generic XDP drops after the packet's skb was allocated, \
                 which saves little",
                names(&generic)
            )
        });
        let missing = self.missing.as_ref();
        let missing = missing.map(|why| {
            format!("--pod-egress-hook xdp: {why}; TC programs judge these packets instead")
        });
        missing.into_iter().chain(failed).chain(generic).collect()
    }
}

/// Names of the first interfaces, and the number of further ones.
fn names(indexes: &[u32]) -> String {
    let name = |index: &u32| match if_indextoname(*index) {
        Ok(name) => name.to_string_lossy().into_owned(),
        Err(_) => format!("interface {index}"),
    };
    first_names(indexes.iter().map(name), NAMED)
}
