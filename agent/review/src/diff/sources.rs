//! Objects before and after a change, and the parts of the change that are not compared.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, bail};
use netpold_client::details::{Details, read_details};
use netpold_client::live;
use netpold_client::offline::{self, Recursive, Reviewed, apply, pods_of};
use netpold_core::cluster::{Cluster, ObjectKey};
use netpold_core::model::{Change, Enforcement, Key};
use netpold_kube::convert::DEFAULT_NAMESPACE;
use netpold_kube::document::{DocumentNode, Documents, Value};

use super::args::DiffArgs;
use super::party::list_names;
use crate::unenforced;

/// Objects before and after a change, with the pods of all pod templates.
#[derive(Debug, Default)]
pub struct Sources {
    pub(super) objects: [Vec<Change>; 2],
    /// Fields of them that enforcement does not read.
    pub(super) details: [Details; 2],
    /// Whether the objects are those of files, see [`crate::judge::Judge::new`].
    pub is_partial: bool,
    /// Parts of the change that are not compared.
    pub gaps: Vec<String>,
    /// Whether documents that may hold any object are among these parts.
    pub(super) are_unread: bool,
    /// Facts about the change, a sentence each.
    pub(crate) notes: Vec<String>,
}

/// Reads the objects.
///
/// # Errors
/// A source cannot be read, needs rendering, or contains nothing to apply.
pub(super) fn read(args: &DiffArgs) -> Result<Sources> {
    let depth = args.review.depth;
    if let (Some(from), Some(to)) = (&args.from, &args.to) {
        let namespace = args.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
        let [from, to] = [("--from", from), ("--to", to)].map(|(option, path)| {
            offline::refuse_kustomization("diff", option, path, depth)?;
            let reviewed = offline::review_directory(option, path, namespace, depth)?.reported();
            let mut details = Details::within(namespace);
            details.add(option, path, depth)?;
            Ok::<_, anyhow::Error>((reviewed, details))
        });
        let ((from, details), (to, other)) = (from?, to?);
        let details = [details, other];
        let [present, other] = details.each_ref().map(unenforced::names);
        let on_one_side: Vec<String> = present.symmetric_difference(&other).cloned().collect();
        let on_both: Vec<String> = present.intersection(&other).cloned().collect();
        let mut sources = Sources { details, is_partial: true, ..Sources::default() };
        sources.gaps.extend([from.gaps(), to.gaps()].concat());
        sources.are_unread = [&from, &to].iter().any(|reviewed| !reviewed.unread.is_empty());
        let former: BTreeMap<ObjectKey, &Change> =
            from.objects.iter().map(|object| (ObjectKey::of(object), object)).collect();
        let is_new = |object: &&Change| former.get(&ObjectKey::of(object)) != Some(object);
        sources.add_policy_notes(to.objects.iter().filter(is_new), &to.objects);
        sources.gaps.extend(unenforced::list_unenforced(&on_one_side));
        sources.notes.extend(unenforced::list_unenforced(&on_both));
        sources.objects = [from.objects, to.objects];
        sources.complete_namespaces();
        return Ok(sources);
    }
    let Some(file) = &args.file else {
        bail!("give --from and --to, or -f");
    };
    applied(args, file)
}

/// Reads the objects of `-f`, and applies them to the present ones.
fn applied(args: &DiffArgs, file: &Path) -> Result<Sources> {
    let (manifests, namespace) = (args.manifests.as_deref(), args.namespace.as_deref());
    let depth = args.review.depth;
    let own = live::namespace(manifests, &args.cluster, namespace)?;
    offline::refuse_kustomization("diff", "-f", file, depth)?;
    let reviewed = offline::review("--file", file, &own, depth)?.reported();
    let gaps = reviewed.gaps();
    let Reviewed { objects: changes, undecoded, unread, subdirectories, .. } = reviewed;
    if let (Some(problem), true) = (unread.first(), changes.is_empty() && undecoded.is_empty()) {
        bail!("-f {}: no object can be read: {problem}", file.display());
    }
    if changes.is_empty() && undecoded.is_empty() {
        bail!("-f {}: {}", file.display(), nothing(file, depth, subdirectories)?);
    }
    if let Some(directory) = manifests {
        offline::refuse_kustomization("diff", "--manifests", directory, depth)?;
    }
    let before = live::all_objects(manifests, depth, &args.cluster, namespace)?;
    let mut sources = Sources::of_change(before, &changes, args.delete);
    sources.gaps.splice(0..0, gaps);
    sources.are_unread |= !unread.is_empty();
    sources.is_partial = manifests.is_some();
    let present = read_details(manifests, depth, &args.cluster, &own)?;
    let add = |details: &mut Details| details.add("--file", file, depth);
    sources.set_details(present, &changes, args.delete, add)?;
    Ok(sources)
}

