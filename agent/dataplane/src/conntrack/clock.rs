//! Rate of the kernel's clock.

use std::io;
use std::time::{Duration, Instant};

/// Values of `CONFIG_HZ` on the supported architectures.
pub(super) const TICKS_PER_SECOND: [u32; 4] = [100, 250, 300, 1000];

/// Sample long enough to distinguish 250 from 300 with an error of one tick at each end.
const CLOCK_SAMPLE: Duration = Duration::from_millis(200);

const CLOCK_ATTEMPTS: u32 = 5;

/// Returns the rate of the kernel's jiffies per second, from the resolution of the coarse clock, which is one tick
/// (`clock_getres(2)`); `None` if no kernel has this rate.
#[must_use]
pub fn tick_rate() -> Option<u32> {
    let mut resolution = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes this one structure.
    let failed = unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &raw mut resolution) };
    let nanoseconds = (failed == 0 && resolution.tv_sec == 0).then_some(resolution.tv_nsec)?;
    nearest_hz(1e9 / nanoseconds as f64)
}

/// Measures the rate of the kernel's jiffies per second from two readings. Blocks for about 200 ms.
///
/// # Errors
/// The clock cannot be read, or never runs at a rate that a kernel has.
pub fn measure_hz(mut jiffies: impl FnMut() -> io::Result<u32>) -> io::Result<u32> {
    for _ in 0..CLOCK_ATTEMPTS {
        let (start, first) = (Instant::now(), jiffies()?);
        std::thread::sleep(CLOCK_SAMPLE);
        let ticks = jiffies()?.wrapping_sub(first);
        let rate = f64::from(ticks) / start.elapsed().as_secs_f64();
        // An interruption between the readings of the two clocks spoils the sample.
        if let Some(hz) = nearest_hz(rate) {
            return Ok(hz);
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel's clock has an unknown rate"))
}

/// Returns the configurable rate within 8 percent of a measured one (250 and 300 are 18 percent apart).
pub(super) fn nearest_hz(rate: f64) -> Option<u32> {
    TICKS_PER_SECOND.into_iter().find(|&hz| (rate / f64::from(hz) - 1.0).abs() < 0.08)
}
