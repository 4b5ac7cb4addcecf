//! Optional XDP at the node's uplinks: drops packets that policy denies to local pods before the kernel allocates an
//! skb. The pods' own hooks judge all other packets, as without XDP.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use netpold_core::pattern::matches;
use netpold_ebpf::xdp::uplink::Scope;
use nix::net::if_::if_nameindex;

use super::generation::Generation;
use super::xdp::{Links, XdpDevices, XdpMode, XdpProgram};

/// Devices that get the program, and its scope.
#[derive(Clone, Debug)]
pub struct DesiredUplinks {
    /// Names of devices; `*` stands for any characters.
    pub names: Vec<String>,
    /// Scope of the dropped packets.
    pub scope: Scope,
}

/// A device with netpold's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpUplink {
    /// Name of the device.
    pub name: String,
    /// Mode of the program.
    pub mode: XdpMode,
}

/// XDP programs at the uplinks.
#[derive(Debug)]
pub struct UplinkXdp {
    links: Links,
    wanted: Option<DesiredUplinks>,
    /// Devices with the current generation's program, by index.
    attached: BTreeMap<u32, XdpUplink>,
    problems: Vec<String>,
    stale: bool,
}

impl UplinkXdp {
    /// State without attachments. `links` is a directory on a bpffs.
    pub(super) fn new(links: PathBuf, wanted: Option<DesiredUplinks>) -> Self {
        Self {
            links: Links::new(links, XdpDevices::Uplink),
            wanted,
            attached: BTreeMap::new(),
            problems: Vec::new(),
            stale: false,
        }
    }

    /// Devices with the program.
    pub fn attached(&self) -> impl Iterator<Item = &XdpUplink> {
        self.attached.values()
    }

    /// Problems of the devices.
    #[must_use]
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Attaches the program to the wanted devices that exist, and detaches it from all others. Returns the number of
    /// devices that had lost the program.
    pub(super) fn reconcile(&mut self, generation: &mut Generation) -> u64 {
        let Some(scope) = self.scope() else {
            self.detach_unwanted();
            return 0;
        };
        let known = self.problems.clone();
        let restored = match generation.xdp(XdpProgram::Uplink(scope)) {
            Ok((program, id)) => self.attach(program, id),
            Err(error) => self.failed(&error.to_string()),
        };
        for problem in self.problems.iter().filter(|problem| !known.contains(problem)) {
            tracing::warn!("{problem}");
        }
        restored
    }

    /// Whether the program of a former generation may be attached.
    pub(super) fn is_stale(&self) -> bool {
        self.stale
    }

    /// Prepares for the program of a new generation, which must replace the former program everywhere.
    pub(super) fn renew(&mut self) {
        self.attached.clear();
        self.stale = true;
    }

    /// The wanted program.
    pub(super) fn program(&self) -> Option<XdpProgram> {
        self.scope().map(XdpProgram::Uplink)
    }

    /// Scope of the dropped packets, if XDP is wanted.
    fn scope(&self) -> Option<Scope> {
        self.wanted.as_ref().map(|wanted| wanted.scope)
    }

    /// Records the reason why there is no program to attach.
    fn failed(&mut self, reason: &str) -> u64 {
        self.problems =
            vec![format!("--xdp-uplink: {reason}; TC programs judge these packets instead")];
        0
    }

    /// Attaches the program to the wanted devices that exist, and detaches it from all others. Returns the number of
    /// devices that had lost the program.
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
                self.attached.insert(index, XdpUplink { name, mode: uplink.mode });
                continue;
            }
            match self.links.attach(program, index) {
                Ok(mode) => {
                    restored += u64::from(had.is_some());
                    self.attached.insert(index, XdpUplink { name, mode });
                }
                Err(error) => self.problems.push(format!(
                    "--xdp-uplink {name}: {error}; TC programs judge these packets instead"
                )),
            }
        }
        let generic = self.attached.values().filter(|uplink| uplink.mode == XdpMode::Generic);
        self.problems.extend(generic.map(|uplink| {
            format!(
                "--xdp-uplink {}: its driver has no native XDP; generic XDP drops after the packet's skb was \
                 allocated, which saves little",
                uplink.name
            )
        }));
        self.detach_unwanted();
        restored
    }

    /// Detaches the program from devices that are not in `attached`.
    fn detach_unwanted(&mut self) {
        self.stale = false;
        let attached = &self.attached;
        let failed = self.links.retain(|index| attached.get(&index).map(|uplink| uplink.mode));
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
