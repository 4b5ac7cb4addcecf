//! qemu, and the emulated machine.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Result;

use super::apt;
use super::guest::Guest;
use super::kernel::UnpackedKernel;
use crate::arch::Arch;
use crate::setup::on_path;

/// Emulated hardware for guests of one processor.
struct EmulatedBoard {
    /// Debian's package of qemu.
    package: &'static str,
    machine: &'static str,
    cpu: &'static str,
    /// The serial port by the kernel's name, and further kernel parameters.
    cmdline: &'static str,
}

/// `cx16=off`, without `cmpxchg16b`: its emulation occasionally corrupts the flags in the kernel's allocator, and the
/// guest dies of a double fault. `no_timer_check`: on a busy machine the emulated timer looks broken to the kernel.
const AMD64: EmulatedBoard = EmulatedBoard {
    package: "qemu-system-x86",
    machine: "q35",
    cpu: "max,cx16=off",
    cmdline: "console=ttyS0 no_timer_check",
};

/// A server processor with the atomic instructions of ARMv8.1, which the kernel's BPF compiler uses if available. `max`
/// would also sign pointers, which is slow to emulate.
const ARM64: EmulatedBoard = EmulatedBoard {
    package: "qemu-system-arm",
    machine: "virt",
    cpu: "neoverse-n1",
    cmdline: "console=ttyAMA0",
};

const fn board(arch: Arch) -> &'static EmulatedBoard {
    match arch {
        Arch::Amd64 => &AMD64,
        Arch::Arm64 => &ARM64,
    }
}

/// A qemu that runs here.
pub(super) struct Qemu {
    board: &'static EmulatedBoard,
    program: PathBuf,
    /// Library folders of an unpacked qemu; empty for an installed one.
    libraries: OsString,
    firmware: Vec<PathBuf>,
}

impl Qemu {
    /// The installed qemu, or else one unpacked from the packages of the machine's own release.
    ///
    /// # Errors
    /// When qemu is not installed and cannot be fetched.
    pub(super) fn find(cache: &Path, arch: Arch) -> Result<Self> {
        let board = board(arch);
        let name = format!("qemu-system-{}", arch.cpu());
        if let Some(program) = on_path(&name) {
            return Ok(Self { board, program, libraries: OsString::new(), firmware: Vec::new() });
        }
        let root = apt::unpacked(cache, board.package)?;
        let own = format!("lib/{}-linux-gnu", Arch::own().cpu());
        let libraries = [Path::new("usr").join(&own), own.into()].map(|folder| root.join(folder));
        let firmware = ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"];
        Ok(Self {
            board,
            program: root.join("usr/bin").join(name),
            libraries: std::env::join_paths(libraries)?,
            firmware: firmware.map(|folder| root.join(folder)).to_vec(),
        })
    }

    /// Command that boots a kernel with a guest, the console on its output.
    pub(super) fn command(&self, kernel: &UnpackedKernel, guest: &Guest) -> Command {
        let mut command = Command::new(&self.program);
        if !self.libraries.is_empty() {
            command.env("LD_LIBRARY_PATH", &self.libraries);
        }
        for folder in &self.firmware {
            command.arg("-L").arg(folder);
        }
        let EmulatedBoard { machine, cpu, cmdline, .. } = self.board;
        command
            // No network device: packets of the tests stay in the guest.
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-nic", "none"])
            .args(["-machine", machine, "-accel", "tcg", "-cpu", cpu, "-smp", "2", "-m", "3072"])
            .args(["-no-reboot", "-serial", "stdio", "-kernel"])
            .arg(&kernel.image)
            .arg("-initrd")
            .arg(guest.initramfs())
            .arg("-append")
            .arg(format!("{cmdline} quiet panic=-1 rdinit=/init mitigations=off"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        command
    }
}
