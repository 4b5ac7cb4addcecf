//! Work in parts, on all processors.

use std::ops::Range;
use std::panic::resume_unwind;
use std::thread::{available_parallelism, scope};

/// Least number of items that are worth a thread.
const FEW: usize = 64;

/// Returns the results for the numbers below `count`, in order.
pub(crate) fn in_parts<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let threads = available_parallelism().map_or(1, usize::from);
    let part = count.div_ceil(threads).max(FEW);
    if count <= part {
        return (0..count).map(work).collect();
    }
    let parts = (0..count).step_by(part).map(|first| first..count.min(first + part));
    let of_part = |part: Range<usize>| -> Vec<T> { part.map(&work).collect() };
    let of_part = &of_part;
    scope(|scope| {
        let workers: Vec<_> = parts.map(|part| scope.spawn(move || of_part(part))).collect();
        let done = workers.into_iter();
        done.flat_map(|it| it.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// Returns the results of two pieces of work.
pub(crate) fn both<A: Send, B>(
    one: impl FnOnce() -> A + Send,
    other: impl FnOnce() -> B,
) -> (A, B) {
    scope(|scope| {
        let one = scope.spawn(one);
        let other = other();
        (one.join().unwrap_or_else(|panic| resume_unwind(panic)), other)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order() {
        for count in [0, 1, FEW, FEW + 1, 1000] {
            assert_eq!(in_parts(count, |number| number), (0..count).collect::<Vec<_>>());
        }
        assert_eq!(both(|| 1, || "two"), (1, "two"));
    }
}
