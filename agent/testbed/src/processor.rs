//! Processor time of a process, and packets that the processors lost.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// User and system time of a process, exact to hundredths of a second (`USER_HZ`).
///
/// # Errors
/// When the process has ended.
pub fn processor_time(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    // The process name may contain blanks and brackets.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let fields: Vec<&str> = fields.split_whitespace().collect();
    // utime and stime are fields 14 and 15; the first two are cut off.
    let times = fields.get(11..13).with_context(|| format!("{path} has too few fields"))?;
    let ticks = times.iter().map(|field| field.parse::<u64>()).sum::<Result<u64, _>>()?;
    Ok(Duration::from_millis(ticks * 10))
}

/// Packets that the kernel dropped since boot because the backlog of a processor (`net.core.netdev_max_backlog`) was full,
/// from `/proc/net/softnet_stat`.
///
/// All namespaces share the backlogs, so a flood in one test can drop packets of another test.
///
/// # Errors
/// When the file is missing or has another format.
pub fn backlog_drops() -> Result<u64> {
    let path = "/proc/net/softnet_stat";
    let stat = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let dropped = stat.lines().map(|processor| {
        let column = processor.split_whitespace().nth(1).unwrap_or_default();
        u64::from_str_radix(column, 16)
            .with_context(|| format!("{path}: no count in {processor:?}"))
    });
    dropped.sum()
}
