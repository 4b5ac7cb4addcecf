//! Fragments that bypassed netpold's programs, in front of the node's reassembly.
//!
//! The kernel's conntrack reassembles datagrams before the node routes them (`NF_IP_PRI_CONNTRACK_DEFRAG`). It knows
//! addresses and identification, not interfaces, and the result has the `skb->mark` of its first fragment. So a later
//! fragment that bypassed the program of its veth would get the proof of a first fragment that passed, also of another
//! pod's.
//!
//! Therefore a base chain of nftables in front of reassembly drops fragments without the proof, except from interfaces
//! that may forward such packets ([`netpold_ebpf::layout::Settings::devices`], without the bridges that demand the proof, even
//! while a port of one lacks its program). Each family has a table of its own, so one comparison is enough for a packet that is no fragment.
//! The tables outlive the process, like the programs.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io;

use netpold_ebpf::packet::protocol::{TCP, UDP};
use rtnetlink::packet_core::{NLM_F_APPEND, NLM_F_CREATE};

use super::nftables::expression::{
    MetaField, RegisterComparison, and, compare, counted, counter, has_extension, meta,
    network_header, not_in, verdict,
};
use super::nftables::{
    self, ACCEPT, DELETE_ELEMENT, DELETE_TABLE, DROP, FIRST, GET_CHAIN, GET_ELEMENT, GET_RULE,
    GET_TABLE, IPV4, IPV6, NEW_CHAIN, NEW_ELEMENT, NEW_RULE, NEW_SET, NEW_TABLE, NFTA_CHAIN_HANDLE,
    NFTA_CHAIN_HOOK, NFTA_CHAIN_NAME, NFTA_CHAIN_POLICY, NFTA_CHAIN_TABLE, NFTA_CHAIN_TYPE,
    NFTA_DATA_VALUE, NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY, NFTA_LIST_ELEM, NFTA_TABLE_FLAGS,
    NFTA_TABLE_HANDLE, NFTA_TABLE_NAME, name,
};
use crate::netlink::{NLA_F_NESTED, NetfilterChange, attribute, attributes, word};

/// Name of the tables.
const TABLE: &CStr = c"netpold-fragments";
const CHAIN: &CStr = c"prerouting";
/// Set of the interfaces that may forward packets without the proof.
const SET: &CStr = c"node-devices";
const FAMILIES: [u8; 2] = [IPV4, IPV6];

/// `NF_INET_PRE_ROUTING`
const PREROUTING: u32 = 0;
/// `NEXTHDR_FRAGMENT`
const FRAGMENT_HEADER: u8 = 44;
/// The type of interface indexes in `nft`, which shows them by name.
const INTERFACES: u32 = 20;
/// Maximum number of elements in one message: an attribute has at most 64 KiB.
const ELEMENTS: usize = 1000;

const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_HANDLE: u16 = 3;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_SET_TABLE: u16 = 1;
const NFTA_SET_NAME: u16 = 2;
const NFTA_SET_FLAGS: u16 = 3;
const NFTA_SET_KEY_TYPE: u16 = 4;
const NFTA_SET_KEY_LEN: u16 = 5;
const NFTA_SET_ID: u16 = 10;
const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
const NFTA_SET_ELEM_LIST_SET: u16 = 2;
const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
const NFTA_SET_ELEM_KEY: u16 = 1;

/// The tables of this network namespace.
#[derive(Debug)]
pub(super) struct FragmentFilter {
    /// Bit of `skb->mark` that proves a judgement.
    proof: u32,
    tables: FragmentTables,
    /// Packets dropped by rules of this process that are gone.
    dropped_before: u64,
    /// Packets dropped by the present rules, when last read.
    dropped: u64,
    /// The last failure, which is reported once.
    failure: Option<String>,
}

/// The tables in the kernel.
#[derive(Debug)]
enum FragmentTables {
    /// Those of an earlier process, if any, or changed ones.
    Unknown,
    Absent,
    /// Written by this process: the interfaces, and the identity of the tables of each family.
    Present(BTreeSet<u32>, [TableIdentity; 2]),
}

