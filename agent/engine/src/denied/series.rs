//! Counters by workload, bounded in number, with a fair share for each namespace.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use netpold_api::events::TrafficVerdict;
use netpold_api::observe::ObservedEvent;
use netpold_core::cluster::AddressOwner;
use netpold_core::model::Direction;

/// Time after which a series without new packets or flows is displaced before smaller ones.
const IDLE: Duration = Duration::from_hours(1);
/// Longest list of policies in a label, in bytes; the number of further policies follows as `+N`.
const POLICIES_MAX: usize = 200;

/// Labels of a series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeriesLabels {
    /// [`TrafficVerdict::Deny`] or [`TrafficVerdict::Audit`].
    pub outcome: TrafficVerdict,
    /// Direction from the pod's view.
    pub direction: Direction,
    /// Namespace of the pod.
    pub namespace: String,
    /// Workload of the pod; empty without controller and labels.
    pub workload: String,
    /// Namespace of the other side; empty outside of the cluster's pods and Services.
    pub peer_namespace: String,
    /// Workload of the other side, `svc/NAME`, `node` or `outside`; empty if the packet has no readable address.
    pub peer_workload: String,
    /// Policies that deny, separated by commas; empty for other reasons, and for events without attribution.
    pub policy: String,
    /// Reason of the drop, or `audit`.
    pub reason: String,
}

impl SeriesLabels {
    /// Returns the labels of an event; `None` for a flow that passed, and if the pod is unknown.
    pub(super) fn from_event(event: &ObservedEvent) -> Option<Self> {
        let pod = event.pod.as_ref().filter(|_| event.verdict != TrafficVerdict::Allow)?;
        let name = |workload: &Option<_>| {
            workload.as_ref().map(|it: &netpold_api::workload::WorkloadName| it.name.clone())
        };
        let (peer_namespace, peer_workload) = match &event.peer {
            Some(AddressOwner::Pod(key)) => {
                (key.namespace.clone(), name(&event.peer_workload).unwrap_or_default())
            }
            Some(AddressOwner::Service(key)) => {
                (key.namespace.clone(), format!("svc/{}", key.name))
            }
            Some(AddressOwner::Node { .. }) => (String::new(), "node".to_owned()),
            Some(AddressOwner::Outside) => (String::new(), "outside".to_owned()),
            None => (String::new(), String::new()),
        };
        Some(Self {
            outcome: event.verdict,
            direction: event.direction,
            namespace: pod.namespace.clone(),
            workload: name(&event.workload).unwrap_or_default(),
            peer_namespace,
            peer_workload,
            policy: policies(event),
            reason: event.reason.clone(),
        })
    }

    /// Returns the sender's namespace, to which the series is charged, and the receiver's namespace.
    fn sides(&self) -> [&str; 2] {
        let [own, peer] = [&self.namespace, &self.peer_namespace].map(String::as_str);
        // Outside of the cluster's pods, the sender has no share.
        if self.direction == Direction::Ingress && !peer.is_empty() {
            [peer, own]
        } else {
            [own, peer]
        }
    }
}

fn policies(event: &ObservedEvent) -> String {
    let all = &event.attribution.policies;
    let (mut text, mut named) = (String::new(), 0);
    for policy in all {
        let name = policy.to_string();
        if named > 0 && text.len() + name.len() > POLICIES_MAX {
            break;
        }
        let comma = if named > 0 { "," } else { "" };
        text = format!("{text}{comma}{name}");
        named += 1;
    }
    match all.len() - named + event.attribution.more_policies {
        0 => text,
        more => format!("{text},+{more}"),
    }
}

#[derive(Debug)]
struct SeriesCount {
    value: u64,
    last: Instant,
}

/// The series. A namespace that needs more than its share of a full table displaces its own series only.
#[derive(Debug)]
pub(super) struct Series {
    most: usize,
    counts: BTreeMap<SeriesLabels, SeriesCount>,
    /// Number of series by the namespaces of sender and receiver.
    shares: BTreeMap<String, BTreeMap<String, usize>>,
}

impl Series {
    /// Creates a table of at most `most` series.
    pub(super) fn new(most: usize) -> Self {
        Self { most, counts: BTreeMap::new(), shares: BTreeMap::new() }
    }

