//! The text of the metrics as data points, so that `/metrics` and the export have one list of metrics.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};

use crate::wire::{
    CUMULATIVE, Data, Gauge, Histogram, HistogramDataPoint, KeyValue, Metric, MetricsRequest,
    NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum, resource, scope,
};

/// Labels and value of a sample.
type MetricSample = (Vec<KeyValue>, f64);

/// A metric of the text.
#[derive(Debug, Default)]
struct MetricFamily<'t> {
    kind: &'t str,
    help: &'t str,
    /// Samples by suffix: `_total`, `_info`, `_bucket`, `_sum`, `_count` or none.
    samples: Vec<(&'t str, MetricSample)>,
}

/// Start times of cumulative series, in nanoseconds since 1970. A series that was displaced and returns begins again:
/// its start time changes with it (OpenTelemetry's data model, "Resets and Gaps").
#[derive(Debug)]
pub(crate) struct StartTimes {
    /// Time of the last request; before the first one, the start of the counters.
    last: u64,
    /// Start time and value of each series in the last request, by hash of name and labels.
    known: BTreeMap<u64, (u64, f64)>,
    hasher: RandomState,
}

impl StartTimes {
    /// Begins at the start of the agent.
    pub(crate) fn new(start: u64) -> Self {
        let (known, hasher) = (BTreeMap::new(), RandomState::new());
        Self { last: start, known, hasher }
    }

    /// Sets the start times of a request.
    fn set(&mut self, metrics: &mut [Metric], now: u64) {
        let mut met = BTreeMap::new();
        for metric in metrics {
            match &mut metric.data {
                Some(Data::Sum(sum)) => {
                    for point in &mut sum.data_points {
                        let value = point.as_double.unwrap_or_default();
                        let start = self.start(&metric.name, &point.attributes, value, &mut met);
                        point.start_time_unix_nano = start;
                    }
                }
                Some(Data::Histogram(histogram)) => {
                    for point in &mut histogram.data_points {
                        let value = point.count as f64;
                        let start = self.start(&metric.name, &point.attributes, value, &mut met);
                        point.start_time_unix_nano = start;
                    }
                }
                Some(Data::Gauge(_)) | None => {}
            }
        }
        (self.known, self.last) = (met, now);
    }

    /// Returns the start time of a series: that of the last request if its value has not fallen since, else the time of
    /// the last request, when a new series had counted nothing.
    fn start(
        &self,
        name: &str,
        labels: &[KeyValue],
        value: f64,
        met: &mut BTreeMap<u64, (u64, f64)>,
    ) -> u64 {
        let labels = labels.iter().map(|pair| (pair.key.as_str(), pair.as_text()));
        let series = self.hasher.hash_one((name, labels.collect::<Vec<_>>()));
        let start = match self.known.get(&series) {
            Some((start, before)) if value >= *before => *start,
            Some(_) | None => self.last,
        };
        met.insert(series, (start, value));
        start
    }
}

/// Returns the request with all metrics of an `OpenMetrics` text. `now`: time of the values, in nanoseconds since 1970.
pub(crate) fn request(node: &str, text: &str, starts: &mut StartTimes, now: u64) -> MetricsRequest {
    let metrics = families(text).into_iter();
    let mut metrics: Vec<Metric> =
        metrics.filter_map(|(name, family)| metric(name, &family, now)).collect();
    starts.set(&mut metrics, now);
    let scope_metrics = vec![ScopeMetrics { scope: Some(scope()), metrics }];
    let resource_metrics = vec![ResourceMetrics { resource: Some(resource(node)), scope_metrics }];
    MetricsRequest { resource_metrics }
}

fn families(text: &str) -> BTreeMap<&str, MetricFamily<'_>> {
    let mut families: BTreeMap<&str, MetricFamily<'_>> = BTreeMap::new();
    let mut name = "";
    for line in text.lines() {
        if let Some((of, help)) = line.strip_prefix("# HELP ").and_then(|it| it.split_once(' ')) {
            families.entry(of).or_default().help = help;
        } else if let Some((of, kind)) =
            line.strip_prefix("# TYPE ").and_then(|it| it.split_once(' '))
        {
            name = of;
            families.entry(of).or_default().kind = kind;
        } else if let Some((suffix, sample)) = line.strip_prefix(name).and_then(sample)
            && !line.starts_with('#')
        {
            families.entry(name).or_default().samples.push((suffix, sample));
        }
    }
    families
}

/// Reads the rest of a sample's line after the metric's name: suffix, labels and value.
fn sample(rest: &str) -> Option<(&str, MetricSample)> {
    let end = rest.find(['{', ' '])?;
    let (suffix, mut rest) = rest.split_at(end);
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            let (key, after) = rest.trim_start_matches(',').split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.push(KeyValue::text(key, value));
            rest = after;
        }
    }
    let value = rest.trim_start().split(' ').next()?;
    Some((suffix, (labels, value.parse().ok()?)))
}

/// Reads a label's value up to its closing quote; returns the text after the quote too.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            _ => value.push(c),
        }
    }
    None
}

