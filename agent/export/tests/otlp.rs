//! The export against a receiver with the published messages of OpenTelemetry for Python.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::time::{Duration, Instant};

use netpold_api::events::TrafficVerdict;
use netpold_api::observe::ObservedEvent;
use netpold_api::samples::event;
use netpold_core::model::Direction;
use netpold_export::{CollectorAddress, ExportSettings, Exporter, Unreported};
use netpold_testbed::otlp::{Receiver, Security};
use netpold_testbed::skip;
use serde_json::Value;

/// Longest wait for a condition.
const PATIENCE: Duration = Duration::from_mins(1);

const TEXT: &str = "# HELP netpold_dropped_packets Packets.\n\
    # TYPE netpold_dropped_packets counter\n\
    netpold_dropped_packets_total{direction=\"ingress\",reason=\"policy\"} 7\n\
    # EOF\n";

fn exporter(url: &str, metrics: Option<Duration>) -> Exporter {
    let endpoint = url.parse().unwrap();
    let verdicts = vec![TrafficVerdict::Deny, TrafficVerdict::Audit];
    Exporter::new(ExportSettings { endpoint, node: "n1".into(), verdicts, metrics })
}

/// Returns whether the receiver can run; otherwise skips the test.
fn can_receive(test: &str) -> bool {
    let there = Receiver::packages().is_some();
    if !there {
        skip(test, "needs Python's opentelemetry-proto (`cargo xtask setup`)");
    }
    there
}

async fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn of<'r>(records: &'r [Value], event: &str) -> impl Iterator<Item = &'r Value> {
    records.iter().filter(move |record| record["event"] == event)
}