    /// Returns all series with their counts.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&SeriesLabels, u64)> {
        self.counts.iter().map(|(labels, count)| (labels, count.value))
    }

    /// Adds 1 to a series. Returns the labels and count that leave the table: a displaced series, or the given labels
    /// with 1 if the namespace has no room for them.
    pub(super) fn count(
        &mut self,
        labels: SeriesLabels,
        now: Instant,
    ) -> Option<(SeriesLabels, u64)> {
        if let Some(count) = self.counts.get_mut(&labels) {
            count.value += 1;
            count.last = now;
            return None;
        }
        let mut displaced = None;
        if self.counts.len() >= self.most {
            let Some(victim) = self.victim(&labels, now) else { return Some((labels, 1)) };
            displaced = self.remove(&victim).map(|value| (victim, value));
        }
        let [sender, receiver] = labels.sides().map(str::to_owned);
        *self.shares.entry(sender).or_default().entry(receiver).or_default() += 1;
        self.counts.insert(labels, SeriesCount { value: 1, last: now });
        displaced
    }

    fn remove(&mut self, labels: &SeriesLabels) -> Option<u64> {
        let [sender, receiver] = labels.sides();
        if let Some(share) = self.shares.get_mut(sender) {
            if let Some(number) = share.get_mut(receiver) {
                *number -= 1;
            }
            share.retain(|_, number| *number > 0);
            if share.is_empty() {
                self.shares.remove(sender);
            }
        }
        self.counts.remove(labels).map(|count| count.value)
    }

    /// Returns the series to displace for a new one: the smallest series of the sender with the most series, to the
    /// receiver with the most of them. `None`: the new series is the one that exceeds its share.
    fn victim(&self, new: &SeriesLabels, now: Instant) -> Option<SeriesLabels> {
        let [sender, receiver] = new.sides();
        let loads = self.shares.iter().map(|(name, share)| {
            let own = usize::from(name == sender);
            (share.values().sum::<usize>() + own, own, name.as_str())
        });
        // Among equals, the sender of the new series.
        let (_, own, largest) = loads.max().filter(|(load, ..)| *load > 1)?;
        let loads = self.shares.get(largest)?.iter().map(|(name, number)| {
            let same = usize::from(own == 1 && name == receiver);
            (number + same, same, name.as_str())
        });
        let to = loads.max()?.2;
        let of_these = self.counts.iter().filter(|(labels, _)| labels.sides() == [largest, to]);
        let smallest = of_these.min_by_key(|(_, count)| {
            (now.saturating_duration_since(count.last) < IDLE, count.value, count.last)
        });
        smallest.map(|(labels, _)| labels.clone())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::denied) fn labels(namespace: &str, workload: &str, peer: &str) -> SeriesLabels {
        let (peer_namespace, peer_workload) = peer.split_once('/').unwrap_or(("", peer));
        SeriesLabels {
            outcome: TrafficVerdict::Deny,
            direction: Direction::Egress,
            namespace: namespace.into(),
            workload: workload.into(),
            peer_namespace: peer_namespace.into(),
            peer_workload: peer_workload.into(),
            policy: String::new(),
            reason: "policy".into(),
        }
    }

    fn of(series: &Series, namespace: &str) -> usize {
        series.iter().filter(|(labels, _)| labels.namespace == namespace).count()
    }

    #[test]
    fn a_hostile_namespace_displaces_its_own_series_only() {
        let (mut series, now) = (Series::new(100), Instant::now());
        let mut lost = 0;
        let mut count = |labels| lost += series.count(labels, now).map_or(0, |(_, value)| value);
        for n in 0..20 {
            count(labels("shop", &format!("w{n}"), "outside"));
        }
        // Random pods, labels and receivers, as sender in both directions.
        for n in 0..10_000 {
            count(labels("evil", &format!("w{n}"), &format!("other{}/x", n % 300)));
            let victim = SeriesLabels {
                direction: Direction::Ingress,
                ..labels("shop", &format!("w{}", n % 20), &format!("evil/w{n}"))
            };
            count(victim);
        }
        for n in 0..20 {
            count(labels("shop", &format!("w{n}"), "outside"));
        }
        // A namespace that comes late gets its share at once.
        for n in 0..30 {
            count(labels("late", &format!("w{n}"), "outside"));
        }
        assert_eq!(series.iter().count(), 100);
        let own = series.iter().filter(|(labels, _)| labels.sides()[0] == "shop");
        assert_eq!(own.map(|(_, value)| value).collect::<Vec<_>>(), [2; 20]);
        assert_eq!(of(&series, "late"), 30);
        let kept: u64 = series.iter().map(|(_, value)| value).sum();
        assert_eq!(kept + lost, 20 + 20_000 + 20 + 30, "every packet is counted");
        let shares: usize = series.shares.values().flat_map(BTreeMap::values).sum();
        assert_eq!(shares, 100);
    }

    /// A sender has no influence on a receiver that renames its policies, so the sender's series to others stay.
    #[test]
    fn a_hostile_receiver_displaces_series_to_itself_only() {
        let (mut series, now) = (Series::new(50), Instant::now());
        for n in 0..20 {
            series.count(labels("monitor", &format!("w{n}"), "shop/web"), now);
        }
        for n in 0..10_000 {
            let policy = format!("evil/p{n}");
            let hostile = SeriesLabels {
                direction: Direction::Ingress,
                policy,
                ..labels("evil", "w", "monitor/scraper")
            };
            series.count(hostile, now);
        }
        assert_eq!((series.iter().count(), of(&series, "monitor")), (50, 20));
    }

    #[test]
    fn of_one_namespace_the_largest_series_stay_while_they_count() {
        let (mut series, now) = (Series::new(2), Instant::now());
        let (a, b, c) = (labels("x", "a", ""), labels("x", "b", ""), labels("x", "c", ""));
        for one in [&a, &a, &b] {
            assert_eq!(series.count(one.clone(), now), None);
        }
        assert_eq!(series.count(c.clone(), now), Some((b.clone(), 1)), "the smallest");
        assert_eq!(series.count(c.clone(), now + IDLE), None);
        assert_eq!(series.count(b, now + IDLE), Some((a, 2)), "idle");
        // With more namespaces than places, each has at most one series; the others have none.
        assert_eq!(series.count(labels("y", "a", ""), now), Some((labels("x", "b", ""), 1)));
        assert_eq!(series.count(labels("z", "a", ""), now), Some((labels("z", "a", ""), 1)));
        let mut none = Series::new(0);
        assert_eq!(none.count(c.clone(), now), Some((c, 1)));
    }

    #[test]
    fn lists_of_policies_are_cut() {
        let mut event = netpold_api::samples::event(0);
        let named = |n: usize| {
            let key = netpold_core::model::Key::new("shop", format!("{n}{}", "p".repeat(90)));
            netpold_api::observe::PolicyName::new(&key)
        };
        event.attribution.policies = (0..4).map(named).collect();
        event.attribution.more_policies = 3;
        let policy = SeriesLabels::from_event(&event).unwrap().policy;
        assert!(policy.starts_with("shop/0p") && policy.ends_with(",+5"), "{policy}");
        assert!(policy.len() <= POLICIES_MAX + 10);
    }
}
