//! Runs the fuzz targets on their committed corpora and on random mutations of the corpora, so that every test run
//! repeats a fuzzer's findings. `cargo xtask fuzz TARGET` searches for new inputs.
#![expect(clippy::expect_used, clippy::print_stdout, reason = "helpers of tests fail as tests do")]

mod tenant;

use std::path::Path;

use netpold_testkit::fuzz::{
    answers, delta, kept, manifests, packets, probes, selectors, streams, tables,
};
use netpold_testkit::random::Random;
use netpold_testkit::steps;

/// Number of mutated inputs for a target of medium speed.
const CHANGED: usize = 2000;

/// Returns an input with some bytes changed, inserted, removed or taken from another input.
fn change(random: &mut Random, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut input = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(4) {
        let at = random.below(input.len());
        match random.below(5) {
            0 => input.insert(at, random.below(256) as u8),
            1 if at < input.len() => _ = input.remove(at),
            2 => {
                let other = &corpus[random.below(corpus.len())];
                input.truncate(at);
                input.extend(&other[random.below(other.len()).min(other.len())..]);
            }
            _ if at < input.len() => input[at] = random.below(256) as u8,
            _ => {}
        }
    }
    input
}

/// Runs a target on its corpus, then on `changed` mutations of it.
fn replay(target: &str, changed: usize, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let corpus = steps::corpus(&folder);
    assert!(corpus.len() >= 3, "the corpus in {} has too few inputs", folder.display());
    for (name, bytes) in &corpus {
        if let Err(panic) = std::panic::catch_unwind(|| run(bytes)) {
            println!("the input is {name}");
            std::panic::resume_unwind(panic);
        }
    }
    let corpus: Vec<Vec<u8>> = corpus.into_iter().map(|(_, bytes)| bytes).collect();
    let mut random = Random(0x5eed_5eed);
    for _ in 0..changed {
        let input = change(&mut random, &corpus);
        if let Err(panic) = std::panic::catch_unwind(|| run(&input)) {
            println!("the input is {input:?} ({})", String::from_utf8_lossy(&input));
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn packets_of_the_corpus() {
    replay("packets", CHANGED * 5, packets::run);
}

#[test]
fn manifests_of_the_corpus() {
    replay("manifests", CHANGED * 2, manifests::run);
}

#[test]
fn kept_files_of_the_corpus() {
    replay("kept", CHANGED, kept::run);
}

#[test]
fn selectors_of_the_corpus() {
    replay("selectors", CHANGED, selectors::run);
}

#[test]
fn probes_of_the_corpus() {
    replay("probes", CHANGED, probes::run);
}

#[test]
fn deltas_of_the_corpus() {
    replay("delta", CHANGED / 4, delta::run);
}

#[test]
fn tables_of_the_corpus() {
    replay("tables", CHANGED / 20, tables::run);
}

#[test]
fn answers_of_the_corpus() {
    replay("answers", CHANGED * 5, answers::run);
}

#[test]
fn streams_of_the_corpus() {
    replay("streams", CHANGED, streams::run);
}
