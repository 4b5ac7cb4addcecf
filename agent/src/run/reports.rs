//! Reports to the cluster: Events, and the enforced state as API objects.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use netpold_api::source::SourceStatus;
use netpold_core::lock::lock;
use netpold_kube::cluster::EventRecorder;
use tokio::sync::{Notify, watch};

use netpold_engine::events::DropLogLine;
use netpold_engine::publish::{AgentState, PublishSettings, Publisher};
use netpold_engine::{
    EnforcementState, Engine, denials, hindrances, to_tell_of_node, unsupported_policies,
};

/// Recorder of Events and publisher of the enforced state.
pub(super) struct Reports {
    /// Set once there is a connection.
    event_recorder: Arc<OnceLock<EventRecorder>>,
    publisher: Option<Publisher>,
    /// Notifies the publisher.
    wake: Arc<Notify>,
    /// Settings of the publisher until it is started; `None` from the start if another agent publishes.
    publish: Option<PublishSettings>,
}

impl Reports {
    /// Creates reports without any publisher yet.
    pub(super) fn new(
        event_recorder: Arc<OnceLock<EventRecorder>>,
        publish: Option<PublishSettings>,
    ) -> Self {
        Self { event_recorder, publisher: None, wake: Arc::default(), publish }
    }

    /// Records Events for policies that cannot be enforced, for problems of the node, and for denials.
    pub(super) fn record_events(&self, engine: &Engine, denied: BTreeMap<u32, Vec<DropLogLine>>) {
        if let Some(event_recorder) = self.event_recorder.get() {
            event_recorder.set_unsupported(unsupported_policies(engine.compiler()));
            event_recorder.tell_of_node(to_tell_of_node(engine));
            event_recorder.tell_of_denials(denials(engine, denied));
        }
    }

    /// Notifies the publisher after a step of the engine; starts it once there is a connection.
    pub(super) fn publish(
        &mut self,
        engine: &Arc<Mutex<Engine>>,
        source: watch::Receiver<SourceStatus>,
    ) {
        self.wake.notify_one();
        let Some(event_recorder) = self.event_recorder.get() else { return };
        // Taken once: the publisher runs on its own.
        let Some(settings) = self.publish.take() else { return };
        let engine = Arc::clone(engine);
        let look = move || {
            let in_sync = source.borrow().in_sync;
            let engine = lock(&engine);
            let held_since = Instant::now();
            let (enforcement, problems) = (EnforcementState::collect(&engine), hindrances(&engine));
            (AgentState { enforcement, problems, in_sync }, held_since.elapsed())
        };
        let wake = Arc::clone(&self.wake);
        self.publisher = Some(Publisher::start(event_recorder, settings, wake, look));
    }
}