fn metric(name: &str, family: &MetricFamily<'_>, now: u64) -> Option<Metric> {
    let points = |suffix: &str| -> Vec<NumberDataPoint> {
        let samples = family.samples.iter().filter(|(of, _)| *of == suffix);
        let point = |(_, (labels, value)): &(_, MetricSample)| NumberDataPoint {
            start_time_unix_nano: 0,
            time_unix_nano: now,
            as_double: Some(*value),
            attributes: labels.clone(),
        };
        samples.map(point).collect()
    };
    let (name, data) = match family.kind {
        "counter" => {
            let sum = Sum {
                data_points: points("_total"),
                aggregation_temporality: CUMULATIVE,
                is_monotonic: true,
            };
            (name.to_owned(), Data::Sum(sum))
        }
        "gauge" => (name.to_owned(), Data::Gauge(Gauge { data_points: points("") })),
        "info" => (format!("{name}_info"), Data::Gauge(Gauge { data_points: points("_info") })),
        "histogram" => {
            let data_points = histograms(family, now);
            let histogram = Histogram { data_points, aggregation_temporality: CUMULATIVE };
            (name.to_owned(), Data::Histogram(histogram))
        }
        _ => return None,
    };
    Some(Metric { name, description: family.help.to_owned(), data: Some(data) })
}

fn histograms(family: &MetricFamily<'_>, now: u64) -> Vec<HistogramDataPoint> {
    let is_bound = |pair: &KeyValue| pair.key == "le";
    let mut points: Vec<HistogramDataPoint> = Vec::new();
    for (suffix, (labels, value)) in &family.samples {
        let attributes: Vec<_> = labels.iter().filter(|pair| !is_bound(pair)).cloned().collect();
        let index = points.iter().position(|point| point.attributes == attributes);
        let index = index.unwrap_or_else(|| {
            points.push(HistogramDataPoint {
                time_unix_nano: now,
                attributes,
                ..HistogramDataPoint::default()
            });
            points.len() - 1
        });
        let point = &mut points[index];
        match *suffix {
            "_sum" => point.sum = Some(*value),
            "_count" => point.count = *value as u64,
            "_bucket" => {
                let bound = labels.iter().find(|pair| is_bound(pair)).and_then(KeyValue::as_text);
                let bound: f64 = bound.and_then(|text| text.parse().ok()).unwrap_or(f64::INFINITY);
                // Buckets of the text include the smaller ones, those of OTLP do not.
                let before: u64 = point.bucket_counts.iter().sum();
                point.bucket_counts.push((*value as u64).saturating_sub(before));
                if bound.is_finite() {
                    point.explicit_bounds.push(bound);
                }
            }
            _ => {}
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP netpold_build Version.
# TYPE netpold_build info
netpold_build_info{version="1",arch="x"} 1
# HELP netpold_a Time.
# TYPE netpold_a histogram
netpold_a_sum 2.5
netpold_a_count 4
netpold_a_bucket{le="0.1"} 1
netpold_a_bucket{le="1.0"} 3
netpold_a_bucket{le="+Inf"} 4
# HELP netpold_a_b Packets.
# TYPE netpold_a_b counter
netpold_a_b_total{direction="in",policy="x \"y\" {z}, \\ w"} 7
netpold_a_b_total{direction="out",policy=""} 8
# HELP netpold_none Nothing.
# TYPE netpold_none counter
# TYPE process_threads gauge
process_threads 12
# EOF
"#;

    #[test]
    fn every_kind_of_metric_is_translated() {
        let request = request("n1", TEXT, &mut StartTimes::new(5), 9);
        let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
        let names: Vec<&str> = metrics.iter().map(|metric| metric.name.as_str()).collect();
        let expected =
            ["netpold_a", "netpold_a_b", "netpold_build_info", "netpold_none", "process_threads"];
        assert_eq!(names, expected);
        let Some(Data::Histogram(histogram)) = &metrics[0].data else { panic!() };
        let point = &histogram.data_points[0];
        assert_eq!((point.count, point.sum), (4, Some(2.5)));
        assert_eq!(point.bucket_counts, [1, 2, 1]);
        assert_eq!(point.explicit_bounds, [0.1, 1.0]);
        let Some(Data::Sum(sum)) = &metrics[1].data else { panic!() };
        assert_eq!(sum.data_points.len(), 2);
        let labels = &sum.data_points[0].attributes;
        assert_eq!(labels[1].as_text(), Some(r#"x "y" {z}, \ w"#));
        assert_eq!(sum.data_points[1].as_double, Some(8.0));
        assert_eq!(metrics[1].description, "Packets.");
        let Some(Data::Gauge(gauge)) = &metrics[4].data else { panic!() };
        assert_eq!(
            (gauge.data_points[0].as_double, gauge.data_points[0].time_unix_nano),
            (Some(12.0), 9)
        );
    }

    #[test]
    fn a_series_that_begins_anew_has_a_new_start_time() {
        let mut starts = StartTimes::new(5);
        let mut begun = |now, samples: &str| -> Vec<u64> {
            let text = format!("# TYPE netpold_a counter\n{samples}# EOF\n");
            let request = request("n1", &text, &mut starts, now);
            let metric = &request.resource_metrics[0].scope_metrics[0].metrics[0];
            let Some(Data::Sum(sum)) = &metric.data else { panic!() };
            sum.data_points.iter().map(|point| point.start_time_unix_nano).collect()
        };
        let (a, b) = ("netpold_a_total{x=\"a\"}", "netpold_a_total{x=\"b\"}");
        assert_eq!(begun(10, &format!("{a} 3\n{b} 7\n")), [5, 5]);
        assert_eq!(begun(20, &format!("{a} 4\n{b} 7\n")), [5, 5]);
        assert_eq!(begun(30, &format!("{b} 8\n")), [5], "a is displaced");
        assert_eq!(begun(40, &format!("{a} 5\n{b} 2\n")), [30, 30], "a returns, b fell");
        assert_eq!(begun(50, &format!("{a} 5\n{b} 3\n")), [30, 30]);
    }
}
