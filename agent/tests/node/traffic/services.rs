//! Services: real translation by rules like kube-proxy's, judged by the backend.

mod agents;
mod backends;
mod dns_cache;
mod endpoints;
mod itself;
mod node_ports;
mod paths;
mod untranslated;
