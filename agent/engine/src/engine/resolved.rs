//! Addresses that the node's pods resolved domain names of policy to.

use std::collections::{BTreeSet, HashMap};

use netpold_core::explain::ResolvedNames;
use netpold_core::model::{DomainName, Key};
use netpold_dataplane::generation::GenerationError;
use netpold_dataplane::names;

use super::reconciler::Reconciler;

impl Reconciler {
    /// Reads the addresses from the programs' table, one millisecond in all; nothing where no rule has a name.
    ///
    /// # Errors
    /// The table or the clock cannot be read.
    fn resolved(&self) -> Result<ResolvedNames, GenerationError> {
        let mut resolved = ResolvedNames::default();
        let active = self.dataplane.active();
        let (Some(generation), Some(settings)) = (active.generation(), active.settings()) else {
            return Ok(resolved);
        };
        let names = self.compiler.domain_names().into_iter();
        let names: HashMap<[u32; 3], &DomainName> =
            names.map(|name| (names::hash(&settings, name), name)).collect();
        if names.is_empty() {
            return Ok(resolved);
        }
        let endpoints = self.compiler.endpoints().filter(|endpoint| !endpoint.waiting);
        let pods: HashMap<u32, Key> = endpoints.map(|it| (it.id, it.pod)).collect();
        for found in generation.resolutions(&settings)? {
            if let (Some(pod), Some(name)) = (pods.get(&found.endpoint), names.get(&found.name)) {
                resolved.insert(pod, name, found.address, found.left);
            }
        }
        Ok(resolved)
    }

    /// Removes the addresses of endpoints other than these, where rules have names.
    pub(super) fn sweep_resolved(&self, endpoints: &BTreeSet<u32>) {
        let generation = self.dataplane.active().generation();
        let Some(generation) = generation.filter(|_| !self.compiler.domain_names().is_empty())
        else {
            return;
        };
        if let Err(error) = generation.sweep_resolutions(endpoints) {
            tracing::warn!(%error, "cannot remove the addresses that former pods resolved");
        }
    }

    /// The addresses of [`Reconciler::resolved`]; none if they cannot be read, with a warning.
    pub(super) fn resolved_or_none(&self) -> ResolvedNames {
        self.resolved().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the addresses that pods resolved");
            ResolvedNames::default()
        })
    }
}
