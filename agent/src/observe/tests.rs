use std::sync::Arc;
use std::time::Duration;

use netpold_core::cluster::Whose;
use netpold_core::model::{Direction, Key};
use netpold_core::probe::IpProtocol;
use netpold_dataplane::conntrack::FlowTuple;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixStream;

use super::{Attribution, Event, Line, Observer, PolicyName, Request, RuleName, lost_text, text};
use crate::events::{Journal, Lost, Outcome, Seen};

const NODE: &str = "n1";

fn event(number: u32) -> Event {
    Event {
        time: "2026-11-23T10:00:00.000Z".into(),
        node: NODE.into(),
        verdict: Outcome::Deny,
        reason: "policy".into(),
        direction: Direction::Ingress,
        pod: Some(Key::new("shop", "db")),
        interface: None,
        local: Some([10, 0, 0, 1].into()),
        local_port: 5432,
        peer: Some(Whose::Pod(Key::new("shop", "web"))),
        remote: Some([10, 0, 0, 2].into()),
        remote_port: 4000,
        protocol: Some(IpProtocol::TCP),
        port: Some(5432),
        attribution: Attribution {
            explanation: vec![format!("{number}")],
            ..Attribution::default()
        },
    }
}

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
        let error = super::understood(&answer).unwrap_err().to_string();
        assert!(error.starts_with("the agent refuses: invalid request: "), "{error}");
    }
    assert_eq!(serde_json::from_str::<Request>("{}").unwrap(), Request::default());
}

fn plain(line: &Line) -> String {
    anstream::adapter::strip_str(&text(line).unwrap()).to_string()
}

#[test]
fn lines_for_people() {
    let web = Key::new("shop", "db");
    let rule =
        RuleName { policy: PolicyName::new(&web), index: 0, matches: "TCP 80 from anyone".into() };
    let mut denied = event(0);
    denied.attribution = Attribution {
        policies: vec![rule.policy.clone(), PolicyName::new(&Key::new("", "all"))],
        more_policies: 2,
        nearest: Some(rule.clone()),
        lacks: vec!["port 5432 is not in it".into()],
        ..Attribution::default()
    };
    let line = Line::Event(Box::new(denied.clone()));
    assert_eq!(
        plain(&line),
        "2026-11-23T10:00:00.000Z n1 deny ingress shop/db:5432 <- shop/web:4000 TCP policy: shop/db, \
         ClusterNetworkPolicy all, 2 more; nearest is rule 1 of shop/db: port 5432 is not in it"
    );
    let read: Line = serde_json::from_str(&serde_json::to_string(&line).unwrap()).unwrap();
    assert_eq!(read, line);
    let allowed = Event {
        verdict: Outcome::Allow,
        reason: "allowed".into(),
        direction: Direction::Egress,
        peer: Some(Whose::Outside),
        remote: Some("fd00::2".parse().unwrap()),
        attribution: Attribution {
            policies: vec![rule.policy.clone()],
            rule: Some(rule),
            ..Attribution::default()
        },
        ..event(0)
    };
    assert!(plain(&Line::Event(Box::new(allowed))).ends_with(
        " n1 allow egress shop/db:5432 -> [fd00::2]:4000 TCP: shop/db rule 1 (TCP 80 from anyone)"
    ));
    // Control characters in a name neither break the line nor move the cursor.
    let forged = Event { pod: Some(Key::new("x\n\u{1b}[2J", "\u{202e}y")), ..event(0) };
    let shown = plain(&Line::Event(Box::new(forged)));
    assert!(shown.contains(r"x\n\u{1b}[2J/\u{202e}y"), "{shown:?}");
    let unknown = Event {
        pod: None,
        interface: Some("veth7".into()),
        peer: None,
        remote: None,
        protocol: None,
        local_port: 0,
        remote_port: 0,
        reason: "not_ip".into(),
        attribution: Attribution::default(),
        ..denied
    };
    let shown = plain(&Line::Event(Box::new(unknown)));
    assert!(shown.ends_with(" n1 deny ingress veth7 <- unknown not IP not_ip"), "{shown}");
}

#[test]
fn everything_lost_is_named() {
    let lost = Lost { kernel: 4, flows: 3, slow: 2, unattributed: 1 };
    let shown = plain(&Line::Lost { node: NODE.into(), lost });
    for part in ["n1: 4 drops", "; 3 flows", "; 2 events", "; 1 events are without policy"] {
        assert!(shown.contains(part), "{shown}");
    }
    assert_eq!(lost_text(&Lost::default()), "");
}
