//! Metrics that are looked up when they are asked for.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Writes metrics one after the other.
pub(super) struct Writer<'e> {
    encoder: DescriptorEncoder<'e>,
}

impl<'e> Writer<'e> {
    pub(super) fn new(encoder: DescriptorEncoder<'e>) -> Self {
        Self { encoder }
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.one(name, help, &ConstGauge::new(value))
    }

    /// A counter; its name is written with `_total` behind it.
    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.one(name, help, &ConstCounter::new(value))
    }

    pub(super) fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        self.family(name, help, samples.into_iter().map(|(l, value)| (l, ConstGauge::new(value))))
    }

    pub(super) fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        self.family(name, help, samples.into_iter().map(|(l, value)| (l, ConstCounter::new(value))))
    }

    pub(super) fn one(
        &mut self,
        name: &str,
        help: &str,
        metric: &impl EncodeMetric,
    ) -> fmt::Result {
        metric.encode(self.encoder.encode_descriptor(name, help, None, metric.metric_type())?)
    }

    fn family<L: EncodeLabelSet, M: EncodeMetric>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl Iterator<Item = (L, M)>,
    ) -> fmt::Result {
        let mut samples = samples.peekable();
        let Some((_, first)) = samples.peek() else { return Ok(()) };
        let kind = first.metric_type();
        let mut family = self.encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, metric) in samples {
            metric.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
