//! Domain names over tables in memory: the pods' hooks as the programs compose them, and DNS messages.

use std::borrow::Borrow;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::Ordering;

use netpold_core::model::Direction;
use netpold_ebpf::direction::{self, Egress, Ingress};
use netpold_ebpf::endpoint::EndpointRef;
use netpold_ebpf::judge::evaluator::{JudgingRows, PacketEvaluator, Visitor};
use netpold_ebpf::judge::hook::PacketHook;
use netpold_ebpf::judge::proof::UNKNOWN_INTERFACE;
use netpold_ebpf::layout::{DoubtPlace, NAME_GROUPS, NAME_MATCHES, NameKey, resolves};
use netpold_ebpf::names::choice;
use netpold_ebpf::names::conversation::{self, ADDRESS, Datagram, END, RECORDS, parse_datagram};
use netpold_ebpf::names::ignored::IgnoredAnswer;
use netpold_ebpf::names::name::{self, Points};
use netpold_ebpf::names::segment::parse_segment;
use netpold_ebpf::names::steps::{self, Steps};
use netpold_ebpf::names::tables::{NameTable, NameTables};
use netpold_ebpf::names::work::Work;
use netpold_ebpf::names::{doubt, store, stream};
use netpold_ebpf::packet::parsed::ParsedPacket;
use netpold_ebpf::reason::Reason;
use netpold_ebpf::tables::{TableFamily, Tables, find_endpoint};
use netpold_ebpf::verdict::PacketVerdict;

use crate::flows::{MemoryFlowTables, first_word};
use crate::memory::MemoryTables;
use crate::node::NodeTables;

impl<P: Borrow<MemoryTables>, F: Borrow<MemoryFlowTables>> NameTables for NodeTables<P, F> {
    fn work(&self) -> Option<Work> {
        // SAFETY: tests use the tables in one thread, and the memory lives as long as these.
        Some(unsafe { Work::new(self.flows.borrow().name_work()) })
    }

    fn jiffies(&self) -> u64 {
        self.flows.borrow().now.load(Ordering::Acquire).into()
    }

    fn resolver(&self, address: &[u64; 2]) -> u32 {
        let [first, second] = address.map(u64::to_ne_bytes);
        let mut octets = [0; 16];
        octets[..8].copy_from_slice(&first);
        octets[8..].copy_from_slice(&second);
        let address = Ipv6Addr::from(octets).to_canonical();
        self.policy.borrow().resolvers.get(&address).map_or(0, |over_tcp| resolves(*over_tcp))
    }

    fn groups(&self, key: &NameKey) -> u32 {
        let NameKey { list, hash } = *key;
        let points = Points::of(&self.flows.borrow().settings);
        let names = self.policy.borrow().names.iter();
        let of_list = names.filter(|((of, _), _)| *of == list);
        let mut hashed = of_list.map(|((_, name), groups)| {
            let canonical = name.canonical();
            let hash = match name.is_wildcard() {
                true => points.hash_below(&canonical),
                false => points.hash(&canonical),
            };
            (hash, *groups)
        });
        hashed.find(|(known, _)| *known == hash).map_or(0, |(_, groups)| groups)
    }

    fn name_bucket(&self, store: NameTable, index: u32) -> Option<*mut u64> {
        self.flows.borrow().name_bucket(store, index)
    }

    fn stream_bucket(&self, index: u32) -> Option<*mut u64> {
        self.flows.borrow().stream_bucket(index).map(first_word)
    }

    fn stream_bytes(&self, slot: u32) -> Option<*mut u64> {
        self.flows.borrow().stream_bytes(slot)
    }

    fn doubts(&self, place: DoubtPlace) -> Option<*mut u64> {
        self.flows.borrow().doubts(place)
    }

    fn names_of(&self, row: u32) -> u32 {
        self.policy.borrow().rows[row].names.list
    }

    fn row_of(&self, row: u32, group: u32) -> u32 {
        self.policy.borrow().rows[row].names.rows[group as usize]
    }

    fn count_ignored(&self, reason: IgnoredAnswer) {
        self.flows.borrow().count_ignored(reason);
    }

    fn read_name(&self, work: Work, at: u32) -> u32 {
        name::read_name(self, work, at)
    }

    fn read_some(&self, work: Work) -> u32 {
        name::read_some(work)
    }

    fn hash_some(&self, work: Work, list: u32) -> bool {
        name::hash_some(self, work, list)
    }

    fn find(&self, work: Work, store: NameTable) -> u32 {
        store::find(self, work, store)
    }

    fn survey(&self, work: Work, store: NameTable) {
        store::survey(self, work, store);
    }

    fn rank_way(&self, work: Work, store: NameTable, index: u32) {
        store::rank_way(self, work, store, index);
    }

    fn record_doubt(&self, asker: u64) {
        doubt::record_doubt(self, asker);
    }
}

