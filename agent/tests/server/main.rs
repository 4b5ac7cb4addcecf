//! Tests with a real API server, and of the manifests that go there.

mod apiserver;
mod controller;
mod manifests;
