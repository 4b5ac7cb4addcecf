//! XDP at the node's uplinks: what policy denies to local pods goes before the kernel makes a packet
//! of it. Asked for by name; the pods' own hooks judge everything else, as without it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use netpold_ebpf::xdp::uplink::Scope;
use nix::net::if_::if_nameindex;

use super::Dataplane;
use super::xdp::{Early, Kind, Links, Mode};
use crate::pattern::matches;

/// Which devices, and what is dropped there.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Names, in which `*` stands for any characters.
    pub names: Vec<String>,
    /// What is dropped.
    pub scope: Scope,
}

/// A device with our program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// Name of the device.
    pub name: String,
    /// Where the program runs.
    pub mode: Mode,
}

/// The programs at the uplinks.
#[derive(Debug)]
pub(super) struct Uplinks {
    links: Links,
    wanted: Option<Wanted>,
    /// Those with the current generation's program, by index.
    attached: BTreeMap<u32, Uplink>,
    problems: Vec<String>,
    stale: bool,
}

impl Dataplane {
    /// Drops at these devices too what policy denies.
    #[must_use]
    pub fn with_uplinks(mut self, wanted: Option<Wanted>) -> Self {
        self.uplinks.wanted = wanted;
        self
    }

    /// Looks after the programs at the uplinks: devices come and go. How many of those that ran there
    /// were gone.
    pub fn tend_uplinks(&mut self) -> u64 {
        let Some(generation) = &mut self.generation else { return 0 };
        let Some(scope) = self.uplinks.scope() else {
            self.uplinks.leave();
            return 0;
        };
        let known = self.uplinks.problems.clone();
        let restored = match generation.early(Early::Uplink(scope)) {
            Ok((program, id)) => self.uplinks.attach(program, id),
            Err(error) => self.uplinks.failed(&error.to_string()),
        };
        for problem in self.uplinks.problems.iter().filter(|problem| !known.contains(problem)) {
            tracing::warn!("{problem}");
        }
        restored
    }

    /// Devices with an XDP program of ours, and what is wrong there.
    pub fn uplinks(&self) -> (impl Iterator<Item = &Uplink>, &[String]) {
        (self.uplinks.attached.values(), &self.uplinks.problems)
    }
}

impl Uplinks {
    /// Nothing is attached yet. `links` is a directory on a bpffs.
    pub(super) fn new(links: PathBuf) -> Self {
        Self {
            links: Links::new(links, Kind::Uplink),
            wanted: None,
            attached: BTreeMap::new(),
            problems: Vec::new(),
            stale: false,
        }
    }

    /// Whether another generation's program may be what runs.
    pub(super) fn is_stale(&self) -> bool {
        self.stale
    }

    /// A new generation: its program is to replace the other everywhere.
    pub(super) fn renew(&mut self) {
        self.attached.clear();
        self.stale = true;
    }

    /// The program that is wanted.
    pub(super) fn early(&self) -> Option<Early> {
        self.scope().map(Early::Uplink)
    }

    /// What is dropped, if anything is to be.
    fn scope(&self) -> Option<Scope> {
        self.wanted.as_ref().map(|wanted| wanted.scope)
    }

    /// Says why there is no program to attach.
    fn failed(&mut self, reason: &str) -> u64 {
        self.problems = vec![format!("--xdp-uplink: {reason}; TC judges as always")];
        0
    }

    /// Makes the program run at the wanted devices that are there, and at no other; how many of them
    /// had lost it.
    fn attach(&mut self, program: BorrowedFd<'_>, id: u32) -> u64 {
        let devices = match self.devices() {
            Ok(devices) => devices,
            Err(error) => return self.failed(&format!("cannot list devices: {error}")),
        };
        self.problems.clear();
        self.attached.retain(|index, uplink| devices.get(index) == Some(&uplink.name));
        let mut restored = 0;
        for (index, name) in devices {
            let had = self.attached.remove(&index);
            if let Some(uplink) = &had
                && self.links.runs(index, uplink.mode, id)
            {
                self.attached.insert(index, Uplink { name, mode: uplink.mode });
                continue;
            }
            match self.links.attach(program, index) {
                Ok(mode) => {
                    restored += u64::from(had.is_some());
                    self.attached.insert(index, Uplink { name, mode });
                }
                Err(error) => self
                    .problems
                    .push(format!("--xdp-uplink {name}: {error}; TC judges as without it")),
            }
        }
        let generic = self.attached.values().filter(|uplink| uplink.mode == Mode::Generic);
        self.problems.extend(generic.map(|uplink| {
            format!(
                "--xdp-uplink {}: its driver has no native XDP; generic XDP drops after a packet \
                 was made, which saves little",
                uplink.name
            )
        }));
        self.leave();
        restored
    }

    /// Takes away what is pinned for other devices.
    fn leave(&mut self) {
        self.stale = false;
        let attached = &self.attached;
        let failed = self.links.keep(|index| attached.get(&index).map(|uplink| uplink.mode));
        self.problems.extend(failed);
    }

    fn devices(&self) -> io::Result<BTreeMap<u32, String>> {
        let Some(wanted) = &self.wanted else { return Ok(BTreeMap::new()) };
        let devices = if_nameindex()?;
        let named = devices.iter().filter_map(|device| {
            let name = device.name().to_str().ok()?;
            let matches = wanted.names.iter().any(|pattern| matches(pattern, name));
            matches.then(|| (device.index(), name.to_owned()))
        });
        Ok(named.collect())
    }
}
