//! Metrics of the agent's process, under the names that all exporters use.

use std::fmt;
use std::sync::OnceLock;

use procfs::process::{LimitValue, Process as Proc};
use procfs::{WithCurrentSystemInfo, ticks_per_second};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::writer::MetricWriter;

/// Collector that reads `/proc/self`.
#[derive(Debug, Default)]
pub(super) struct ProcessCollector {
    /// Constant start time; its computation reads the whole of `/proc/stat`.
    started: OnceLock<Option<f64>>,
}

impl Collector for ProcessCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writer = MetricWriter::new(encoder);
        // Without /proc only these metrics are missing.
        let Ok(process) = Proc::myself() else { return Ok(()) };
        self.write_stat(&process, &mut writer)?;
        if let Ok(open) = process.fd_count() {
            writer.gauge("process_open_fds", "Open file descriptors", open as u64)?;
        }
        if let Ok(limits) = process.limits()
            && let LimitValue::Value(most) = limits.max_open_files.soft_limit
        {
            writer.gauge("process_max_fds", "File descriptors that may be open", most)?;
        }
        Ok(())
    }
}

impl ProcessCollector {
    fn write_stat(&self, process: &Proc, writer: &mut MetricWriter<'_>) -> fmt::Result {
        let Ok(stat) = process.stat() else { return Ok(()) };
        let seconds = (stat.utime + stat.stime) as f64 / ticks_per_second() as f64;
        let help = "CPU time spent, user and system";
        writer.one("process_cpu_seconds", help, &ConstCounter::new(seconds))?;
        let resident = stat.rss_bytes().get();
        writer.gauge("process_resident_memory_bytes", "Resident memory", resident)?;
        writer.gauge("process_virtual_memory_bytes", "Virtual memory", stat.vsize)?;
        let threads = u64::try_from(stat.num_threads).unwrap_or_default();
        writer.gauge("process_threads", "Threads", threads)?;
        let started = *self.started.get_or_init(|| {
            let boot = procfs::boot_time_secs().ok()?;
            Some(boot as f64 + stat.starttime as f64 / ticks_per_second() as f64)
        });
        let Some(started) = started else { return Ok(()) };
        let help = "When the agent started, in seconds since 1970";
        writer.one("process_start_time_seconds", help, &ConstGauge::new(started))
    }
}
