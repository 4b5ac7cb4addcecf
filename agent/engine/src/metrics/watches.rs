//! Health of the source of objects and its watches, for scrapes and readiness.

use std::fmt;

use netpold_api::source::{KindStatus, SourceStatus};

use super::writer::MetricWriter;

/// Returns the reasons why the source is not in sync.
pub(super) fn not_ready(source: &SourceStatus) -> Vec<String> {
    if source.in_sync {
        return Vec::new();
    }
    let missing = source.kinds.iter().filter(|kind| kind.served && !kind.in_sync);
    let mut reasons: Vec<String> = missing
        .map(|kind| match &kind.error {
            Some(error) => format!("{} are not known yet: {error}", kind.kind),
            None => format!("{} are not known yet", kind.kind),
        })
        .collect();
    if reasons.is_empty() {
        reasons.push("the object source is not in sync; see `netpold status`".to_owned());
    }
    reasons
}

pub(super) fn write(source: &SourceStatus, writer: &mut MetricWriter<'_>) -> fmt::Result {
    let in_sync = u64::from(source.in_sync);
    writer.gauge("source_in_sync", "1: all objects of the source are known", in_sync)?;
    let help = "Parts of the source that cannot be read or decoded";
    writer.gauge("source_problems", help, source.problems.len() as u64)?;
    let of = |value: fn(&KindStatus) -> u64| {
        source.kinds.iter().map(move |kind| ([("kind", kind.kind.clone())], value(kind)))
    };
    let help = "1: all objects of the kind were known at some time since the start";
    writer.gauges("watch_in_sync", help, of(|kind| u64::from(kind.in_sync)))?;
    let help = "1: the last list or watch failed, or the kind is not served though it should be";
    let failing = of(|k| u64::from(k.error.is_some() || !(k.served || k.in_sync)));
    writer.gauges("watch_failing", help, failing)?;
    writer.gauges("watch_objects", "Objects of the kind", of(|kind| kind.objects as u64))?;
    let help = "Objects whose current version cannot be decoded";
    writer.gauges("watch_undecoded_objects", help, of(|kind| kind.undecoded as u64))?;
    let help = "Time of the API server's last event, in seconds since 1970";
    let last_events = source
        .kinds
        .iter()
        .filter_map(|kind| kind.last_event.map(|at| ([("kind", kind.kind.clone())], at)));
    writer.gauges("watch_last_event_timestamp_seconds", help, last_events)?;
    writer.counters("watch_lists", "Full lists begun", of(|kind| kind.lists))?;
    writer.counters("watch_restarts", "Lists and watches that failed", of(|kind| kind.restarts))
}

#[cfg(test)]
mod tests {
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::DescriptorEncoder;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[derive(Debug)]
    struct StatusSource(SourceStatus);

    impl Collector for StatusSource {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
            write(&self.0, &mut MetricWriter::new(encoder))
        }
    }

    fn status() -> SourceStatus {
        let pods = KindStatus {
            kind: "pods".into(),
            in_sync: true,
            served: true,
            objects: 7,
            undecoded: 2,
            last_event: Some(1_700_000_000),
            lists: 2,
            restarts: 1,
            error: None,
            unreachable: false,
        };
        let error = Some("connection refused".to_owned());
        let services =
            KindStatus { kind: "services".into(), in_sync: false, error, ..pods.clone() };
        SourceStatus { kinds: vec![pods, services], ..SourceStatus::default() }
    }

    #[test]
    fn each_kind_has_its_samples() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(StatusSource(status())));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "watch_in_sync{kind=\"pods\"} 1",
            "watch_in_sync{kind=\"services\"} 0",
            "watch_failing{kind=\"pods\"} 0",
            "watch_failing{kind=\"services\"} 1",
            "watch_objects{kind=\"pods\"} 7",
            "watch_undecoded_objects{kind=\"pods\"} 2",
            "watch_last_event_timestamp_seconds{kind=\"pods\"} 1700000000",
            "watch_lists_total{kind=\"pods\"} 2",
            "watch_restarts_total{kind=\"services\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn readiness_names_the_kinds_out_of_sync() {
        let mut source = status();
        let reasons = not_ready(&source);
        assert_eq!(reasons, ["services are not known yet: connection refused"]);
        source.kinds[1].served = false;
        assert_eq!(not_ready(&source).len(), 1, "still not in sync, for another reason");
        source.in_sync = true;
        assert_eq!(not_ready(&source), [""; 0]);
    }
}
