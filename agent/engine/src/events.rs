//! Drop events of the kernel: reads them from the ring, records them for observers and logs them.
//!
//! The kernel program limits the events per CPU and reports the number of suppressed ones; [`DropLog`] limits the lines
//! of the log.

mod dropped;
mod journal;
mod log;

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use aya::maps::{MapData, RingBuf};
use netpold_api::events::AUDIT;
use netpold_core::lock::lock;
use netpold_ebpf::layout::DropEvent;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::info;

pub(crate) use dropped::unix_millis;
pub use dropped::{DropLogLine, Dropped};
pub use journal::{Journal, JournalCursor, JournalEvent, UnreportedFlows};
pub use log::{DropLog, QUIET};

/// Reads the events of one generation until it is dropped or the ring fails. `pod` returns the name of a drop's pod.
///
/// # Errors
/// The ring's descriptor cannot be polled.
pub async fn read(
    ring: RingBuf<MapData>,
    log: Arc<Mutex<DropLog>>,
    pod: impl Fn(&Dropped) -> Option<String>,
) -> io::Result<()> {
    // SAFETY: the ring owns its map's descriptor, which stays open and unchanged during its life; the ring is never
    // taken out of the AsyncFd.
    let mut ring = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) }?;
    let mut flush = tokio::time::interval(QUIET);
    flush.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let journal = lock(&log).journal();
    let mut requests = journal.requests();
    loop {
        tokio::select! {
            // `journal` owns the sender, so the channel stays open.
            Ok(()) = requests.changed() => {
                let request = *requests.borrow_and_update();
                let lines = record_events(ring.get_mut(), &log);
                journal.was_read(request);
                lines.iter().for_each(|line| log_line(line, &pod));
            }
            guard = ring.readable_mut() => {
                let mut guard = guard?;
                for line in record_events(guard.get_inner_mut(), &log) {
                    log_line(&line, &pod);
                }
                guard.clear_ready();
            }
            _ = flush.tick() => {
                let (lines, unnamed) = {
                    let mut log = lock(&log);
                    (log.flush(Instant::now()), log.take_unnamed())
                };
                for line in lines {
                    log_line(&line, &pod);
                }
                if unnamed > 0 {
                    info!(times = unnamed, "packets dropped: too many different ones to log each");
                }
            }
        }
    }
}

/// Records the events that are in the ring; returns the lines to log.
pub fn record_events(ring: &mut RingBuf<MapData>, log: &Mutex<DropLog>) -> Vec<DropLogLine> {
    let (mut log, now) = (lock(log), Instant::now());
    let mut lines = Vec::new();
    while let Some(item) = ring.next() {
        lines.extend(decode(&item).and_then(|event| log.record(&event, now)));
    }
    lines
}

/// Decodes an event; `None` for a record of another size.
fn decode(record: &[u8]) -> Option<DropEvent> {
    // SAFETY: the record has the size of the event, every bit pattern of which is valid; alignment is not assumed.
    (record.len() == size_of::<DropEvent>())
        .then(|| unsafe { record.as_ptr().cast::<DropEvent>().read_unaligned() })
}

/// Logs a drop, or a flow that audited policies would drop.
pub fn log_line(line: &DropLogLine, pod: impl Fn(&Dropped) -> Option<String>) {
    let DropLogLine { dropped, times } = line;
    if dropped.is_audit() {
        info!(
            pod = pod(dropped).as_deref().unwrap_or("unknown"),
            direction = %dropped.direction,
            verdict = AUDIT,
            flow = %dropped,
            times,
            "flow allowed that policies in audit mode would deny"
        );
        return;
    }
    info!(
        pod = pod(dropped).as_deref().unwrap_or("unknown"),
        direction = %dropped.direction,
        reason = dropped.reason,
        local = dropped.local.map(tracing::field::display),
        remote = dropped.remote.map(tracing::field::display),
        protocol = dropped.protocol,
        local_port = dropped.local_port,
        remote_port = dropped.remote_port,
        ifindex = dropped.ifindex,
        times,
        "packet dropped"
    );
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Duration;

    use aya::maps::Map;
    use netpold_dataplane::bpf::{test_objects, test_run};

    use super::log::tests::event;
    use super::*;

    #[test]
    fn records_are_decoded_by_family_and_size() {
        let mut six = event(1, 80, 1);
        six.family = 6;
        six.suppressed = 4;
        // SAFETY: the event has no padding.
        let bytes: [u8; size_of::<DropEvent>()] = unsafe { std::mem::transmute(six) };
        assert_eq!(decode(&bytes), Some(six));
        assert_eq!(decode(&bytes[1..]), None);
        let mut log = DropLog::default();
        let line = log.record(&six, Instant::now()).unwrap().dropped;
        assert_eq!(line.remote, Some("a00:9::".parse().unwrap()));
        assert_eq!((line.reason, log.suppressed()), ("policy", 4));
        six.family = 0;
        six.reason = 255;
        let line = Dropped::new(&six);
        assert_eq!((line.remote, line.protocol, line.reason), (None, None, "unknown"));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn records_of_the_kernel_are_read_as_they_come() {
        let size = size_of::<DropEvent>() as i16;
        let ring = test_objects::ring(16_384);
        let writer = test_objects::ring_writer(ring.as_fd(), size, 77);
        let map = Map::from_map_data(MapData::from_fd(ring).unwrap()).unwrap();
        let log = Arc::new(Mutex::new(DropLog::default()));
        let reader = read(RingBuf::try_from(map).unwrap(), Arc::clone(&log), |_| None);
        let reader = tokio::spawn(reader);
        for seen in 1..=3 {
            test_run::run(writer.as_fd(), &test_run::Run::once(&[0; 14])).unwrap();
            let end = Instant::now() + Duration::from_secs(5);
            while lock(&log).events_read() < seen {
                assert!(Instant::now() < end, "record {seen} was not read");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        assert_eq!(lock(&log).recent()[2].ifindex, 77);
        reader.abort();
    }
}
