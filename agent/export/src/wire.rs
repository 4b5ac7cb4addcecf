//! Messages of OTLP 1 that netpold uses. The protocol guarantees the numbers and types of the fields
//! (opentelemetry-proto, `opentelemetry/proto/{common,resource,logs,metrics,collector}/…/v1`).

use bytes::Bytes;
use prost::{Message, Oneof};

/// `AGGREGATION_TEMPORALITY_CUMULATIVE`
pub(crate) const CUMULATIVE: i32 = 2;
/// `SEVERITY_NUMBER_INFO`
pub(crate) const INFO: i32 = 9;
/// `SEVERITY_NUMBER_WARN`
pub(crate) const WARN: i32 = 13;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AnyValue {
    #[prost(oneof = "AttributeValue", tags = "1, 3, 5")]
    pub(crate) value: Option<AttributeValue>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum AttributeValue {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(message, tag = "5")]
    Array(ArrayValue),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ArrayValue {
    #[prost(message, repeated, tag = "1")]
    pub(crate) values: Vec<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(crate) attributes: Vec<KeyValue>,
}

/// `InstrumentationScope`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct InstrumentationScope {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LogRecord {
    #[prost(fixed64, tag = "1")]
    pub(crate) time_unix_nano: u64,
    #[prost(int32, tag = "2")]
    pub(crate) severity_number: i32,
    #[prost(string, tag = "3")]
    pub(crate) severity_text: String,
    #[prost(message, optional, tag = "5")]
    pub(crate) body: Option<AnyValue>,
    #[prost(message, repeated, tag = "6")]
    pub(crate) attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "11")]
    pub(crate) observed_time_unix_nano: u64,
    #[prost(string, tag = "12")]
    pub(crate) event_name: String,
}

/// Log records of one scope. Encoded records are `bytes` here, because an embedded message is encoded as bytes.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ScopeLogs {
    #[prost(message, optional, tag = "1")]
    pub(crate) scope: Option<InstrumentationScope>,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub(crate) log_records: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResourceLogs {
    #[prost(message, optional, tag = "1")]
    pub(crate) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) scope_logs: Vec<ScopeLogs>,
}

/// `ExportLogsServiceRequest`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LogsRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) resource_logs: Vec<ResourceLogs>,
}

/// `ExportLogsServiceResponse` and `ExportMetricsServiceResponse`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) partial_success: Option<PartialSuccess>,
}

/// `ExportLogsPartialSuccess` and `ExportMetricsPartialSuccess`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PartialSuccess {
    /// Rejected log records or data points.
    #[prost(int64, tag = "1")]
    pub(crate) rejected: i64,
    #[prost(string, tag = "2")]
    pub(crate) error_message: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NumberDataPoint {
    #[prost(fixed64, tag = "2")]
    pub(crate) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    pub(crate) time_unix_nano: u64,
    #[prost(double, optional, tag = "4")]
    pub(crate) as_double: Option<f64>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HistogramDataPoint {
    #[prost(fixed64, tag = "2")]
    pub(crate) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    pub(crate) time_unix_nano: u64,
    #[prost(fixed64, tag = "4")]
    pub(crate) count: u64,
    #[prost(double, optional, tag = "5")]
    pub(crate) sum: Option<f64>,
    #[prost(fixed64, repeated, tag = "6")]
    pub(crate) bucket_counts: Vec<u64>,
    #[prost(double, repeated, tag = "7")]
    pub(crate) explicit_bounds: Vec<f64>,
    #[prost(message, repeated, tag = "9")]
    pub(crate) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Gauge {
    #[prost(message, repeated, tag = "1")]
    pub(crate) data_points: Vec<NumberDataPoint>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Sum {
    #[prost(message, repeated, tag = "1")]
    pub(crate) data_points: Vec<NumberDataPoint>,
    #[prost(int32, tag = "2")]
    pub(crate) aggregation_temporality: i32,
    #[prost(bool, tag = "3")]
    pub(crate) is_monotonic: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Histogram {
    #[prost(message, repeated, tag = "1")]
    pub(crate) data_points: Vec<HistogramDataPoint>,
    #[prost(int32, tag = "2")]
    pub(crate) aggregation_temporality: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Metric {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) description: String,
    #[prost(oneof = "Data", tags = "5, 7, 9")]
    pub(crate) data: Option<Data>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Data {
    #[prost(message, tag = "5")]
    Gauge(Gauge),
    #[prost(message, tag = "7")]
    Sum(Sum),
    #[prost(message, tag = "9")]
    Histogram(Histogram),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ScopeMetrics {
    #[prost(message, optional, tag = "1")]
    pub(crate) scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    pub(crate) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) scope_metrics: Vec<ScopeMetrics>,
}

/// `ExportMetricsServiceRequest`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MetricsRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) resource_metrics: Vec<ResourceMetrics>,
}

impl KeyValue {
    pub(crate) fn text(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self::new(key, AttributeValue::Text(value.into()))
    }

    pub(crate) fn int(key: impl Into<String>, value: u64) -> Self {
        Self::new(key, AttributeValue::Int(i64::try_from(value).unwrap_or(i64::MAX)))
    }

    pub(crate) fn texts(key: impl Into<String>, values: impl Iterator<Item = String>) -> Self {
        let values = values.map(AnyValue::text).collect();
        Self::new(key, AttributeValue::Array(ArrayValue { values }))
    }

    /// Returns the value if it is a text.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match self.value.as_ref()?.value.as_ref()? {
            AttributeValue::Text(text) => Some(text),
            AttributeValue::Int(_) | AttributeValue::Array(_) => None,
        }
    }

    fn new(key: impl Into<String>, value: AttributeValue) -> Self {
        Self { key: key.into(), value: Some(AnyValue { value: Some(value) }) }
    }
}

impl AnyValue {
    pub(crate) fn text(text: String) -> Self {
        Self { value: Some(AttributeValue::Text(text)) }
    }
}

/// Returns the resource of the agent on a node.
pub(crate) fn resource(node: &str) -> Resource {
    let attributes = vec![
        KeyValue::text("service.name", "netpold"),
        KeyValue::text("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::text("service.instance.id", node),
        KeyValue::text("k8s.node.name", node),
    ];
    Resource { attributes }
}

pub(crate) fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "netpold".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}