/// Numbers that the kernel gave to a table, its chain and its rules, with their changeable attributes. A rule cannot be
/// changed, only replaced by one with another number.
type TableIdentity = Vec<Vec<u8>>;

/// A table as read from the kernel.
#[derive(Debug)]
struct FoundTable {
    identity: TableIdentity,
    interfaces: BTreeSet<u32>,
    dropped: u64,
}

impl FragmentFilter {
    /// A filter for a bit of `skb->mark`. Tables of an earlier process stay in force.
    pub(super) fn new(proof: u32) -> Self {
        Self {
            proof,
            tables: FragmentTables::Unknown,
            dropped_before: 0,
            dropped: 0,
            failure: None,
        }
    }

    /// Number of fragments that the rules of this process have dropped, when last read.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped_before + self.dropped
    }

    /// Drops fragments without the proof from all interfaces except these, or from none if `interfaces` is `None`. A
    /// failure is logged; [`Self::reconcile`] tries again.
    pub(super) fn apply(&mut self, interfaces: Option<&BTreeSet<u32>>) {
        if self.failure.is_none() {
            self.write(interfaces);
        }
    }

    /// Reason for which the rules are not in force.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn write(&mut self, interfaces: Option<&BTreeSet<u32>>) {
        let done = match (interfaces, &self.tables) {
            (None, FragmentTables::Absent) => return,
            (None, _) => remove_all().map(|()| FragmentTables::Absent),
            (Some(wanted), FragmentTables::Present(present, _)) if wanted == present => return,
            (Some(wanted), FragmentTables::Present(present, identity)) => {
                let identity = identity.clone();
                match nftables::change(&difference(present, wanted)) {
                    Ok(()) => Ok(FragmentTables::Present(wanted.clone(), identity)),
                    // Another process has changed the set.
                    Err(_) => self.replace(wanted),
                }
            }
            (Some(wanted), _) => self.replace(wanted),
        };
        match done {
            Ok(tables) => {
                self.tables = tables;
                self.failure = None;
            }
            Err(error) => {
                self.tables = FragmentTables::Unknown;
                let reason = error.to_string();
                if self.failure.as_ref() != Some(&reason) {
                    tracing::warn!(
                        reason,
                        "fragments that bypass a pod's program are not detected before the node reassembles them: \
                         no nftables rule for them; will retry"
                    );
                }
                self.failure = Some(reason);
            }
        }
    }

    /// Compares the tables with those that this process wrote, and writes them again if they differ. Returns whether
    /// it has.
    pub(super) fn reconcile(&mut self, interfaces: &BTreeSet<u32>) -> bool {
        let is_changed = match self.read() {
            Some(Ok(is_same)) => !is_same,
            Some(Err(error)) => error.kind() == io::ErrorKind::NotFound,
            None => false,
        };
        if is_changed {
            self.tables = FragmentTables::Unknown;
        }
        self.write(Some(interfaces));
        is_changed && self.failure.is_none()
    }

    /// Reads the tables and their counters. Returns whether the tables are those that this process wrote; `None` if it
    /// wrote none.
    fn read(&mut self) -> Option<io::Result<bool>> {
        let FragmentTables::Present(interfaces, identities) = &self.tables else { return None };
        let (mut is_same, mut dropped) = (true, 0);
        for (family, identity) in FAMILIES.into_iter().zip(identities) {
            match find(family) {
                Ok(found) => {
                    is_same &= found.identity == *identity && found.interfaces == *interfaces;
                    dropped += found.dropped;
                }
                Err(error) => return Some(Err(error)),
            }
        }
        // A rule that is no longer the same one counts from zero.
        self.dropped = self.dropped.max(dropped);
        Some(Ok(is_same))
    }

    /// Replaces the tables in one transaction.
    fn replace(&mut self, interfaces: &BTreeSet<u32>) -> io::Result<FragmentTables> {
        let _ = self.read();
        let changes: Vec<_> = FAMILIES
            .into_iter()
            .flat_map(|family| creation(family, self.proof, interfaces))
            .collect();
        nftables::change(&changes)?;
        self.dropped_before += std::mem::take(&mut self.dropped);
        let identities = [find(IPV4)?.identity, find(IPV6)?.identity];
        Ok(FragmentTables::Present(interfaces.clone(), identities))
    }
}

