//! Tests of agents on nodes (network namespaces, as root): real programs, packets and containers.

mod attacks;
mod conformance;
mod deploy;
mod endpoint;
mod kernel;
mod traffic;
