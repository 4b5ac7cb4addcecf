//! Explanations against the oracle, and the texts of explanations.

use std::net::IpAddr;

use netpold_core::explain::{Cause, Explainer, Verdict};
use netpold_core::model::Pod;
use netpold_core::probe::{Party, Probe};
use netpold_testkit::generate::{Choices, GeneratedCluster, PacketSource, shrink};
use netpold_testkit::oracle::{Oracle, OracleVerdict};

/// Whether a probe depends on secondary networks in a way that the oracle does not know: a sender given by name may have
/// several sources, and an address that counts for no claimant still leads to claimants.
fn is_beyond_the_oracle(oracle: &Oracle, probe: &Probe) -> bool {
    let is_refused = |address: &IpAddr| {
        let claims = |pod: &Pod| pod.secondary_addresses().any(|claimed| claimed == *address);
        oracle.pod_at(*address).is_none() && oracle.pods.iter().any(claims)
    };
    let mut backends = oracle.slices.iter().flat_map(|slice| &slice.addresses);
    let is_sender = |pod: &Pod| probe.from == Party::Pod(pod.key.clone());
    let is_second = |pod: &Pod| is_sender(pod) && !pod.secondary.is_empty();
    let mut sides = [&probe.from, &probe.to].into_iter();
    oracle.pods.iter().any(is_second)
        || sides.any(|it| matches!(it, Party::Address(address) if is_refused(address)))
        || backends.any(is_refused)
}

/// A probe of this cluster on which the two disagree.
fn disagreement(cluster: &GeneratedCluster, probes: &[Probe]) -> Option<Probe> {
    let oracle: Oracle = cluster.objects.iter().cloned().collect();
    let compiled = cluster.objects.iter().cloned().collect();
    let explainer = Explainer::new(&compiled);
    probes
        .iter()
        .filter(|probe| !is_beyond_the_oracle(&oracle, probe))
        .find(|probe| {
            let expected = match oracle.verdict(probe) {
                OracleVerdict::Translated { allowed } => {
                    let answer = explainer.explain(probe);
                    return answer.services.is_empty()
                        || (answer.verdict == Verdict::Allow) != allowed
                        || answer.verdict == Verdict::Unknown;
                }
                OracleVerdict::Judged { egress, ingress } => (Some(egress), Some(ingress)),
                OracleVerdict::DependsOnAddress | OracleVerdict::CannotTell => (None, None),
            };
            let answer = explainer.explain(probe);
            let side = |judgement: &Option<netpold_core::explain::Judgement>| {
                if answer.verdict == Verdict::Unknown {
                    None
                } else {
                    Some(judgement.as_ref().is_none_or(|j| j.verdict == Verdict::Allow))
                }
            };
            (side(&answer.egress), side(&answer.ingress)) != expected
        })
        .cloned()
}

#[test]
fn agrees_with_the_oracle() {
    let mut counts = std::collections::BTreeMap::<String, u32>::new();
    for seed in 0..3000 {
        let cluster = GeneratedCluster::from_seed(seed);
        let source = PacketSource::new(&cluster);
        let mut choices = Choices::from_seed(!seed);
        let probes: Vec<Probe> = (0..100).map(|_| source.probe(&mut choices)).collect();
        if let Some(probe) = disagreement(&cluster, &probes) {
            let probes = [probe];
            let small = shrink(&cluster, |c| disagreement(c, &probes).is_some());
            let oracle: Oracle = small.objects.iter().cloned().collect();
            let compiled = small.objects.iter().cloned().collect();
            let explained = Explainer::new(&compiled).explain(&probes[0]);
            panic!("seed {seed}:\n{small}\n{explained}\noracle: {:?}", oracle.verdict(&probes[0]));
        }
        let compiled = cluster.objects.into_iter().collect();
        let explainer = Explainer::new(&compiled);
        for probe in &probes {
            let answer = explainer.explain(probe);
            assert_eq!(explainer.verdict(probe), (answer.verdict, answer.reason.clone()));
            *counts.entry(answer.verdict.to_string()).or_default() += 1;
            if !answer.services.is_empty() {
                let allowed = answer.backends.iter().filter(|b| b.verdict == Verdict::Allow);
                let kind = match (allowed.count(), answer.backends.len()) {
                    (_, 0) => "no backend",
                    (0, _) => "no backend allowed",
                    (some, all) if some < all => "backends differ",
                    _ => "every backend allowed",
                };
                *counts.entry(kind.to_owned()).or_default() += 1;
            }
            for judgement in answer.ingress.iter().chain(&answer.egress) {
                *counts.entry(format!("{:?}", judgement.cause)).or_default() += 1;
                assert_eq!(judgement.allowed_by.is_some(), judgement.cause == Cause::Rule);
                let by_tier = matches!(judgement.cause, Cause::TierRule | Cause::BackendDenied);
                assert_eq!(judgement.tiers.decided_by.is_some(), by_tier, "{answer}");
                for rule in judgement.tiers.passed_by.iter().chain(&judgement.tiers.decided_by) {
                    let kind = format!("{} {}", rule.policy.tier, rule.action);
                    *counts.entry(kind).or_default() += 1;
                }
                assert!(judgement.nearest.iter().all(|near| !near.lacks.is_empty()), "{answer}");
            }
        }
    }
    println!("{counts:#?}");
    for tier in ["Admin", "Baseline"] {
        for action in ["Accept", "Deny", "Pass"] {
            assert!(counts[&format!("{tier} {action}")] > 1000, "{tier} {action}: {counts:?}");
        }
    }
    assert!(counts["BackendDenied"] > 100, "{counts:?}");
    for what in
        ["allow", "deny", "cannot tell", "NotIsolated", "Rule", "NoRule", "Itself", "OwnNode"]
    {
        assert!(counts[what] > 3000, "{what}: {counts:?}");
    }
    for what in
        ["no backend", "no backend allowed", "backends differ", "every backend allowed", "Backend"]
    {
        assert!(counts[what] > 100, "{what}: {counts:?}");
    }
}