/// Removes the tables of this network namespace.
///
/// # Errors
/// The kernel refuses.
pub fn remove_all() -> io::Result<()> {
    FAMILIES.into_iter().try_for_each(|family| nftables::remove_table(family, TABLE))
}

/// Creates a family's table in place of a former one.
fn creation(family: u8, proof: u32, interfaces: &BTreeSet<u32>) -> Vec<NetfilterChange> {
    let table = || name(NFTA_TABLE_NAME, TABLE);
    let place = [
        attribute(NFTA_HOOK_HOOKNUM, &PREROUTING.to_be_bytes()),
        attribute(NFTA_HOOK_PRIORITY, &FIRST.to_be_bytes()),
    ];
    let chain = [
        name(NFTA_CHAIN_TABLE, TABLE),
        name(NFTA_CHAIN_NAME, CHAIN),
        attribute(NFTA_CHAIN_HOOK | NLA_F_NESTED, &place.concat()),
        attribute(NFTA_CHAIN_POLICY, &ACCEPT.to_be_bytes()),
        name(NFTA_CHAIN_TYPE, c"filter"),
    ];
    let set = [
        name(NFTA_SET_TABLE, TABLE),
        name(NFTA_SET_NAME, SET),
        attribute(NFTA_SET_FLAGS, &0_u32.to_be_bytes()),
        attribute(NFTA_SET_KEY_TYPE, &INTERFACES.to_be_bytes()),
        attribute(NFTA_SET_KEY_LEN, &4_u32.to_be_bytes()),
        attribute(NFTA_SET_ID, &1_u32.to_be_bytes()),
    ];
    let rule = [
        name(NFTA_RULE_TABLE, TABLE),
        name(NFTA_RULE_CHAIN, CHAIN),
        attribute(NFTA_RULE_EXPRESSIONS | NLA_F_NESTED, &rule(family, proof)),
    ];
    let mut changes = vec![
        // A table that does not exist cannot be deleted.
        (NEW_TABLE, NLM_F_CREATE, family, table()),
        (DELETE_TABLE, 0, family, table()),
        (NEW_TABLE, NLM_F_CREATE, family, table()),
        (NEW_CHAIN, NLM_F_CREATE, family, chain.concat()),
        (NEW_SET, NLM_F_CREATE, family, set.concat()),
    ];
    changes.extend(elements(NEW_ELEMENT, family, interfaces.iter().copied()));
    changes.push((NEW_RULE, NLM_F_CREATE | NLM_F_APPEND, family, rule.concat()));
    changes
}

/// Expressions of the rule. Most packets are no fragments, so that comparison comes first.
fn rule(family: u8, proof: u32) -> Vec<u8> {
    let is_fragment = if family == IPV4 {
        // Identification, then "more fragments" and the offset.
        let fields = [network_header(4, 4), and([0, 0, 0x3f, 0xff])];
        [fields.concat(), compare(RegisterComparison::NotEqual, &[0; 4])].concat()
    } else {
        // The search takes longer than a comparison of the first next header.
        let next = [TCP, UDP].map(|next| compare(RegisterComparison::NotEqual, &[next]));
        let header = [has_extension(FRAGMENT_HEADER), compare(RegisterComparison::Equal, &[1])];
        [network_header(6, 1), next.concat(), header.concat()].concat()
    };
    let is_unproven = [
        meta(MetaField::Mark),
        and(proof.to_ne_bytes()),
        compare(RegisterComparison::Equal, &[0; 4]),
    ]
    .concat();
    let is_listed = [meta(MetaField::IncomingInterface), not_in(SET)].concat();
    [is_fragment, is_unproven, is_listed, counter(), verdict(DROP)].concat()
}

