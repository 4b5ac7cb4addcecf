//! XDP at the node's uplinks: what policy denies to local pods goes before the kernel makes a packet
//! of it. Asked for by name; the pods' own hooks judge everything else, as without it.
//!
//! A link is pinned as `<ifindex>-uplink-<mode>`; it stays when the agent goes, and its program is
//! replaced in one step.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use netpold_ebpf::uplink::Scope;
use nix::net::if_::if_nameindex;

use super::sys;
use crate::pattern::matches;

/// `BPF_XDP` of `enum bpf_attach_type`.
const BPF_XDP: u32 = 37;
/// `BPF_LINK_TYPE_XDP` of `enum bpf_link_type`.
const BPF_LINK_TYPE_XDP: u32 = 6;

/// Where an XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the device's driver, before a packet is made.
    Native,
    /// In the stack, for drivers without XDP: later, and slower.
    Generic,
}

impl Mode {
    const ALL: [Self; 2] = [Self::Native, Self::Generic];

    /// `XDP_FLAGS_DRV_MODE`, `XDP_FLAGS_SKB_MODE`
    const fn flags(self) -> u32 {
        match self {
            Self::Native => 1 << 2,
            Self::Generic => 1 << 1,
        }
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}

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
    links: PathBuf,
    wanted: Option<Wanted>,
    /// Those with the current generation's program, by index.
    attached: BTreeMap<u32, Uplink>,
    problems: Vec<String>,
    stale: bool,
}

impl Uplinks {
    /// Nothing is attached yet. `links` is a directory on a bpffs.
    pub(super) fn new(links: PathBuf) -> Self {
        Self { links, wanted: None, attached: BTreeMap::new(), problems: Vec::new(), stale: false }
    }

    pub(super) fn want(&mut self, wanted: Option<Wanted>) {
        self.wanted = wanted;
    }

    /// Whether another generation's program may be what runs.
    pub(super) fn is_stale(&self) -> bool {
        self.stale
    }

    /// What is dropped, if anything is to be.
    pub(super) fn scope(&self) -> Option<Scope> {
        self.wanted.as_ref().map(|wanted| wanted.scope)
    }

    pub(super) fn attached(&self) -> impl Iterator<Item = &Uplink> {
        self.attached.values()
    }

    pub(super) fn problems(&self) -> &[String] {
        &self.problems
    }

    /// A new generation: its program is to replace the other everywhere.
    pub(super) fn renew(&mut self) {
        self.attached.clear();
        self.stale = true;
    }

    /// Says why there is no program to attach.
    pub(super) fn failed(&mut self, reason: String) {
        self.problems = vec![format!("--xdp-uplink: {reason}; TC judges as always")];
    }

    /// Makes the program run at the wanted devices that are there, and at no other.
    pub(super) fn attach(&mut self, program: BorrowedFd<'_>) {
        let devices = match self.devices() {
            Ok(devices) => devices,
            Err(error) => return self.failed(format!("cannot list devices: {error}")),
        };
        self.problems.clear();
        self.attached.retain(|index, uplink| devices.get(index) == Some(&uplink.name));
        for (index, name) in devices {
            if self.attached.contains_key(&index) && self.pinned(index).is_some() {
                continue;
            }
            match attach(&self.links, program, index) {
                Ok(mode) => _ = self.attached.insert(index, Uplink { name, mode }),
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
    }

    /// Takes away what is pinned for other devices.
    pub(super) fn leave(&mut self) {
        self.stale = false;
        for (path, index, mode) in pins(&self.links) {
            let ours = self.attached.get(&index).is_some_and(|uplink| uplink.mode == mode);
            if !ours && let Err(error) = detach(&path) {
                self.problems.push(format!("{}: cannot detach: {error}", path.display()));
            }
        }
    }

    fn pinned(&self, index: u32) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| pin(&self.links, index, *mode).exists())
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

fn pin(links: &Path, index: u32, mode: Mode) -> PathBuf {
    links.join(format!("{index}-uplink-{mode}"))
}

/// The pins there are, with what their names say.
fn pins(links: &Path) -> Vec<(PathBuf, u32, Mode)> {
    let entries = fs::read_dir(links).into_iter().flatten().flatten();
    let parse = |path: PathBuf| {
        let name = path.file_name()?.to_str()?;
        let (index, rest) = name.split_once("-uplink-")?;
        let mode = Mode::ALL.into_iter().find(|mode| mode.to_string() == rest)?;
        let index = index.parse().ok()?;
        Some((path, index, mode))
    };
    entries.filter_map(|entry| parse(entry.path())).collect()
}

/// Replaces the program of the device's link, or makes one: native if the driver can.
fn attach(links: &Path, program: BorrowedFd<'_>, index: u32) -> io::Result<Mode> {
    for mode in Mode::ALL {
        let path = pin(links, index, mode);
        let Ok(link) = sys::obj_get(&path) else { continue };
        let at = sys::link_info(link.as_fd(), BPF_LINK_TYPE_XDP)?;
        if at.ifindex == index && sys::link_update(link.as_fd(), program).is_ok() {
            return Ok(mode);
        }
        detach(&path)?;
    }
    let native = sys::link_create(program, index, BPF_XDP, Mode::Native.flags());
    let (link, mode) = match native {
        Ok(link) => (link, Mode::Native),
        Err(native) => match sys::link_create(program, index, BPF_XDP, Mode::Generic.flags()) {
            Ok(link) => (link, Mode::Generic),
            // Another program is there already: what native said is the same.
            Err(_) => return Err(native),
        },
    };
    sys::obj_pin(link.as_fd(), &pin(links, index, mode))?;
    Ok(mode)
}

fn detach(path: &Path) -> io::Result<()> {
    let link = sys::obj_get(path)?;
    sys::link_detach(link.as_fd())?;
    fs::remove_file(path)
}
