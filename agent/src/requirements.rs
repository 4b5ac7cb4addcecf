//! What the agent needs of its machine, checked before anything is touched.

use anyhow::{Context, Result, bail};
use tracing::warn;

use crate::dataplane::attach::Mode;

/// Oldest kernel: atomic operations that return a value on x86 and arm64, for conntrack.
const OLDEST_KERNEL: (u32, u32) = (5, 15);

/// Capabilities and what they are for, with their numbers in `linux/capability.h`.
const CAPABILITIES: [(u32, &str, &str); 4] = [
    (39, "CAP_BPF", "maps and programs"),
    (12, "CAP_NET_ADMIN", "attaching programs, and the pods' addresses"),
    (38, "CAP_PERFMON", "programs that compute with packet pointers"),
    (11, "CAP_NET_BROADCAST", "address events of all namespaces"),
];
/// Stands for CAP_BPF and CAP_PERFMON too.
const CAP_SYS_ADMIN: u32 = 21;
/// What there is to say of the processor.
const UNTRIED: Option<&str> = if cfg!(target_arch = "x86_64") {
    None
} else if cfg!(target_arch = "aarch64") {
    Some("on this kind of processor netpold was tested in an emulator only")
} else {
    Some("netpold has not enforced anything on this kind of processor yet")
};

/// Checks kernel and privileges, and warns of a processor that little or nothing was tested on.
///
/// # Errors
/// What is missing, and what to do.
pub fn check() -> Result<()> {
    if let Some(lack) = UNTRIED {
        warn!(processor = std::env::consts::ARCH, "{lack}");
    }
    let name = nix::sys::utsname::uname().context("cannot ask for the kernel's version")?;
    kernel(&name.release().to_string_lossy())?;
    let status = std::fs::read_to_string("/proc/self/status").context("cannot read /proc")?;
    privileges(&status)
}

/// Warns of what this kernel lacks that netpold can go without.
pub fn warn_of_lacks(mode: Mode) {
    let jit = std::fs::read_to_string("/proc/sys/net/core/bpf_jit_enable");
    for lack in lacks(mode, jit.ok().as_deref()) {
        tracing::warn!("{lack}");
    }
}

fn lacks(mode: Mode, jit: Option<&str>) -> Vec<&'static str> {
    let mut lacks = Vec::new();
    if mode == Mode::Clsact {
        lacks.push(
            "this kernel has no TCX (6.6): filters below a clsact qdisc take its place, which other \
             tools may delete with the qdisc; they are put back within --readback seconds",
        );
    }
    if jit.is_some_and(|enabled| enabled.trim() == "0") {
        lacks.push(
            "net.core.bpf_jit_enable is 0: eBPF programs are interpreted, which takes many times \
             longer for each packet; set it to 1",
        );
    }
    lacks
}

fn kernel(release: &str) -> Result<()> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Ok(());
    };
    if (major, minor) < OLDEST_KERNEL {
        let (major, minor) = OLDEST_KERNEL;
        bail!("this kernel is {release}; netpold needs {major}.{minor} or later");
    }
    Ok(())
}

fn privileges(status: &str) -> Result<()> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let Some(Ok(effective)) = effective.map(|hex| u64::from_str_radix(hex.trim(), 16)) else {
        return Ok(());
    };
    let has = |number: u32| effective >> number & 1 != 0;
    let missing: Vec<String> = CAPABILITIES
        .iter()
        .filter(|(number, ..)| !has(*number) && (*number < 38 || !has(CAP_SYS_ADMIN)))
        .map(|(_, name, purpose)| format!("{name} ({purpose})"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    bail!("missing privileges: {}; run netpold as root, or give it these", missing.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels() {
        for good in ["5.15.0-91-generic", "6.1.0-18-amd64", "6.18.44", "10.0", "strange"] {
            kernel(good).unwrap();
        }
        for old in ["5.14.21", "4.19.0-26", "5.4.0"] {
            let error = kernel(old).unwrap_err().to_string();
            assert_eq!(error, format!("this kernel is {old}; netpold needs 5.15 or later"));
        }
    }

    #[test]
    fn lacks_are_told() {
        assert!(lacks(Mode::Tcx, Some("1\n")).is_empty());
        // Where the compiler cannot be switched off there is no such file.
        assert!(lacks(Mode::Tcx, None).is_empty());
        let both = lacks(Mode::Clsact, Some("0\n"));
        assert!(both[0].contains("no TCX") && both[1].contains("interpreted"), "{both:?}");
    }

    #[test]
    fn capabilities() {
        let with = |bits: &[u32]| {
            let set = bits.iter().fold(0u64, |set, bit| set | 1 << bit);
            privileges(&format!("Name:\tx\nCapEff:\t{set:016x}\n"))
        };
        with(&[39, 12, 38, 11]).unwrap();
        with(&[21, 12, 11]).unwrap();
        let error = with(&[12, 38]).unwrap_err().to_string();
        assert!(error.starts_with("missing privileges: CAP_BPF (maps and programs), CAP_NET_B"));
    }
}
