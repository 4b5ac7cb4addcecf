//! The compiled tables compared with the oracle.
#![expect(clippy::expect_used, reason = "helpers of tests")]

mod states;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use netpold_testkit::coverage::Coverage;
use netpold_testkit::generate::{Choices, GeneratedCluster, PacketSource};
use netpold_testkit::harness::{Disagreement, Subject, compare, shrunk};

/// Number of clusters; each is judged in two states.
const CLUSTERS: u64 = 10_000;
/// Packets per state; packets of a pod to itself are not compared.
const PACKETS: usize = 590;

/// Judges a seed's packets in both states of its cluster.
fn try_seed(seed: u64, coverage: &mut Coverage) -> Result<(), Disagreement> {
    let mut choices = Choices::from_seed(seed);
    let before = GeneratedCluster::generate(&mut choices);
    let after = before.mutate(&mut choices);
    let mut subject = Subject::new();
    for (number, state) in [&before, &after].into_iter().enumerate() {
        subject.become_state(state);
        let source = PacketSource::new(state);
        let packets: Vec<_> = match subject.pods().as_slice() {
            [] => continue,
            pods => (0..PACKETS).map(|_| source.packet(&mut choices, pods)).collect(),
        };
        if let Some(packet) = compare(&subject, &packets, coverage) {
            let states = [before.clone(), after.clone()][..=number].to_vec();
            return Err(Disagreement { seed, states, packet });
        }
    }
    coverage.early(subject.hooks.dropped());
    Ok(())
}

#[test]
fn tables_say_what_the_oracle_says() {
    let next = AtomicU64::new(0);
    let failed = Mutex::new(None);
    let total = Mutex::new(Coverage::default());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut coverage = Coverage::default();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= CLUSTERS || failed.lock().unwrap().is_some() {
                        break;
                    }
                    if let Err(disagreement) = try_seed(seed, &mut coverage) {
                        failed.lock().unwrap().get_or_insert(disagreement);
                    }
                }
                total.lock().unwrap().add(&coverage);
            });
        }
    });
    if let Some(disagreement) = failed.into_inner().unwrap() {
        panic!("{}", shrunk(disagreement));
    }
    let total = total.into_inner().unwrap();
    println!("{total}");
    total.check();
}
