//! What the agent must be allowed to do, asked before anything is touched.

use anyhow::{Context, Result, bail};

/// Bits of capability sets, as in `linux/capability.h`.
const SYS_ADMIN: u32 = 21;
/// Network administration; events of all network namespaces; maps and programs; programs that use
/// pointers (the last two are part of CAP_SYS_ADMIN too).
const NEEDED: [(&str, u32); 4] =
    [("CAP_NET_ADMIN", 12), ("CAP_NET_BROADCAST", 11), ("CAP_BPF", 39), ("CAP_PERFMON", 38)];

/// # Errors
/// Names the capabilities that are missing.
pub fn check() -> Result<()> {
    let path = "/proc/thread-self/status";
    let status = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let missing = missing(&status).with_context(|| format!("{path} has no line CapEff"))?;
    if !missing.is_empty() {
        bail!(
            "not privileged enough, without {}: run as root or with these capabilities (in a \
             container: securityContext.privileged, or capabilities.add); nothing was changed",
            missing.join(", ")
        );
    }
    Ok(())
}

/// Those needed that a `/proc/PID/status` does not list; `None` if it cannot be understood.
fn missing(status: &str) -> Option<Vec<&'static str>> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let effective = u64::from_str_radix(effective.trim(), 16).ok()?;
    let has = |bit: u32| effective >> bit & 1 == 1;
    let implied = |bit: u32| bit >= 38 && has(SYS_ADMIN);
    let missing = NEEDED.into_iter().filter(|&(_, bit)| !has(bit) && !implied(bit));
    Some(missing.map(|(name, _)| name).collect())
}

#[cfg(test)]
mod tests {
    use super::missing;

    #[test]
    fn what_is_missing_is_named() {
        let of = |set: &str| missing(&format!("Name:\tx\nCapEff:\t{set}\n"));
        assert_eq!(of("000001ffffffffff"), Some(vec![]));
        let all = ["CAP_NET_ADMIN", "CAP_NET_BROADCAST", "CAP_BPF", "CAP_PERFMON"];
        assert_eq!(of("0000000000000000"), Some(all.to_vec()));
        // What containers have by default in Docker, and with CAP_SYS_ADMIN and CAP_NET_ADMIN.
        assert_eq!(of("00000000a80425fb"), Some(all.to_vec()));
        assert_eq!(of("00000000a82435fb"), Some(vec!["CAP_NET_BROADCAST"]));
        assert_eq!((of("x"), missing("")), (None, None));
    }
}