impl<P: Borrow<MemoryTables>, F: Borrow<MemoryFlowTables>> NodeTables<P, F> {
    /// Judges a frame at a pod's hook, with the rows of domain names, and records DNS questions and answers as the hook
    /// does. Returns the reason, and whether the packet passes: an allowed TCP segment that cannot be read is dropped,
    /// and TCP sends it again.
    pub fn judge_by_names(
        &self,
        direction: Direction,
        hook: PacketHook,
        frame: &[u8],
    ) -> (Reason, bool) {
        match direction {
            Direction::Ingress => self.hook::<Ingress>(hook, frame),
            Direction::Egress => self.hook::<Egress>(hook, frame),
        }
    }

    fn hook<D: direction::PodDirection>(&self, hook: PacketHook, frame: &[u8]) -> (Reason, bool) {
        let Some(endpoint) = find_endpoint(self, hook.ifindex) else {
            return (Reason::NotEndpoint, true);
        };
        let judging = JudgingRows::in_force(self, endpoint);
        let verdict = match PacketEvaluator::<D, _>::by_rows(self, endpoint, hook, judging) {
            Ok(judge) => judge.parse(&frame, &ByNames { tables: self, hook, judging }),
            Err(verdict) => verdict,
        };
        let reason = verdict.reason();
        let passes = verdict.passes();
        if !judging.rows.has_names() {
            return (reason, passes);
        }
        let is_of_node = !D::EGRESS && [0, UNKNOWN_INTERFACE].contains(&hook.ingress_ifindex);
        if (!passes || is_of_node)
            && parse_datagram::<D, _>(&frame).is_none()
            && let Some(work) = self.work()
        {
            steps::end_unread::<D, _>(&HostSteps { tables: self, work, endpoint, frame });
            return (reason, passes);
        }
        (reason, passes && self.read_names::<D>(hook.ifindex, frame, reason))
    }

    /// Reads a DNS message, or a segment with DNS messages, as the programs do; returns whether the packet passes.
    fn read_names<D: direction::PodDirection>(
        &self,
        ifindex: u32,
        frame: &[u8],
        reason: Reason,
    ) -> bool {
        let Some((work, endpoint)) = self.work().zip(find_endpoint(self, ifindex)) else {
            return true;
        };
        let Some(Datagram { offset, length, resolver, port, flaw }) =
            parse_datagram::<D, _>(&frame)
        else {
            let steps = HostSteps { tables: self, work, endpoint, frame };
            if D::EGRESS {
                return steps::read_questions(&steps, steps::may_be_translated(reason as u32));
            }
            return steps::read_answers(&steps);
        };
        if let Some(flaw) = flaw {
            if !D::EGRESS {
                work.begin(length, resolver, endpoint.id(), port);
                conversation::count_flaw(self, work, flaw);
            }
            return true;
        }
        let message = &frame[offset as usize..][..length as usize];
        // SAFETY: the memory is as long as the longest message, and no other code uses it now.
        unsafe {
            (&mut (*self.flows.borrow().name_work()).message)[..message.len()]
                .copy_from_slice(message);
        }
        work.begin(length, resolver, endpoint.id(), port);
        if D::EGRESS {
            conversation::record_question(self, work);
        } else if conversation::check_answer(self, work, self.names_of(endpoint.rows().egress())) {
            for _ in 0..RECORDS {
                match conversation::next_record(self, work) {
                    END => break,
                    ADDRESS => {
                        let _ = (0..NAME_MATCHES as u32)
                            .find(|index| !conversation::learn_address(self, work, *index));
                    }
                    _ => {}
                }
            }
        }
        true
    }
}

/// Steps of reading a TCP segment.
struct HostSteps<'a, N> {
    tables: &'a N,
    work: Work,
    endpoint: EndpointRef,
    frame: &'a [u8],
}

impl<N: NameTables> Steps for HostSteps<'_, N> {
    fn parse_segment<D: direction::PodDirection>(&self) -> bool {
        parse_segment::<D, _>(&self.frame, self.work, self.endpoint)
    }

    fn admit_answers(&self) -> u32 {
        stream::admit_answers(self.tables, self.work)
    }

    fn end_reading(&self) {
        stream::end_reading(self.tables, self.work);
    }

    fn is_resolver(&self) -> bool {
        stream::is_resolver(self.tables, self.work)
    }

    fn next_message(&self) -> u32 {
        stream::next_message(&self.frame, self.work)
    }

    fn check_answer(&self) -> bool {
        let list = self.tables.names_of(self.endpoint.rows().egress());
        conversation::check_answer(self.tables, self.work, list)
    }

    fn next_record(&self) -> u32 {
        conversation::next_record(self.tables, self.work)
    }

    fn learn_address(&self, index: u32) -> bool {
        conversation::learn_address(self.tables, self.work, index)
    }

    fn copy_some(&self, keeps: bool) -> bool {
        stream::copy_some(self.tables, self.work, keeps)
    }

    fn is_incomplete(&self) -> bool {
        stream::is_incomplete(self.work)
    }

    fn release(&self) {
        stream::release(self.tables, self.work);
    }

    fn admit_questions(&self, may_be_translated: bool) -> u32 {
        stream::admit_questions(self.tables, self.work, may_be_translated)
    }

    fn next_question(&self) -> u32 {
        stream::next_question(&self.frame, self.work)
    }

    fn record_question(&self) {
        conversation::record_question(self.tables, self.work);
    }
}