impl Sources {
    /// Returns the objects before and after these ones are applied, or deleted.
    #[must_use]
    pub fn of_change(before: Reviewed, named: &[Change], delete: bool) -> Self {
        let mut sources = Self::without_objects(&before, named);
        let before = before.objects;
        let after = match delete {
            true => apply(&before, &sources.deleted(&before, named)),
            false => apply(&before, named),
        };
        if !delete {
            sources.add_policy_notes(named.iter(), &after);
        }
        sources.objects = [before, after];
        sources.complete_namespaces();
        sources
    }

    /// Returns the sources of a change without the objects, with the gaps of the objects before.
    fn without_objects(before: &Reviewed, named: &[Change]) -> Self {
        let mut undecoded = before.undecoded.clone();
        offline::replace(&mut undecoded, named);
        let undecoded = undecoded.iter().map(|it| it.problem.to_string());
        let gaps = offline::unread(&before.unread).chain(undecoded).collect();
        Self { gaps, are_unread: !before.unread.is_empty(), ..Self::default() }
    }

    /// Returns the sources of a change of policies alone, without the objects; `cluster` has those before the change.
    pub(super) fn of_policies(
        before: &Reviewed,
        cluster: &Cluster,
        named: &[Change],
        delete: bool,
    ) -> Self {
        let mut sources = Self::without_objects(before, named);
        if !delete {
            let exists = |namespace: &str| {
                cluster.namespaces().contains_key(namespace)
                    || cluster.pods_in(namespace).next().is_some()
            };
            sources.notes.extend(policy_notes(named.iter(), exists));
            return sources;
        }
        for object in named {
            let is_present = if let Change::Policy(policy) = object {
                cluster.policies().contains_key(&policy.key)
            } else if let Change::ClusterPolicy(policy) = object {
                cluster.cluster_policy(&policy.name).is_some()
            } else {
                false
            };
            sources.gaps.extend((!is_present).then(|| not_deleted(object)));
        }
        sources
    }

    /// Sets the details of both sides. `add` adds those of the objects to apply, or to delete. Policies of other APIs among
    /// these are not compared, and those among the present objects are noted.
    ///
    /// # Errors
    /// As `add`.
    pub fn set_details(
        &mut self,
        present: Details,
        named: &[Change],
        delete: bool,
        add: impl FnOnce(&mut Details) -> Result<()>,
    ) -> Result<()> {
        let mut after = present.clone();
        let foreign;
        if delete {
            let mut gone = Details::default();
            gone.namespace.clone_from(&present.namespace);
            add(&mut gone)?;
            foreign = unenforced::names(&gone);
            let namespaces = named.iter().filter_map(|object| {
                let Change::Namespace(namespace) = object else { return None };
                Some(namespace.name.as_str())
            });
            after.remove(&gone, &namespaces.collect());
        } else {
            after.foreign.clear();
            add(&mut after)?;
            foreign = unenforced::names(&after);
        }
        let others: Vec<String> =
            unenforced::names(&present).difference(&foreign).cloned().collect();
        self.gaps.extend(unenforced::list_unenforced(&foreign));
        self.notes.extend(unenforced::list_unenforced(&others));
        self.details = [present, after];
        Ok(())
    }

    /// Adds the Namespaces that only one side has to the other one, if that has pods there: without the object, their labels
    /// would count as absent.
    fn complete_namespaces(&mut self) {
        let of = |objects: &[Change]| {
            let (mut namespaces, mut with_pods) = (BTreeMap::new(), BTreeSet::new());
            for object in objects {
                if let Change::Namespace(namespace) = object {
                    namespaces.insert(namespace.name.clone(), object.clone());
                } else if let Change::Pod(pod) = object {
                    with_pods.insert(pod.key.namespace.clone());
                }
            }
            (namespaces, with_pods)
        };
        let sides = self.objects.each_ref().map(|objects| of(objects));
        for (side, word) in [(0, "before"), (1, "after")] {
            let ((own, with_pods), (other, _)) = (&sides[side], &sides[1 - side]);
            for (name, namespace) in other {
                if with_pods.contains(name) && !own.contains_key(name) {
                    self.objects[side].push(namespace.clone());
                    self.gaps.push(format!(
                        "Namespace {name} is not among the objects {word}: labels as on the other side"
                    ));
                }
            }
        }
    }

    /// Returns the deletions that follow from deleting these objects: a namespace's contents, a workload's pods.
    fn deleted(&mut self, all: &[Change], named: &[Change]) -> Vec<Change> {
        let present: BTreeSet<ObjectKey> = all.iter().map(ObjectKey::of).collect();
        let mut gone: Vec<Change> = named.iter().map(Change::removal).collect();
        for object in named {
            let before = gone.len();
            gone.extend(pods_of(all, object).map(Change::removal));
            if let Change::Namespace(namespace) = object {
                let inside =
                    all.iter().filter(|object| namespace_of(object) == Some(&namespace.name));
                gone.extend(inside.map(Change::removal));
            }
            if gone.len() == before && !present.contains(&ObjectKey::of(object)) {
                self.gaps.push(not_deleted(object));
            }
        }
        gone
    }

