//! What others want to know of a compiler: endpoints, problems, fill, image.

use std::collections::BTreeSet;
use std::fmt;

use netpold_ebpf::layout::MAX_CLASSES;
use serde::Serialize;

use crate::compile::{CompileError, Compiler};
use crate::image::{self, EndpointImage, Fill, Image, Table};
use crate::model::{Direction, Key};

/// An endpoint, for attaching programs and for status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EndpointInfo {
    /// Interface index of the host side.
    pub ifindex: u32,
    /// The pod; without name while it is not known.
    pub pod: Key,
    /// The pod behind the interface is not known: see [`crate::compile::NewPods`].
    pub waiting: bool,
    /// `Endpoint::id`
    pub id: u32,
    /// `Endpoint::uid_hash`
    pub uid_hash: u64,
    /// Element of the endpoint table; `None`: no slot was free, the endpoint has no record.
    pub slot: Option<u32>,
    /// Isolated for ingress.
    pub ingress: bool,
    /// Isolated for egress.
    pub egress: bool,
    /// Its packets must have its own source.
    #[serde(skip)]
    pub checked: bool,
}

/// Something that keeps netpold from doing what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "problem")]
pub enum Problem {
    /// A part of a policy could not be understood; it grants nothing.
    Policy {
        /// The policy.
        policy: Key,
        /// What and why.
        message: String,
    },
    /// What isolates pods together is too much: it is closed.
    Closed {
        /// The policies.
        policies: Vec<Key>,
        /// In this direction.
        direction: Direction,
        /// Why.
        message: String,
    },
    /// A local pod has more than two addresses of a family: where it is isolated it is denied
    /// everything, elsewhere what it sends from any but the first two.
    TooManyAddresses {
        /// The pod.
        pod: Key,
    },
    /// A local pod asks not to have its source checked, where it may not.
    SourceNotExempt {
        /// The pod.
        pod: Key,
    },
    /// No slot is free for the endpoint of an interface: it has no record.
    NoSlot {
        /// The interface.
        ifindex: u32,
        /// The pod behind it.
        pod: Key,
    },
    /// The last update was refused.
    Refused {
        /// Why.
        message: String,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy { policy, message } => write!(f, "policy {policy}: {message}"),
            Self::Closed { policies, direction, message } => {
                let names: Vec<String> = policies.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "policies {}: {direction} of the pods that they select together is closed, nothing \
                     is granted: {message}",
                    names.join(", ")
                )
            }
            Self::TooManyAddresses { pod } => write!(
                f,
                "pod {pod}: more than two addresses of a family; denied everything where isolated, \
                 and sending from any but two where not"
            ),
            Self::SourceNotExempt { pod } => write!(
                f,
                "pod {pod}: annotation netpold.io/check-source: off does not count in this \
                 namespace; have it named in --source-check-exempt, or take the annotation off"
            ),
            Self::NoSlot { ifindex, pod } => {
                write!(f, "pod {pod}, interface {ifindex}: NOT enforced, no endpoint slot is free")
            }
            Self::Refused { message } => write!(f, "update refused: {message}"),
        }
    }
}

impl Compiler {
    /// The numbers of endpoints ([`EndpointInfo::id`]) as of the last update, and those that earlier
    /// endpoints may come back with. Flows of others belong to nobody any more.
    #[must_use]
    pub fn endpoint_numbers(&self) -> BTreeSet<u32> {
        self.endpoints.numbers().collect()
    }

    /// The endpoints as of the last update, by interface index.
    pub fn endpoints(&self) -> impl Iterator<Item = EndpointInfo> {
        self.endpoints.live.iter().map(|(ifindex, live)| EndpointInfo {
            ifindex: *ifindex,
            pod: live.identity.pod.clone(),
            waiting: live.is_waiting(),
            id: live.id,
            uid_hash: live.identity.uid_hash,
            slot: live.record.map(|(slot, _)| slot),
            ingress: live.isolated(Direction::Ingress),
            egress: live.isolated(Direction::Egress),
            checked: live.check_source,
        })
    }

    /// As long as this number stays, so do the [`Compiler::endpoints`].
    #[must_use]
    pub fn endpoints_version(&self) -> u64 {
        self.endpoints_version
    }