/// Judges a packet by its endpoint's rows, then by those of groups with a name.
struct ByNames<'a, N> {
    tables: &'a N,
    hook: PacketHook,
    judging: JudgingRows,
}

impl<N: NameTables> Visitor for ByNames<'_, N> {
    type Output = PacketVerdict;

    fn visit<F: TableFamily, D: direction::PodDirection, T: Tables>(
        &self,
        judge: &PacketEvaluator<'_, D, T>,
        reading: &ParsedPacket<F>,
    ) -> PacketVerdict {
        let verdict = judge.judge(reading);
        let JudgingRows { revision, rows } = self.judging;
        if verdict.reason() != Reason::Policy || !rows.has_names() {
            return verdict;
        }
        let Some(endpoint) = find_endpoint(self.tables, self.hook.ifindex) else { return verdict };
        let list = self.tables.names_of(rows.egress());
        let query_for =
            |allowed| choice::query::<F, D, _>(self.tables, endpoint, list, reading, allowed);
        let groups_of = |query| match self.tables.work() {
            Some(work) if query != 0 => choice::groups(self.tables, work, query),
            _ => 0,
        };
        let query = query_for(0);
        let groups = groups_of(query);
        let chosen = (0..NAME_GROUPS as u32).filter(|group| groups >> group & 1 != 0);
        let mut verdicts = chosen.filter_map(|group| {
            let rows = rows.with_egress(self.tables.row_of(rows.egress(), group));
            let judging = JudgingRows { revision, rows };
            let judge = PacketEvaluator::<D, _>::by_rows(self.tables, endpoint, self.hook, judging);
            Some((group, judge.ok()?.judge(reading)))
        });
        let Some((group, found)) = verdicts.find(|(_, it)| it.reason() != Reason::Policy) else {
            return verdict;
        };
        if !D::EGRESS || !found.passes() {
            return found;
        }
        if query & choice::GOES_ON != 0 {
            groups_of(query_for(1 << group));
        }
        if found.reason() == Reason::Translated { Ok(Reason::Allowed).into() } else { found }
    }
}

/// A record of an answer.
#[derive(Clone, Debug)]
pub struct Record {
    /// Name of the owner, as on the wire.
    pub owner: Vec<u8>,
    /// Type.
    pub kind: u16,
    /// Seconds to live.
    pub ttl: u32,
    /// Data.
    pub data: Vec<u8>,
}

impl Record {
    /// An A or AAAA record.
    #[must_use]
    pub fn address(owner: Vec<u8>, address: IpAddr, ttl: u32) -> Self {
        let (kind, data) = match address {
            IpAddr::V4(address) => (1, address.octets().to_vec()),
            IpAddr::V6(address) => (28, address.octets().to_vec()),
        };
        Self { owner, kind, ttl, data }
    }

    /// A CNAME record.
    #[must_use]
    pub fn alias(owner: Vec<u8>, target: Vec<u8>) -> Self {
        Self { owner, kind: 5, ttl: 300, data: target }
    }
}

/// A name on the wire, uncompressed.
#[must_use]
pub fn wire(name: &str) -> Vec<u8> {
    let labels = name.split('.').filter(|label| !label.is_empty());
    let label = |label: &str| [&[label.len() as u8], label.as_bytes()].concat();
    labels.flat_map(label).chain([0]).collect()
}

/// A query for addresses of a name on the wire.
#[must_use]
pub fn query(id: u16, name: &[u8]) -> Vec<u8> {
    message(id, 0x0100, name, &[])
}

/// An answer to a [`query`].
#[must_use]
pub fn answer(id: u16, name: &[u8], records: &[Record]) -> Vec<u8> {
    message(id, 0x8180, name, records)
}

/// A DNS message with one question.
#[must_use]
pub fn message(id: u16, flags: u16, name: &[u8], records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [id, flags, 1, records.len() as u16, 0, 0] {
        bytes.extend(word.to_be_bytes());
    }
    bytes.extend(name);
    bytes.extend([0, 1, 0, 1]);
    for Record { owner, kind, ttl, data } in records {
        bytes.extend(owner);
        bytes.extend(kind.to_be_bytes());
        bytes.extend([0, 1]);
        bytes.extend(ttl.to_be_bytes());
        bytes.extend((data.len() as u16).to_be_bytes());
        bytes.extend(data);
    }
    bytes
}
