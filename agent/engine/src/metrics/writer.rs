//! Writer of metrics with values that are read at the scrape.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Writer of metrics, one after the other.
pub(super) struct MetricWriter<'e> {
    encoder: DescriptorEncoder<'e>,
}

impl<'e> MetricWriter<'e> {
    pub(super) fn new(encoder: DescriptorEncoder<'e>) -> Self {
        Self { encoder }
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.one(name, help, &ConstGauge::new(value))
    }

    /// Writes a counter; the encoder appends `_total` to its name.
    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.one(name, help, &ConstCounter::new(value))
    }

    pub(super) fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let samples = samples.into_iter().map(|(labels, value)| (labels, ConstGauge::new(value)));
        self.family(name, help, MetricType::Gauge, samples)
    }

    pub(super) fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let samples = samples.into_iter().map(|(labels, value)| (labels, ConstCounter::new(value)));
        self.family(name, help, MetricType::Counter, samples)
    }

    pub(super) fn one(
        &mut self,
        name: &str,
        help: &str,
        metric: &impl EncodeMetric,
    ) -> fmt::Result {
        metric.encode(self.encoder.encode_descriptor(name, help, None, metric.metric_type())?)
    }

    /// Writes the samples of a metric; without samples, its description only.
    fn family<L: EncodeLabelSet, M: EncodeMetric>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        samples: impl Iterator<Item = (L, M)>,
    ) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, metric) in samples {
            metric.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