    /// Adds notes on new policies: on trial, or in a namespace that does not exist.
    fn add_policy_notes<'c>(&mut self, changed: impl Iterator<Item = &'c Change>, all: &[Change]) {
        let known: BTreeSet<&str> = all
            .iter()
            .filter_map(|object| {
                if let Change::Namespace(namespace) = object {
                    Some(namespace.name.as_str())
                } else if let Change::Pod(pod) = object {
                    Some(pod.key.namespace.as_str())
                } else {
                    None
                }
            })
            .collect();
        self.notes.extend(policy_notes(changed, |namespace| known.contains(namespace)));
    }
}

/// Returns notes on policies that are applied: on trial, or in a namespace that does not exist.
fn policy_notes<'c>(
    changed: impl Iterator<Item = &'c Change>,
    exists: impl Fn(&str) -> bool,
) -> Vec<String> {
    let (mut on_trial, mut lost) = (Vec::new(), Vec::new());
    for object in changed {
        let enforcement = if let Change::Policy(policy) = object {
            policy.enforcement
        } else if let Change::ClusterPolicy(policy) = object {
            policy.enforcement
        } else {
            continue;
        };
        if namespace_of(object).is_some_and(|namespace| !exists(namespace)) {
            lost.push(name(object));
        } else if enforcement == Enforcement::Audit {
            on_trial.push(name(object));
        }
    }
    let notes = [
        ("on trial, so without effect on connections", on_trial),
        ("in a namespace without an object and without pods, so without effect", lost),
    ];
    let notes = notes.into_iter().filter(|(_, names)| !names.is_empty());
    notes.map(|(text, names)| format!("{text}: {}", list_names(&names))).collect()
}

/// Returns the gap of an object to delete that does not exist.
fn not_deleted(object: &Change) -> String {
    format!("{}: it is not among the objects, so not deleted", name(object))
}

/// Returns the namespace of a namespaced object.
fn namespace_of(object: &Change) -> Option<&String> {
    let key: &Key = match object {
        Change::Pod(pod) => &pod.key,
        Change::Policy(policy) => &policy.key,
        Change::Service(service) => &service.key,
        Change::EndpointSlice(slice) => &slice.key,
        Change::PodGone(key)
        | Change::PolicyGone(key)
        | Change::ServiceGone(key)
        | Change::EndpointSliceGone(key) => key,
        Change::Namespace(_)
        | Change::NamespaceGone(_)
        | Change::Node(_)
        | Change::NodeGone(_)
        | Change::ClusterPolicy(_)
        | Change::ClusterPolicyGone(_)
        | Change::Interface(_)
        | Change::InterfaceGone(_)
        | Change::OwnAddresses(_) => return None,
    };
    Some(&key.namespace)
}

/// Returns kind and name of an object.
fn name(object: &Change) -> String {
    if let Change::Pod(pod) = object
        && pod.template().is_some()
    {
        return pod.title();
    }
    ObjectKey::of(object).to_string()
}

/// Describes a source without objects that policies depend on: the kinds of its other objects, and the subdirectories.
fn nothing(path: &Path, depth: Recursive, subdirectories: Option<String>) -> Result<String> {
    let mut kinds = BTreeMap::new();
    if offline::is_standard_input(path) {
        count_kinds(&offline::standard_input("--file")?, &mut kinds);
    } else {
        for file in offline::files(path, depth)? {
            // A file that cannot be read is reported before.
            if let Ok(text) = offline::content(&file) {
                count_kinds(&text, &mut kinds);
            }
        }
    }
    let mut parts = Vec::new();
    let others: usize = kinds.values().sum();
    if others > 0 {
        let names: Vec<String> = kinds.into_keys().collect();
        parts.push(format!("{others} of other kinds: {}", list_names(&names)));
    }
    parts.extend(subdirectories);
    let parts = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join("; ")) };
    Ok(format!("no object that policies depend on{parts}"))
}

/// Counts the objects of a text by kind.
fn count_kinds(text: &[u8], kinds: &mut BTreeMap<String, usize>) {
    fn count(node: &DocumentNode, kinds: &mut BTreeMap<String, usize>) {
        let items = node.get("items").map(|items| &items.value);
        match (items, node.text("kind")) {
            (Some(Value::List(items)), _) => items.iter().for_each(|item| count(item, kinds)),
            (_, Some(kind)) => *kinds.entry(kind.to_owned()).or_default() += 1,
            (_, None) => {}
        }
    }
    let mut documents = Documents::new(text);
    while let Some(document) = documents.next(&mut |_, item| Some(item)) {
        if let Ok(document) = document {
            count(&document.node, kinds);
        }
    }
}
