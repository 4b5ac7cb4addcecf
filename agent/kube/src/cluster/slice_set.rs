//! The slices that an agent has received, and the names that they have.

use std::collections::{BTreeMap, BTreeSet};

use netpold_api::peer_slice::{HEARTBEAT, INDEX, PeerHeartbeat, PeerSlice, PeerVocabulary};
use netpold_api::source::KindStatus;
use netpold_core::model::Pod;
use netpold_slices::{SliceNumber, Vocabulary, decode, slice_name, slice_number};

use super::slice_follower::SliceEvent;

/// Maximum number of slices: more than a million pods.
const MAX_SLICES: usize = 100_000;

/// Change by an event of slices.
#[derive(Debug)]
pub(super) enum SliceChange {
    /// Pods of a slice, with its `resourceVersion`; no pods: the slice was deleted.
    Pods(SliceNumber, u64, Vec<Pod>),
    /// There are no slices other than these.
    Only(BTreeSet<SliceNumber>),
    /// The names in slices; `is_listed`: names may have been removed while no watch was running.
    Names { is_listed: bool },
    /// The controller's heartbeat, from a list or from an event.
    Heartbeat { heartbeat: PeerHeartbeat, is_listed: bool },
}

/// Slices, as received last.
#[derive(Debug)]
pub(super) struct SliceSet {
    status: KindStatus,
    /// Names in the slices, according to the index; unknown without one.
    names: Option<Vocabulary>,
    /// Names that slices get at present or next, according to the index.
    coming: Vocabulary,
    /// Namespaces with names that wait because other names of the namespace use its share, according to the index.
    crowded: BTreeSet<String>,
    /// Whether there is an index.
    has_index: bool,
    /// Slices that cannot be decoded, with the reason.
    broken: BTreeMap<String, String>,
    /// Names of all slices.
    known: BTreeSet<String>,
    is_listed: bool,
}

impl SliceSet {
    pub(super) fn new() -> Self {
        Self {
            status: slice_status(),
            names: None,
            coming: Vocabulary::default(),
            crowded: BTreeSet::new(),
            has_index: false,
            broken: BTreeMap::new(),
            known: BTreeSet::new(),
            is_listed: false,
        }
    }

    /// Returns the names in the slices; `None`: unknown.
    pub(super) const fn names(&self) -> Option<&Vocabulary> {
        self.names.as_ref()
    }

    /// Returns the names that slices get at present or next.
    pub(super) const fn coming(&self) -> &Vocabulary {
        &self.coming
    }

    /// Whether names of a namespace's policies wait because other names of the namespace use its share.
    pub(super) fn is_crowded(&self, namespace: &str) -> bool {
        self.crowded.contains(namespace)
    }

    /// Whether all slices and their names are known.
    pub(super) fn is_complete(&self) -> bool {
        self.is_listed && self.has_index && self.broken.is_empty()
    }

    /// Returns the state of following slices.
    pub(super) fn status(&self) -> KindStatus {
        let (objects, undecoded) = (self.known.len(), self.broken.len());
        KindStatus { objects, undecoded, ..self.status.clone() }
    }

    /// Returns the slices that cannot be decoded, as problems.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        self.broken.iter().map(|(name, error)| {
            format!("PeerSlice {name}: {error}; its last state stays until all pods are followed")
        })
    }

    /// Takes in an event; returns the changes.
    pub(super) fn apply_event(&mut self, event: SliceEvent) -> Vec<SliceChange> {
        if let SliceEvent::Failed { text, is_unreachable } = event {
            self.status.error = Some(format!("cannot follow peer slices: {text}"));
            self.status.restarts += 1;
            self.status.unreachable = is_unreachable;
            return Vec::new();
        }
        (self.status.error, self.status.unreachable, self.status.served) = (None, false, true);
        match event {
            SliceEvent::Set(slice) => self.apply_slice(*slice, false).into_iter().collect(),
            SliceEvent::Gone(name) => {
                self.broken.remove(&name);
                self.known.remove(&name);
                self.has_index &= name != INDEX;
                let gone = slice_number(&name).map(|it| SliceChange::Pods(it, 0, Vec::new()));
                gone.into_iter().collect()
            }
            SliceEvent::Listed(slices) => self.apply_list(slices),
            SliceEvent::Failed { .. } => Vec::new(),
        }
    }

    fn apply_list(&mut self, slices: Vec<PeerSlice>) -> Vec<SliceChange> {
        self.status.lists += 1;
        (self.is_listed, self.status.in_sync) = (true, true);
        let names = slices.iter().filter_map(|slice| slice.metadata.name.clone());
        self.known = names.take(MAX_SLICES).collect();
        self.broken.retain(|name, _| self.known.contains(name));
        self.has_index = self.known.contains(INDEX);
        let numbers = self.known.iter().filter_map(|name| slice_number(name));
        let numbers = numbers.filter(|number| self.known.contains(&slice_name(*number)));
        let mut changes = vec![SliceChange::Only(numbers.collect())];
        changes.extend(slices.into_iter().filter_map(|slice| self.apply_slice(slice, true)));
        changes
    }

    /// Takes in a slice, of a list or of a watch.
    fn apply_slice(&mut self, slice: PeerSlice, is_listed: bool) -> Option<SliceChange> {
        let name = slice.metadata.name.unwrap_or_default();
        if name == INDEX {
            self.apply_index(slice.spec.vocabulary.unwrap_or_default());
            return Some(SliceChange::Names { is_listed });
        }
        if name == HEARTBEAT {
            let heartbeat = slice.spec.heartbeat.unwrap_or_default();
            return Some(SliceChange::Heartbeat { heartbeat, is_listed });
        }
        let has_room = self.known.contains(&name) || self.known.len() < MAX_SLICES;
        let pods = match slice_number(&name).filter(|_| has_room) {
            Some(number) => {
                decode(&slice.spec).map(|pods| (number, pods)).map_err(|error| error.to_string())
            }
            None => Err("no name of the controller's slices".to_owned()),
        };
        match pods {
            Ok((number, pods)) => {
                self.broken.remove(&name);
                self.known.insert(name);
                let version = slice.metadata.resource_version.and_then(|text| text.parse().ok());
                Some(SliceChange::Pods(number, version.unwrap_or_default(), pods))
            }
            // Its last state stays, until all pods are followed.
            Err(error) => {
                if self.broken.len() < MAX_SLICES {
                    self.broken.insert(name, error);
                }
                None
            }
        }
    }

    fn apply_index(&mut self, vocabulary: PeerVocabulary) {
        self.names = Some(Vocabulary::from(&vocabulary));
        self.coming = Vocabulary {
            label_keys: vocabulary.coming_label_keys,
            port_names: vocabulary.coming_port_names,
        };
        self.crowded = vocabulary.crowded_namespaces;
        self.has_index = true;
    }
}

/// Returns the status of slices before any answer.
pub(super) fn slice_status() -> KindStatus {
    KindStatus { kind: "peerslices.netpold.io".into(), ..KindStatus::default() }
}
