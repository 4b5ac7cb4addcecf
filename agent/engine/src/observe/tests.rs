use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netpold_api::filter::ObserveRequest;
use netpold_api::observe::{ObserveLine, ObservedEvent};
use netpold_api::samples::{NODE, event};
use netpold_core::lock::lock;
use netpold_core::model::Direction;
use netpold_dataplane::conntrack::EndpointFlow;
use netpold_ebpf::reason::Reason;
use tokio::sync::mpsc::Receiver;

use super::{Feed, ObserveServer};
use crate::denied::{DeniedCounters, EventKind};
use crate::events::{Journal, JournalEvent, UnreportedFlows};
use crate::lines::LineSender;

fn observer() -> (Arc<ObserveServer>, Arc<Journal>) {
    let journal = Arc::<Journal>::default();
    let resolve = |seen: &[JournalEvent], _: &_| {
        (seen.iter().map(|seen| event(seen.packet.endpoint)).collect(), 0)
    };
    (Arc::new(ObserveServer::new(NODE.into(), Arc::clone(&journal), resolve)), journal)
}

fn flow(endpoint: u32) -> JournalEvent {
    let remote = [10, 0, 0, 2].into();
    let (local_port, remote_port, protocol) = (5432, 4000, 6);
    let tuple = EndpointFlow { endpoint, remote, local_port, remote_port, protocol };
    JournalEvent::flow(&tuple, Direction::Ingress, Reason::Allowed)
}

/// A watcher, and its received lines that no test has read yet.
struct Watcher(Receiver<Vec<u8>>, VecDeque<String>);

fn watch(observer: &Arc<ObserveServer>) -> Watcher {
    let (lines, receiver) = LineSender::new();
    let request = r#"{"follow":true,"filter":{"verdicts":["allow"]}}"#;
    let request = serde_json::from_str(request).unwrap();
    tokio::spawn(Arc::clone(observer).serve(request, lines));
    Watcher(receiver, VecDeque::new())
}

async fn read(Watcher(receiver, lines): &mut Watcher) -> Option<String> {
    if lines.is_empty() {
        let received = tokio::time::timeout(Duration::from_secs(10), receiver.recv());
        let text = String::from_utf8(received.await.unwrap()?).unwrap();
        lines.extend(text.lines().map(str::to_owned));
    }
    lines.pop_front()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_watcher_delays_no_other_and_receives_the_number_of_lost_events() {
    const FLOWS: u32 = 20_000;
    let (observer, journal) = observer();
    let (mut slow, mut quick) = (watch(&observer), watch(&observer));
    let began = std::time::Instant::now();
    let mut seen = 0;
    for number in 0..FLOWS {
        journal.flows(vec![flow(number)], UnreportedFlows::default());
        if number % 256 == 255 {
            // The quick watcher keeps up.
            while seen < number {
                let line: ObserveLine =
                    serde_json::from_str(&read(&mut quick).await.unwrap()).unwrap();
                let ObserveLine::Event(event) = line else { panic!("lost: {line:?}") };
                assert_eq!(event.attribution.explanation, [seen.to_string()]);
                seen += 1;
            }
        }
    }
    println!("{FLOWS} flows in {:?}", began.elapsed());
    // The slow watcher receives the events in its channel and in the journal, and the number of lost ones.
    let (mut events, mut lost) = (0_u64, 0);
    while events + lost < FLOWS.into() {
        match serde_json::from_str(&read(&mut slow).await.unwrap()).unwrap() {
            ObserveLine::Event(_) => events += 1,
            ObserveLine::Lost { node, lost: count } => {
                assert_eq!(node, NODE);
                lost += count.slow;
            }
        }
    }
    assert_eq!(events + lost, u64::from(FLOWS));
    assert!(lost > 0 && events > 8000, "{events} events, {lost} lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_above_the_limit_replaces_the_oldest() {
    let (observer, journal) = observer();
    let mut watchers: Vec<Watcher> = (0..17).map(|_| watch(&observer)).collect();
    assert_eq!(read(&mut watchers[0]).await, None, "the oldest stream has ended");
    journal.flows(vec![flow(1)], UnreportedFlows::default());
    for watcher in &mut watchers[1..] {
        assert!(read(watcher).await.unwrap().contains("event"));
    }
    // A watcher that disconnects frees its slot.
    drop(watchers.remove(1));
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut other = watch(&observer);
    journal.flows(vec![flow(2)], UnreportedFlows::default());
    for watcher in watchers[1..].iter_mut().chain([&mut other]) {
        assert!(read(watcher).await.unwrap().contains("event"));
    }
}

#[test]
fn malformed_requests_are_refused() {
    for request in ["", "{", r#"{"filter":{"pod":"***"}}"#] {
        assert!(serde_json::from_str::<ObserveRequest>(request).is_err(), "{request}");
    }
    assert_eq!(serde_json::from_str::<ObserveRequest>("{}").unwrap(), ObserveRequest::default());
}

/// The kernel counts a packet before the agent reads its event; the count does not add to the packets without events.
#[tokio::test]
async fn a_late_event_is_not_counted_as_unreported() {
    let (observer, journal) = observer();
    let packets = Arc::<AtomicU64>::default();
    let counted = Arc::clone(&packets);
    let dropped =
        move || vec![(Direction::Ingress, Reason::Policy, counted.load(Ordering::Relaxed))];
    let received = Arc::<Mutex<(usize, u64)>>::default();
    let sums = Arc::clone(&received);
    let sink = move |events: Vec<ObservedEvent>, unreported: Vec<(EventKind, u64)>| {
        let mut received = lock(&sums);
        received.0 += events.len();
        received.1 += unreported.iter().map(|(_, count)| count).sum::<u64>();
    };
    let denied = Arc::new(Mutex::new(DeniedCounters::new(0)));
    let feed = Feed::new(observer, Box::new(dropped), denied, Box::new(sink), false);
    packets.store(2, Ordering::Relaxed);
    // Two packets and one event, which the reader records only on request.
    let mut requests = journal.requests();
    tokio::spawn(async move {
        let mut events = vec![flow(1).packet];
        while requests.changed().await.is_ok() {
            let request = *requests.borrow_and_update();
            if request > 0 {
                events.drain(..).for_each(|packet| journal.dropped(&packet));
            }
            journal.was_read(request);
        }
    });
    feed.follow(std::future::ready(())).await.unwrap();
    assert_eq!(*lock(&received), (1, 1));
}