    /// What the tables are to say as of the last update.
    #[must_use]
    pub fn image(&self) -> Image {
        let endpoint = |live: &super::endpoints::Live| {
            let allowed = |direction: Direction| {
                live.specs[direction as usize].as_ref().map(|s| image::allowed(s, &self.atoms))
            };
            EndpointImage {
                pod: live.identity.pod.clone(),
                ingress: allowed(Direction::Ingress),
                egress: allowed(Direction::Egress),
            }
        };
        Image {
            addresses: image::addresses(&self.space, &self.classes, &self.atoms),
            endpoints: self.endpoints.live.iter().map(|(i, live)| (*i, endpoint(live))).collect(),
        }
    }

    /// Everything that is not as it was asked for, as of the last update.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems: Vec<Problem> = self
            .failed
            .iter()
            .map(|error| Problem::Refused { message: error.to_string() })
            .collect();
        for (key, policy) in self.cluster.policies() {
            problems.extend(self.cluster.problems_of(policy).map(|message| Problem::Policy {
                policy: key.clone(),
                message: message.to_owned(),
            }));
        }
        problems.extend(self.closed().map(|(policies, direction, message)| Problem::Closed {
            policies: policies.to_vec(),
            direction,
            message,
        }));
        for (ifindex, live) in &self.endpoints.live {
            let pod = live.identity.pod.clone();
            if live.crowded {
                problems.push(Problem::TooManyAddresses { pod: pod.clone() });
            }
            if live.unheard {
                problems.push(Problem::SourceNotExempt { pod: pod.clone() });
            }
            if live.record.is_none() {
                problems.push(Problem::NoSlot { ifindex: *ifindex, pod });
            }
        }
        problems
    }

    /// The policies whose pods are closed in a direction where they select them together, and why.
    pub fn closed(&self) -> impl Iterator<Item = (&[Key], Direction, String)> {
        let closed = self.specs.limits.closed();
        closed.map(|(of, reason)| (of.policies.as_slice(), of.direction, reason))
    }

    /// Used and available elements of every table.
    #[must_use]
    pub fn fill(&self) -> Vec<Fill> {
        let (hosts6, cidrs6) = self.tables.count6();
        let used = |table| match table {
            Table::Classes => self.classes.ids.used(),
            Table::Bitmaps => self.sets.bitmap_ids.used(),
            Table::RowBlocks => self.rows.block_ids.used(),
            Table::Rows => self.rows.ids.used(),
            Table::TrieBlocks => self.tables.trie4.ids.used(),
            Table::Hosts6 => hosts6,
            Table::Cidrs6 => cidrs6,
        };
        TABLES
            .map(|table| Fill { table, used: used(table), capacity: self.capacity(table) })
            .to_vec()
    }

    /// The table that the last update would have overflowed.
    pub(super) fn overflow(&self) -> Option<CompileError> {
        let needed = |table| match table {
            Table::Classes => self.classes.ids.needed(),
            Table::Bitmaps => self.sets.bitmap_ids.needed(),
            Table::RowBlocks => self.rows.block_ids.needed(),
            Table::Rows => self.rows.ids.needed(),
            Table::TrieBlocks => self.tables.trie4.ids.needed(),
            Table::Hosts6 => self.tables.peak6.0,
            Table::Cidrs6 => self.tables.peak6.1,
        };
        TABLES.into_iter().find_map(|table| {
            let (needed, capacity) = (needed(table), self.capacity(table));
            (needed > capacity).then_some(CompileError::Full { table, needed, capacity })
        })
    }

    fn capacity(&self, table: Table) -> u32 {
        let capacity = &self.options.capacity;
        match table {
            Table::Classes => MAX_CLASSES,
            Table::Bitmaps => capacity.bitmaps,
            Table::RowBlocks => capacity.row_blocks,
            Table::Rows => capacity.rows,
            Table::TrieBlocks => capacity.trie_blocks,
            Table::Hosts6 => capacity.hosts6,
            Table::Cidrs6 => capacity.cidrs6,
        }
    }
}

const TABLES: [Table; 7] = [
    Table::Classes,
    Table::Bitmaps,
    Table::RowBlocks,
    Table::Rows,
    Table::TrieBlocks,
    Table::Hosts6,
    Table::Cidrs6,
];