fn sum(records: &[Value], event: &str) -> u64 {
    of(records, event).map(|record| record["attributes"]["netpold.count"].as_u64().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn none_of_ten_thousand_denials_is_missing() {
    const EVENTS: u16 = 10_000;
    if !can_receive("none_of_ten_thousand_denials_is_missing") {
        return;
    }
    let receiver = Receiver::start(0, Security::default()).unwrap();
    let url = format!("http://127.0.0.1:{}", receiver.port());
    let exporter = exporter(&url, Some(Duration::from_secs(1)));
    exporter.start(|| Some(TEXT.to_owned()));
    let events: Vec<ObservedEvent> =
        (0..EVENTS).map(|port| ObservedEvent { remote_port: port, ..event(0) }).collect();
    let unreported = Unreported {
        outcome: TrafficVerdict::Deny,
        direction: Some(Direction::Ingress),
        reason: "policy".into(),
        count: 77,
    };
    events.chunks(250).for_each(|events| exporter.send(events, &[]));
    exporter.send(&[ObservedEvent { verdict: TrafficVerdict::Allow, ..event(0) }], &[unreported]);
    let logs = || receiver.items("/v1/logs");
    wait("all records", || exporter.numbers().sent + exporter.numbers().lost > u64::from(EVENTS))
        .await;
    assert_eq!((exporter.numbers().lost, exporter.numbers().failures), (0, 0));
    wait("all lines of the receiver", || receiver.count("/v1/logs") > usize::from(EVENTS)).await;
    let records = logs();
    assert_eq!(records.len(), usize::from(EVENTS) + 1, "no flow that passed");
    let denied = of(&records, "netpold.packet.denied");
    let port = |record: &Value| record["attributes"]["source.port"].as_u64().unwrap();
    let mut ports: Vec<u64> = denied.map(port).collect();
    ports.sort_unstable();
    assert_eq!(ports, (0..u64::from(EVENTS)).collect::<Vec<_>>());
    assert_eq!(sum(&records, "netpold.unreported"), 77);
    assert_eq!(records[0]["resource"]["k8s.node.name"], "n1");
    assert_eq!(records[0]["attributes"]["destination.address"], "10.0.0.1");
    assert_eq!(records[0]["severity"], 9);
    let points = || receiver.items("/v1/metrics");
    wait("metrics", || !points().is_empty()).await;
    let point = &points()[0];
    assert_eq!(
        (&point["name"], &point["kind"]),
        (&"netpold_dropped_packets".into(), &"sum".into())
    );
    assert_eq!((&point["value"], &point["attributes"]["reason"]), (&7.0.into(), &"policy".into()));
}

/// A collector that is away: memory is bounded, senders do not wait, and the collector that returns gets the number of
/// lost records.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_while_the_collector_is_away_is_counted() {
    const EVENTS: u64 = 60_000;
    if !can_receive("what_is_lost_while_the_collector_is_away_is_counted") {
        return;
    }
    // Another receiver takes the port again.
    let port = Receiver::start(0, Security::default()).unwrap().port();
    let exporter = exporter(&format!("http://127.0.0.1:{port}"), None);
    exporter.start(|| None);
    let events = vec![event(0); 500];
    for _ in 0..EVENTS / 500 {
        exporter.send(&events, &[]);
    }
    wait("a failure", || exporter.numbers().failures > 0).await;
    let away = exporter.numbers();
    assert!(away.lost > 0, "the queue is full: {away:?}");
    assert_eq!(away.lost + away.waiting, EVENTS);
    let receiver = Receiver::start(port, Security::default()).unwrap();
    wait("an empty queue", || exporter.numbers().waiting == 0).await;
    let arrived = exporter.numbers().sent;
    assert_eq!((arrived, exporter.numbers().lost), (EVENTS - away.lost, away.lost));
    // The loss is reported in one record or several: records may be lost while the first batch is on its way.
    let lost = || sum(&receiver.items("/v1/logs"), "netpold.lost");
    wait("all lines", || receiver.count("/v1/logs") as u64 > arrived).await;
    wait("the loss", || lost() == away.lost).await;
}

/// The collector needs a header, and has a certificate by an authority of its own.
#[tokio::test(flavor = "multi_thread")]
async fn files_have_the_authority_and_the_headers() {
    if !can_receive("files_have_the_authority_and_the_headers") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(path("cert"), certificate.cert.pem()).unwrap();
    fs::write(path("key"), certificate.signing_key.serialize_pem()).unwrap();
    let [cert, key] = ["cert", "key"].map(path);
    let security =
        Security { tls: Some([&cert, &key]), header: Some("authorization: Bearer token") };
    let receiver = Receiver::start(0, security).unwrap();
    let url = format!("https://localhost:{}", receiver.port());
    let mut endpoint: CollectorAddress = url.parse().unwrap();
    fs::write(path("headers"), "Authorization: Bearer old\n").unwrap();
    endpoint.headers = Some(path("headers"));
    let start = |endpoint: &CollectorAddress| {
        let (endpoint, verdicts) = (endpoint.clone(), vec![TrafficVerdict::Deny]);
        let settings = ExportSettings { endpoint, node: "n1".into(), verdicts, metrics: None };
        let exporter = Exporter::new(settings);
        exporter.start(|| None);
        exporter.send(&[event(0)], &[]);
        exporter
    };
    // Without trust in the certificate, records are not sent, and the request is retried.
    let untrusting = start(&endpoint);
    wait("a failure", || untrusting.numbers().failures > 0).await;
    assert_eq!((untrusting.numbers().lost, receiver.items("/v1/logs").len()), (0, 0));
    endpoint.authorities = Some(cert.clone());
    // A refused record is lost, and counted in the next request, for which the file is read again.
    let exporter = start(&endpoint);
    wait("a refusal", || exporter.numbers().lost == 1).await;
    fs::write(path("headers"), "Authorization: Bearer token\n").unwrap();
    exporter.send(&[event(0)], &[]);
    wait("the next record", || exporter.numbers().sent == 1).await;
    wait("both lines", || receiver.count("/v1/logs") == 2).await;
    assert_eq!(sum(&receiver.items("/v1/logs"), "netpold.lost"), 1);
}
