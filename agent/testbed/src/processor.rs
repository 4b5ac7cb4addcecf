//! Processor time of a process.

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
