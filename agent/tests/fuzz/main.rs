//! The fuzz targets' bodies over their committed corpora, and over random changes of these, so that
//! what a fuzzer once found is tried in every test run. `cargo xtask fuzz TARGET` goes on searching.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests fail as tests do"
)]

#[expect(dead_code, reason = "the comparison adds up what is not counted here")]
#[path = "../../core/tests/compare/coverage.rs"]
mod coverage;
mod delta;
#[expect(dead_code, reason = "of the stories, only what the tables are made of")]
#[path = "../kernel/packets.rs"]
mod frames;
#[path = "../../core/tests/compare/harness.rs"]
mod harness;
#[path = "../kernel/input.rs"]
mod input;
mod kept;
mod manifests;
mod packets;
mod probes;
#[path = "../kernel/random.rs"]
mod random;
mod selectors;
mod tables;
mod tenant;
#[path = "../kernel/tables.rs"]
mod world;

use std::path::Path;

use random::Random;

/// Inputs made of each corpus by changing bytes.
const CHANGED: usize = 2000;

impl Random {
    /// An input with some bytes changed, put in, taken out or taken from another one.
    fn change(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut input = corpus[self.below(corpus.len())].clone();
        for _ in 0..=self.below(4) {
            let at = self.below(input.len());
            match self.below(5) {
                0 => input.insert(at, self.below(256) as u8),
                1 if at < input.len() => _ = input.remove(at),
                2 => {
                    let other = &corpus[self.below(corpus.len())];
                    input.truncate(at);
                    input.extend(&other[self.below(other.len()).min(other.len())..]);
                }
                _ if at < input.len() => input[at] = self.below(256) as u8,
                _ => {}
            }
        }
        input
    }
}

/// Runs a target on its corpus, then on `changed` inputs made from it.
fn replay(target: &str, changed: usize, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let corpus = input::corpus(&folder);
    assert!(corpus.len() >= 3, "the corpus in {} says little", folder.display());
    for (name, bytes) in &corpus {
        if let Err(panic) = std::panic::catch_unwind(|| run(bytes)) {
            println!("the input is {name}");
            std::panic::resume_unwind(panic);
        }
    }
    let corpus: Vec<Vec<u8>> = corpus.into_iter().map(|(_, bytes)| bytes).collect();
    let mut random = Random(0x5eed_5eed);
    for _ in 0..changed {
        let input = random.change(&corpus);
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
