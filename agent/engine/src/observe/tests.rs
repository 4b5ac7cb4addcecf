use std::sync::Arc;
use std::time::Duration;

use netpold_api::filter::Request;
use netpold_api::observe::Line;
use netpold_api::samples::{NODE, event};
use netpold_core::model::Direction;
use netpold_dataplane::conntrack::FlowTuple;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixStream;

use super::Observer;
use crate::events::{Journal, Seen};

fn observer() -> (Arc<Observer>, Arc<Journal>) {
    let journal = Arc::<Journal>::default();
    let resolve =
        |seen: &[Seen], _: &_| (seen.iter().map(|seen| event(seen.packet.endpoint)).collect(), 0);
    (Arc::new(Observer::new(NODE.into(), Arc::clone(&journal), resolve)), journal)
}

fn flow(endpoint: u32) -> Seen {
    let remote = [10, 0, 0, 2].into();
    let (local_port, remote_port, protocol) = (5432, 4000, 6);
    let tuple = FlowTuple { endpoint, remote, local_port, remote_port, protocol };
    Seen::flow(&tuple, Direction::Ingress, false)
}

fn watch(observer: &Arc<Observer>) -> BufReader<UnixStream> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let request = r#"{"follow":true,"filter":{"verdicts":["allow"]}}"#.to_owned();
    tokio::spawn(Arc::clone(observer).serve(theirs, request));
    BufReader::new(ours)
}

async fn read(watcher: &mut BufReader<UnixStream>) -> Option<String> {
    let mut line = String::new();
    let read = tokio::time::timeout(Duration::from_secs(10), watcher.read_line(&mut line));
    (read.await.unwrap().unwrap() > 0).then(|| line.trim_end().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_that_does_not_read_holds_nobody_up_and_is_told_what_it_missed() {
    const FLOWS: u32 = 20_000;
    let (observer, journal) = observer();
    let (mut slow, mut quick) = (watch(&observer), watch(&observer));
    for watcher in [&mut slow, &mut quick] {
        assert_eq!(read(watcher).await.unwrap(), "", "it has begun");
    }
    let began = std::time::Instant::now();
    let mut seen = 0;
    for number in 0..FLOWS {
        journal.flows(vec![flow(number)], 0);
        if number % 256 == 255 {
            // The quick watcher keeps up.
            while seen < number {
                let line: Line = serde_json::from_str(&read(&mut quick).await.unwrap()).unwrap();
                let Line::Event(event) = line else { panic!("lost: {line:?}") };
                assert_eq!(event.attribution.explanation, [seen.to_string()]);
                seen += 1;
            }
        }
    }
    println!("{FLOWS} flows in {:?}", began.elapsed());
    // The slow watcher gets the content of socket and journal, and the number of lost events.
    let (mut events, mut lost) = (0_u64, 0);
    while events + lost < FLOWS.into() {
        match serde_json::from_str(&read(&mut slow).await.unwrap()).unwrap() {
            Line::Event(_) => events += 1,
            Line::Lost { node, lost: it } => {
                assert_eq!(node, NODE);
                lost += it.slow;
            }
        }
    }
    assert_eq!(events + lost, u64::from(FLOWS));
    assert!(lost > 0 && events > 8000, "{events} events, {lost} lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_further_watcher_takes_the_place_of_the_first() {
    let (observer, journal) = observer();
    let mut watchers = Vec::new();
    for _ in 0..17 {
        let mut watcher = watch(&observer);
        assert_eq!(read(&mut watcher).await.unwrap(), "");
        watchers.push(watcher);
    }
    assert_eq!(read(&mut watchers[0]).await, None, "it is ended");
    journal.flows(vec![flow(1)], 0);
    for watcher in &mut watchers[1..] {
        assert!(read(watcher).await.unwrap().contains("event"));
    }
    // A watcher that disconnects frees its slot.
    drop(watchers.remove(1));
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut other = watch(&observer);
    assert_eq!(read(&mut other).await.unwrap(), "");
    journal.flows(vec![flow(2)], 0);
    for watcher in watchers[1..].iter_mut().chain([&mut other]) {
        assert!(read(watcher).await.unwrap().contains("event"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_refused() {
    let (observer, _) = observer();
    for request in ["", "{", r#"{"filter":{"pod":"***"}}"#] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        tokio::spawn(Arc::clone(&observer).serve(theirs, request.to_owned()));
        let answer = read(&mut BufReader::new(ours)).await.unwrap();
        assert!(answer.starts_with(r#"{"error":"invalid request: "#), "{answer}");
    }
    assert_eq!(serde_json::from_str::<Request>("{}").unwrap(), Request::default());
}