/// Makes the sets of both families contain other interfaces.
fn difference(present: &BTreeSet<u32>, wanted: &BTreeSet<u32>) -> Vec<NetfilterChange> {
    let of_family = |family| {
        let gone = elements(DELETE_ELEMENT, family, present.difference(wanted).copied());
        let new = elements(NEW_ELEMENT, family, wanted.difference(present).copied());
        gone.into_iter().chain(new)
    };
    FAMILIES.into_iter().flat_map(of_family).collect()
}

/// Adds elements to a family's set, or removes them.
fn elements(change: u8, family: u8, interfaces: impl Iterator<Item = u32>) -> Vec<NetfilterChange> {
    let element = |ifindex: u32| {
        let key = attribute(NFTA_DATA_VALUE, &ifindex.to_ne_bytes());
        let key = attribute(NFTA_SET_ELEM_KEY | NLA_F_NESTED, &key);
        attribute(NFTA_LIST_ELEM | NLA_F_NESTED, &key)
    };
    let all: Vec<Vec<u8>> = interfaces.map(element).collect();
    let flags = if change == NEW_ELEMENT { NLM_F_CREATE } else { 0 };
    let message = |part: &[Vec<u8>]| {
        let list = attribute(NFTA_SET_ELEM_LIST_ELEMENTS | NLA_F_NESTED, &part.concat());
        (change, flags, family, [set_name(), list].concat())
    };
    all.chunks(ELEMENTS).map(message).collect()
}

fn set_name() -> Vec<u8> {
    [name(NFTA_SET_ELEM_LIST_TABLE, TABLE), name(NFTA_SET_ELEM_LIST_SET, SET)].concat()
}

/// Reads a family's table.
fn find(family: u8) -> io::Result<FoundTable> {
    let values = |request, of: &[u8], wanted: [u16; 2]| -> io::Result<Vec<Vec<u8>>> {
        let found = nftables::get(request, family, of)?;
        let found = found.into_iter().filter(|(kind, _)| wanted.contains(kind));
        Ok(found.map(|(_, value)| value).collect())
    };
    let mut identity =
        values(GET_TABLE, &name(NFTA_TABLE_NAME, TABLE), [NFTA_TABLE_FLAGS, NFTA_TABLE_HANDLE])?;
    let chain = [name(NFTA_CHAIN_TABLE, TABLE), name(NFTA_CHAIN_NAME, CHAIN)].concat();
    identity.extend(values(GET_CHAIN, &chain, [NFTA_CHAIN_HANDLE, NFTA_CHAIN_POLICY])?);
    let mut dropped = 0;
    let rules = [name(NFTA_RULE_TABLE, TABLE), name(NFTA_RULE_CHAIN, CHAIN)].concat();
    nftables::list(GET_RULE, family, &rules, |rule| {
        for (kind, value) in attributes(rule) {
            match kind {
                NFTA_RULE_HANDLE => identity.push(value.to_vec()),
                NFTA_RULE_EXPRESSIONS => dropped += counted(value),
                _ => {}
            }
        }
    })?;
    let mut interfaces = BTreeSet::new();
    nftables::list(GET_ELEMENT, family, &set_name(), |list| {
        let inner = |bytes, wanted| {
            attributes(bytes).filter(move |(kind, _)| *kind == wanted).map(|(_, value)| value)
        };
        let keys = inner(list, NFTA_SET_ELEM_LIST_ELEMENTS)
            .flat_map(|elements| inner(elements, NFTA_LIST_ELEM))
            .flat_map(|element| inner(element, NFTA_SET_ELEM_KEY))
            .flat_map(|key| inner(key, NFTA_DATA_VALUE));
        interfaces.extend(keys.filter_map(word));
    })?;
    Ok(FoundTable { identity, interfaces, dropped })
}

#[cfg(test)]
mod tests;
