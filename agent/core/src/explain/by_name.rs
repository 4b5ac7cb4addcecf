//! Connections to the addresses that a pod resolved a domain name to, judged without the answer of a resolver.
//!
//! A name may resolve to any address. The address space is split along the blocks that the pod's policies name, and each
//! part is judged at an address that no object has: rules for pods, nodes and Services do not matter there.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::explain::answer::{Detail, Judgement, Verdict};
use crate::explain::blocks::Blocks;
use crate::explain::literal::Literal;
use crate::explain::rule::ResolvableNames;
use crate::explain::unaddressed::named;
use crate::first_names::first_names;
use crate::model::{Direction, DomainName, Key, Pod};
use crate::probe::IpProtocol;

/// Maximum number of parts that are judged.
const PARTS: usize = 4_096;
/// Maximum number of blocks of each verdict in a text.
const SHOWN: usize = 3;

/// Addresses to which a name is assumed to resolve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvedWithin {
    /// Blocks of these addresses; empty: every address.
    pub blocks: Vec<IpNet>,
    /// Blocks excluded from these addresses.
    pub except: Vec<IpNet>,
}

impl ResolvedWithin {
    /// Addresses of the internet: without private, shared, link-local and reserved ones.
    #[must_use]
    pub fn public() -> Self {
        let read = |blocks: &[&str]| blocks.iter().filter_map(|block| block.parse().ok()).collect();
        Self {
            blocks: read(&["0.0.0.0/0", "2000::/3"]),
            except: read(&[
                "0.0.0.0/8",
                "10.0.0.0/8",
                "100.64.0.0/10",
                "127.0.0.0/8",
                "169.254.0.0/16",
                "172.16.0.0/12",
                "192.168.0.0/16",
                "224.0.0.0/3",
            ]),
        }
    }

    fn contains(&self, block: &IpNet) -> bool {
        let within = |blocks: &[IpNet]| blocks.iter().any(|outer| outer.contains(block));
        (self.blocks.is_empty() || within(&self.blocks)) && !within(&self.except)
    }
}

/// Answer for the addresses of a domain name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameAnswer {
    /// [`Verdict::Unknown`] if the verdict depends on the address.
    pub verdict: Verdict,
    /// Blocks with their verdicts, shorter ones first; a block within another only if its verdict differs. The longest
    /// block that contains an address decides.
    pub parts: Vec<NamePart>,
}

/// Part of the address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePart {
    /// Block of the part.
    pub block: IpNet,
    /// An address of the block, outside of longer blocks.
    pub address: IpAddr,
    /// Whether the connection is allowed.
    pub is_allowed: bool,
}

impl NameAnswer {
    /// Builds the answer from all parts; `None` without any.
    fn new(parts: &[NamePart]) -> Option<Self> {
        let differs = |part: &&NamePart| {
            let is_outer =
                |it: &&NamePart| it.block != part.block && it.block.contains(&part.block);
            let outer = parts.iter().filter(is_outer).max_by_key(|it| it.block.prefix_len());
            outer.is_none_or(|it| it.is_allowed != part.is_allowed)
        };
        let mut kept: Vec<NamePart> = parts.iter().filter(differs).cloned().collect();
        kept.sort_by_key(|part| (part.block.addr().is_ipv6(), part.block.prefix_len(), part.block));
        let first = kept.first()?.is_allowed;
        let verdict = match (kept.iter().all(|part| part.is_allowed == first), first) {
            (true, true) => Verdict::Allow,
            (true, false) => Verdict::Deny,
            (false, _) => Verdict::Unknown,
        };
        Some(Self { verdict, parts: kept })
    }

    /// The blocks with a verdict.
    pub fn blocks(&self, is_allowed: bool) -> impl Iterator<Item = IpNet> {
        let parts = self.parts.iter().filter(move |part| part.is_allowed == is_allowed);
        parts.map(|part| part.block)
    }

    /// Describes where the connection is allowed and where it is denied.
    #[must_use]
    pub fn depends_on(&self) -> String {
        let list = |is_allowed| {
            let blocks: Vec<IpNet> = self.blocks(is_allowed).collect();
            first_names(blocks.iter(), SHOWN)
        };
        let (allowed, denied) = (list(true), list(false));
        format!("depends on the address: allowed in {allowed}; denied in {denied}")
    }
}

impl Literal<'_> {
    /// See [`crate::explain::Explainer::by_name`].
    pub(super) fn by_name(
        &self,
        pod: &Key,
        name: &DomainName,
        within: &ResolvedWithin,
        kind: (IpProtocol, u16),
    ) -> Result<NameAnswer, String> {
        let pod = self.cluster.pods().get(pod).ok_or_else(|| format!("pod {pod} not found"))?;
        if pod.finished {
            let key = &pod.key;
            return Err(format!("pod {key} is finished (Succeeded or Failed): it has no traffic"));
        }
        let blocks = named(self.cluster, pod, Direction::Egress).into_iter();
        let blocks = blocks.chain(within.blocks.iter().chain(&within.except).copied());
        let blocks = Blocks::new(blocks);
        let is_of_family = |block: &IpNet| {
            let mut addresses = pod.addresses.iter();
            pod.addresses.is_empty() || addresses.any(|a| a.is_ipv4() == block.addr().is_ipv4())
        };
        let all = blocks.iter().filter(|block| within.contains(block) && is_of_family(block));
        let all: Vec<IpNet> = all.take(PARTS + 1).collect();
        if all.len() > PARTS {
            let key = &pod.key;
            return Err(format!("policies of pod {key} name more than {PARTS} blocks"));
        }
        let part = |block: IpNet| {
            let address = self.sample(&blocks, block)?;
            let judged = self.judge_named(pod, Some(name), address, kind, Detail::Verdict);
            Some(NamePart { block, address, is_allowed: judged.verdict == Verdict::Allow })
        };
        let parts: Vec<NamePart> = all.into_iter().filter_map(part).collect();
        NameAnswer::new(&parts)
            .ok_or_else(|| "no address of the pod's families to judge".to_owned())
    }

    /// Returns an address of a block, outside of longer ones, that no object has; of a single address, itself.
    fn sample(&self, blocks: &Blocks, block: IpNet) -> Option<IpAddr> {
        if block.prefix_len() == block.max_prefix_len() {
            return Some(block.addr());
        }
        blocks.sample(block, |address| {
            self.cluster.owner(address).is_some()
                || self.cluster.nodes.with(address).is_some()
                || self.cluster.service_at(address).is_some()
        })
    }

    /// Judges a pod's connection to an address that it resolved a name to, or without a name to an address that it
    /// resolved none to.
    pub(super) fn judge_named(
        &self,
        pod: &Pod,
        name: Option<&DomainName>,
        remote: IpAddr,
        (protocol, port): (IpProtocol, u16),
        detail: Detail,
    ) -> Judgement {
        let mut traffic = self.traffic(pod, Direction::Egress, remote, protocol, port);
        traffic.names = name.map_or(ResolvableNames::Unknown, ResolvableNames::Assumed);
        self.judge_traffic(&traffic, None, detail)
    }
}
