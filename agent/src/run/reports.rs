//! What the cluster is told: Events, and in the API what is in force.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use tokio::sync::{Notify, watch};

use crate::engine::{
    Enforcement, Engine, denials, hindrances, to_tell_of_node, unsupported_policies,
};
use crate::events::Line;
use crate::lock::lock;
use crate::publish::{Look, Publisher, Settings};
use crate::source::SourceStatus;
use crate::source::cluster::EventRecorder;

/// See the module.
pub(super) struct Reports {
    /// Once there is a connection.
    event_recorder: Arc<OnceLock<EventRecorder>>,
    publisher: Option<Publisher>,
    /// Wakes the publisher.
    ring: Arc<Notify>,
    /// `None`: it is not for this agent to say what is in force.
    publish: Option<Settings>,
}

impl Reports {
    /// Nothing is told yet.
    pub(super) fn new(
        event_recorder: Arc<OnceLock<EventRecorder>>,
        publish: Option<Settings>,
    ) -> Self {
        Self { event_recorder, publisher: None, ring: Arc::default(), publish }
    }

    /// Tells of what cannot be enforced, of what is wrong with the node, and of denials.
    pub(super) fn record_events(&self, engine: &Engine, denied: BTreeMap<u32, Vec<Line>>) {
        if let Some(event_recorder) = self.event_recorder.get() {
            event_recorder.tell(unsupported_policies(engine.compiler()));
            event_recorder.tell_of_node(to_tell_of_node(engine));
            event_recorder.tell_of_denials(denials(engine.compiler(), denied));
        }
    }

    /// After a step of the engine: tells what is in force now.
    pub(super) fn publish(
        &mut self,
        engine: &Arc<Mutex<Engine>>,
        source: watch::Receiver<SourceStatus>,
    ) {
        self.ring.notify_one();
        let Some(event_recorder) = self.event_recorder.get() else { return };
        // Taken once: the publisher goes on by itself.
        let Some(settings) = self.publish.take() else { return };
        let engine = Arc::clone(engine);
        let look = move || {
            let in_sync = source.borrow().in_sync;
            let engine = lock(&engine);
            let held_since = Instant::now();
            let (enforcement, problems) = (Enforcement::of(&engine), hindrances(&engine));
            (Look { enforcement, problems, in_sync }, held_since.elapsed())
        };
        let ring = Arc::clone(&self.ring);
        self.publisher = Some(Publisher::start(event_recorder, settings, ring, look));
    }
}
