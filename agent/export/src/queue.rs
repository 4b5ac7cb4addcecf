//! Encoded log records until they are sent, bounded in bytes. Records without room are counted as lost.

use std::collections::VecDeque;
use std::sync::Mutex;

use bytes::Bytes;
use netpold_core::lock::lock;
use tokio::sync::Notify;

/// Maximum number of bytes of records that wait, with [`OVERHEAD`] for each.
const BYTES_MAX: usize = 8 << 20;
/// Bytes that the queue itself needs for a record.
const OVERHEAD: usize = 64;

#[derive(Debug, Default)]
struct QueuedRecord {
    records: VecDeque<Bytes>,
    bytes: usize,
    /// Result of the last [`ExportQueue::take_oldest`], until it is [done](ExportQueue::done).
    in_hand: (Vec<Bytes>, u64),
    /// Records lost since the last [`ExportQueue::take_oldest`].
    lost: u64,
}

#[derive(Debug, Default)]
pub(crate) struct ExportQueue {
    waiting: Mutex<QueuedRecord>,
    filled: Notify,
}

impl ExportQueue {
    /// Adds records as far as there is room; returns the number of records without room. Never waits.
    pub(crate) fn push(&self, records: impl IntoIterator<Item = Vec<u8>>) -> u64 {
        let mut lost = 0;
        let mut waiting = lock(&self.waiting);
        for record in records {
            let bytes = record.len() + OVERHEAD;
            if waiting.bytes + bytes > BYTES_MAX {
                lost += 1;
                continue;
            }
            waiting.bytes += bytes;
            waiting.records.push_back(record.into());
        }
        waiting.lost += lost;
        drop(waiting);
        self.filled.notify_one();
        lost
    }

    /// Counts records that the collector refused.
    pub(crate) fn refused(&self, records: u64) {
        lock(&self.waiting).lost += records;
    }

    /// Takes the oldest records, at most `records` of them, and the number of records lost since the last call. They
    /// wait until [`ExportQueue::done`].
    pub(crate) fn take_oldest(&self, records: usize) -> (Vec<Bytes>, u64) {
        let mut waiting = lock(&self.waiting);
        let number = records.min(waiting.records.len());
        let taken: Vec<Bytes> = waiting.records.drain(..number).collect();
        waiting.bytes -= taken.iter().map(|record| record.len() + OVERHEAD).sum::<usize>();
        if waiting.records.is_empty() {
            // Releases the memory of a queue that was once full.
            waiting.records = VecDeque::new();
        }
        let lost = std::mem::take(&mut waiting.lost);
        waiting.in_hand = (taken.clone(), lost);
        (taken, lost)
    }

    /// Puts back the records of the last [`ExportQueue::take_oldest`] if they were not sent, because the sender has ended.
    pub(crate) fn put_back(&self) {
        let mut waiting = lock(&self.waiting);
        let (records, lost) = std::mem::take(&mut waiting.in_hand);
        waiting.lost += lost;
        waiting.bytes += records.iter().map(|record| record.len() + OVERHEAD).sum::<usize>();
        for record in records.into_iter().rev() {
            waiting.records.push_front(record);
        }
    }

    /// Notes that the records taken last were sent or lost.
    pub(crate) fn done(&self) {
        lock(&self.waiting).in_hand = Default::default();
    }

    /// Returns the number of records that wait.
    pub(crate) fn len(&self) -> usize {
        let waiting = lock(&self.waiting);
        waiting.records.len() + waiting.in_hand.0.len()
    }

    /// Waits until records were added.
    pub(crate) async fn filled(&self) {
        self.filled.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_loss_is_counted() {
        let queue = ExportQueue::default();
        const RECORDS: u64 = 100_000;
        let lost = queue.push((0..RECORDS).map(|_| vec![0; 1000]));
        let kept = BYTES_MAX / (1000 + OVERHEAD);
        assert_eq!((lost, queue.len()), (RECORDS - kept as u64, kept));
        let (taken, told) = queue.take_oldest(500);
        assert_eq!((taken.len(), told, queue.len()), (500, lost, kept));
        queue.put_back();
        let (again, told) = queue.take_oldest(500);
        assert_eq!((again, told, queue.len()), (taken, lost, kept), "its sender has ended");
        queue.done();
        assert_eq!(queue.len(), kept - 500);
        assert_eq!(queue.push([vec![0; 1000]]), 0, "there is room again");
        let (taken, told) = queue.take_oldest(usize::MAX);
        assert_eq!((taken.len(), told), (kept - 499, 0));
        let waiting = lock(&queue.waiting);
        assert_eq!((waiting.bytes, waiting.records.capacity()), (0, 0));
    }
}
