//! Access of questions to the engine, which delays no update: one question at a time waits for the engine, and all
//! together hold it for at most a tenth of the time.

use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Instant;

use netpold_core::lock::lock;

use crate::engine::Engine;

/// Pause after a question, in multiples of the time for which it held the engine.
const PAUSE: u32 = 9;

/// The engine, for questions.
#[derive(Debug)]
pub struct Questions<E = Engine> {
    engine: Arc<Mutex<E>>,
    /// Earliest time of the next question. Locked during a question.
    due: Mutex<Instant>,
}

impl<E> Questions<E> {
    /// Creates the access to an engine.
    #[must_use]
    pub fn new(engine: Arc<Mutex<E>>) -> Self {
        Self { engine, due: Mutex::new(Instant::now()) }
    }

    /// Asks when it is due, and returns the answer. Blocks.
    pub fn ask<A>(&self, question: impl FnOnce(&mut E) -> A) -> A {
        let mut due = lock(&self.due);
        sleep(due.saturating_duration_since(Instant::now()));
        let mut engine = lock(&self.engine);
        let began = Instant::now();
        let answer = question(&mut engine);
        drop(engine);
        let ended = Instant::now();
        *due = ended + ended.saturating_duration_since(began) * PAUSE;
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::thread::scope;
    use std::time::Duration;

    use super::*;

    #[test]
    fn questions_without_end_leave_the_engine_most_of_the_time() {
        const TAKES: Duration = Duration::from_millis(5);
        let questions = Questions::new(Arc::new(Mutex::new(0)));
        let began = Instant::now();
        scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    questions.ask(|asked| {
                        *asked += 1;
                        sleep(TAKES);
                    });
                });
            }
        });
        assert_eq!(*lock(&questions.engine), 4);
        assert!(began.elapsed() >= TAKES * PAUSE * 3, "four in {:?}", began.elapsed());
    }
}
