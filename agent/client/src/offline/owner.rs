//! Pods named by their workload.

use netpold_core::cluster::Cluster;
use netpold_core::model::{Change, Key, Pod};
pub(super) use netpold_core::owner::job;
pub use netpold_core::owner::{Owner, is_run, owner};
use netpold_core::probe::Party;

use netpold_core::labels::{OF_PODS, POD_INDEX, POD_NAME};

/// Characters of generated names: `k8s.io/apimachinery/pkg/util/rand`.
const GENERATED: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Least and greatest length of a generated part of a name: a suffix, and the hash of a pod template.
const GENERATED_LENGTH: (usize, usize) = (5, 10);
/// Most pods that an error names.
const NAMED: usize = 5;
/// Short names of the kinds, as in kubectl.
const SHORT: [(&str, &str); 7] = [
    ("deploy", "Deployment"),
    ("sts", "StatefulSet"),
    ("ds", "DaemonSet"),
    ("rs", "ReplicaSet"),
    ("rc", "ReplicationController"),
    ("job", "Job"),
    ("cj", "CronJob"),
];

/// Returns whether Kubernetes may have generated a part of a name between hyphens, or it is a number.
#[must_use]
pub fn is_generated(part: &str) -> bool {
    let (least, most) = GENERATED_LENGTH;
    let has_digit = part.bytes().any(|b| b.is_ascii_digit());
    let is_number = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    is_number
        || part.bytes().all(|b| GENERATED.contains(&b))
            && (part.len() == least || has_digit && (least..=most).contains(&part.len()))
}

/// Returns the kind for a word that kubectl accepts: `deployment`, `deploy` or `deployments`.
fn kind(word: &str) -> Option<&'static str> {
    let word = word.to_ascii_lowercase();
    let singular = word.strip_suffix('s').unwrap_or(&word);
    SHORT.into_iter().find_map(|(short, kind)| {
        let full = kind.to_ascii_lowercase();
        (word == short || word == full || singular == full).then_some(kind)
    })
}

/// Returns the pods of a workload that is named in place of a pod: `shop/web`, or `deployment/web` in the namespace
/// `own`. Finished pods are included only if there are no others.
#[must_use]
pub fn pods_named<'c>(cluster: &'c Cluster, key: &Key, own: &str) -> Vec<&'c Pod> {
    let of = |namespace: &str, is_meant: &dyn Fn(Owner<'_>) -> bool| -> Vec<&'c Pod> {
        let pods = cluster.pods_in(namespace).map(|pod| &**pod);
        let pods = pods.filter(|pod| owner(pod).is_some_and(is_meant));
        let (finished, live): (Vec<&Pod>, Vec<&Pod>) = pods.partition(|pod| pod.finished);
        if live.is_empty() { finished } else { live }
    };
    let name = key.name.as_str();
    let found = of(&key.namespace, &|owner| owner.name == name);
    match kind(&key.namespace) {
        Some(kind) if found.is_empty() => of(own, &|owner| owner == Owner::new(kind, name)),
        Some(_) | None => found,
    }
}

/// Returns the number at the end of the name of a `StatefulSet`'s pod, if a template's pods may have the name.
fn ordinal<'k>(template: &Pod, key: &'k Key) -> Option<&'k str> {
    let is_number = |text: &&str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    let workload = template.template().filter(|workload| workload.kind == "StatefulSet")?;
    let rest = key.name.strip_prefix(workload.name.as_str())?.strip_prefix('-');
    rest.filter(|rest| is_number(rest) && template.key.namespace == key.namespace)
}

/// Returns the stand-in for a `StatefulSet`'s pod of that name.
fn replica<'c>(cluster: &'c Cluster, key: &Key) -> Option<&'c Pod> {
    let mut pods = cluster.pods_in(&key.namespace).map(|pod| &**pod);
    pods.find(|pod| ordinal(pod, key).is_some())
}

/// Adds the pods that a question names, as `shop/db-0`, of a `StatefulSet` of which only the template exists, with the
/// labels that its controller derives from the name.
pub fn add_replicas(objects: &mut Vec<Change>, parties: [&Party; 2]) {
    for party in parties {
        let Party::Pod(key) = party else { continue };
        let pods = || {
            objects.iter().filter_map(|it| if let Change::Pod(pod) = it { Some(pod) } else { None })
        };
        if pods().any(|pod| pod.key == *key) {
            continue;
        }
        let found = pods().find_map(|pod| Some((pod.clone(), ordinal(pod, key)?)));
        let Some((mut pod, number)) = found else { continue };
        let made = [(POD_NAME, key.name.as_str()), (POD_INDEX, number)];
        let made = made.map(|(label, value)| (label.to_owned(), value.to_owned()));
        let known = pod.labels.iter().map(|(label, value)| (label.clone(), value.clone()));
        pod.labels = known.chain(made).collect();
        (pod.key, pod.uid) = (key.clone(), key.to_string());
        objects.push(Change::Pod(pod));
    }
}

/// Resolves one side of a question to a pod: the pod of that name, else one of the workload's, see [`pods_named`], else
/// the stand-in of a `StatefulSet` for its pod of that name.
///
/// # Errors
/// The workload's pods differ in properties that policies depend on.
pub fn resolve(cluster: &Cluster, party: Party, own: &str) -> Result<Party, String> {
    let Party::Pod(key) = &party else { return Ok(party) };
    if cluster.pods().get(key).is_some() {
        return Ok(party);
    }
    let pods = pods_named(cluster, key, own);
    let [first, others @ ..] = &pods[..] else {
        let stand_in = replica(cluster, key).map(|pod| Party::Pod(pod.key.clone()));
        return Ok(stand_in.unwrap_or(party));
    };
    let traits = |pod: &Pod| {
        let labels = pod.labels.iter().filter(|(key, _)| !OF_PODS.contains(&key.as_str()));
        let labels: Vec<_> = labels.map(|(key, value)| (key.clone(), value.clone())).collect();
        (labels, pod.ports.clone(), pod.host_network)
    };
    if others.iter().any(|pod| traits(pod) != traits(first)) {
        let names: Vec<String> = pods.iter().take(NAMED).map(|pod| pod.key.to_string()).collect();
        return Err(format!(
            "the pods of {key} differ in labels, ports or network: name one of them, as {}",
            names.join(", ")
        ));
    }
    Ok(Party::Pod(first.key.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_named_as_kubectl_takes_them() {
        for word in ["deployment", "deployments", "deploy", "Deployment"] {
            assert_eq!(kind(word), Some("Deployment"), "{word}");
        }
        assert_eq!((kind("cronjobs"), kind("sts")), (Some("CronJob"), Some("StatefulSet")));
        assert_eq!((kind("shop"), kind("")), (None, None));
    }
}
