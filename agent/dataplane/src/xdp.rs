//! XDP programs at devices: links pinned as `<ifindex>-<kind>-<mode>`, which stay attached when the agent ends. A
//! link's program is replaced atomically.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use netpold_ebpf::xdp::uplink::Scope;

use crate::bpf::sys;

/// `BPF_XDP` of `enum bpf_attach_type`.
const BPF_XDP: u32 = 37;
/// `BPF_LINK_TYPE_XDP` of `enum bpf_link_type`.
const BPF_LINK_TYPE_XDP: u32 = 6;

/// Mode of an XDP program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the device's driver, before the kernel allocates an skb.
    Native,
    /// In the network stack, for drivers without XDP: after the skb is allocated, so slower.
    Generic,
}

impl XdpMode {
    const ALL: [Self; 2] = [Self::Native, Self::Generic];

    /// `XDP_FLAGS_DRV_MODE` or `XDP_FLAGS_SKB_MODE`.
    const fn flags(self) -> u32 {
        match self {
            Self::Native => 1 << 2,
            Self::Generic => 1 << 1,
        }
    }
}

impl std::fmt::Display for XdpMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}

/// An XDP program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpProgram {
    /// At an uplink.
    Uplink(Scope),
    /// At the host side of a pod's veth.
    Pod,
}

impl XdpProgram {
    /// Name of the program in the object.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uplink(Scope::Openings) => "netpold_uplink",
            Self::Uplink(Scope::All) => "netpold_uplink_all",
            Self::Pod => "netpold_sent",
        }
    }
}

/// Kind of the devices of a set of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum XdpDevices {
    /// Uplinks of the node.
    Uplink,
    /// Host sides of pods' veths.
    Pod,
}

impl XdpDevices {
    const fn name(self) -> &'static str {
        match self {
            Self::Uplink => "uplink",
            Self::Pod => "pod",
        }
    }
}

/// Links of one kind.
#[derive(Debug)]
pub(super) struct Links {
    directory: PathBuf,
    kind: XdpDevices,
}

impl Links {
    /// Links of a kind that are pinned in a directory on a bpffs.
    pub(super) fn new(directory: PathBuf, kind: XdpDevices) -> Self {
        Self { directory, kind }
    }

    /// Replaces the program of the device's link, or creates a link: native if the driver supports it.
    ///
    /// # Errors
    /// The kernel refuses both modes or the pin; then no program of netpold runs at the device. Or a former link cannot
    /// be read or detached; then its program stays.
    pub(super) fn attach(&self, program: BorrowedFd<'_>, index: u32) -> io::Result<XdpMode> {
        for mode in XdpMode::ALL {
            let path = self.pin(index, mode);
            let Ok(link) = sys::obj_get(&path) else { continue };
            let at = sys::link_info(link.as_fd(), BPF_LINK_TYPE_XDP)?;
            if at.ifindex == index && sys::link_update(link.as_fd(), program).is_ok() {
                return Ok(mode);
            }
            detach(&path)?;
        }
        let native = sys::link_create(program, index, BPF_XDP, XdpMode::Native.flags());
        let (link, mode) = match native {
            Ok(link) => (link, XdpMode::Native),
            Err(native) => {
                match sys::link_create(program, index, BPF_XDP, XdpMode::Generic.flags()) {
                    Ok(link) => (link, XdpMode::Generic),
                    // If another program is attached, both modes fail with the same error.
                    Err(_) => return Err(native),
                }
            }
        };
        sys::obj_pin(link.as_fd(), &self.pin(index, mode))?;
        Ok(mode)
    }

    /// Whether a device's link is pinned and runs a program, given by its identifier.
    pub(super) fn runs(&self, index: u32, mode: XdpMode, program: u32) -> bool {
        let link = sys::obj_get(&self.pin(index, mode));
        let at = link.and_then(|link| sys::link_info(link.as_fd(), BPF_LINK_TYPE_XDP));
        at.is_ok_and(|at| (at.ifindex, at.program) == (index, program))
    }

    /// Detaches all links except those with the wanted mode of their device; returns the failures.
    pub(super) fn retain(&self, wanted: impl Fn(u32) -> Option<XdpMode>) -> Vec<String> {
        let unwanted =
            self.pins().into_iter().filter(|(_, index, mode)| wanted(*index) != Some(*mode));
        let failed = unwanted.filter_map(|(path, ..)| {
            let error = detach(&path).err()?;
            Some(format!("{}: cannot detach: {error}", path.display()))
        });
        failed.collect()
    }

    fn pin(&self, index: u32, mode: XdpMode) -> PathBuf {
        self.directory.join(format!("{index}-{}-{mode}", self.kind.name()))
    }

    /// Existing pins, with the index and the mode in their names.
    fn pins(&self) -> Vec<(PathBuf, u32, XdpMode)> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let parse = |path: PathBuf| {
            let name = path.file_name()?.to_str()?;
            let (index, rest) = name.split_once('-')?;
            let mode = rest.strip_prefix(self.kind.name())?.strip_prefix('-')?;
            let mode = XdpMode::ALL.into_iter().find(|known| known.to_string() == mode)?;
            let index = index.parse().ok()?;
            Some((path, index, mode))
        };
        entries.filter_map(|entry| parse(entry.path())).collect()
    }
}

fn detach(path: &Path) -> io::Result<()> {
    let link = sys::obj_get(path)?;
    sys::link_detach(link.as_fd())?;
    fs::remove_file(path)
}

/// Detaches netpold's XDP programs, by their links pinned in a directory; returns the interface indexes.
///
/// # Errors
/// The first link that cannot be detached; later links are not tried.
pub fn detach_all(directory: &Path) -> io::Result<Vec<u32>> {
    let mut detached = Vec::new();
    for kind in [XdpDevices::Uplink, XdpDevices::Pod] {
        for (path, index, _) in Links::new(directory.to_owned(), kind).pins() {
            detach(&path)?;
            detached.push(index);
        }
    }
    detached.sort_unstable();
    Ok(detached)
}
