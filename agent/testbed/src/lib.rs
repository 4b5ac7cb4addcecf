//! Nodes and pods as network namespaces.
