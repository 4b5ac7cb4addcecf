//! Names of a cluster's objects that begin with the typed word.
//!
//! Lists have names only (`PartialObjectMetadata`), of one namespace, and one page. An API server that denies the list
//! or does not answer within [`PATIENCE`] yields no names: errors would appear in the middle of the typed word.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use clap::{Arg, Command};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use netpold_client::live::{ClusterArgs, ListedKind, NameLister, block_on};

/// Longest wait after the completion key.
const PATIENCE: Duration = Duration::from_secs(1);
/// Prefix of a Service's name.
const SERVICE: &str = "svc/";

/// Typed flags that choose a cluster and a namespace.
#[derive(Clone, Debug, Default)]
pub(super) struct TypedFlags {
    /// The cluster; `None` if the flags choose none.
    cluster: Option<ClusterArgs>,
    namespace: Option<String>,
}

/// Kind of name that an argument takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CompletionKind {
    Context,
    Namespace,
    /// A pod by name, without its namespace.
    PodOfNamespace,
    /// A pod as `pod` or `namespace/pod`.
    Pod,
    /// A pod, or a Service as `svc/namespace/service`.
    Party,
}

impl TypedFlags {
    /// Reads the words of a command line. With `plugin`, kubectl's current cluster is the default.
    pub(super) fn read(words: &[OsString], plugin: bool) -> Self {
        let value = |flags: &[&str], twin: &str| {
            let mut found = None;
            for (index, word) in words.iter().enumerate().skip(1) {
                let Some(word) = word.to_str() else { continue };
                let next = || words.get(index + 1)?.to_str();
                let value = flags.iter().find_map(|flag| {
                    let rest = word.strip_prefix(flag)?;
                    match rest.strip_prefix('=') {
                        Some(value) => Some(value),
                        None if rest.is_empty() => next(),
                        // The value of a short flag may follow without a space.
                        None => Some(rest).filter(|_| !flag.starts_with("--")),
                    }
                });
                found = value.map(str::to_owned).or(found);
            }
            found.or_else(|| env::var(twin).ok()).filter(|value| !value.is_empty())
        };
        let kubeconfig = value(&["--kubeconfig"], "NETPOLD_KUBECONFIG").map(PathBuf::from);
        let context = value(&["--context"], "NETPOLD_CONTEXT");
        let is_meant = plugin || kubeconfig.is_some() || context.is_some();
        let cluster =
            is_meant.then(|| ClusterArgs { kubeconfig, context, ..ClusterArgs::default() });
        Self { cluster, namespace: value(&["-n", "--namespace"], "NETPOLD_NAMESPACE") }
    }

    fn complete(&self, wanted: CompletionKind, word: &OsStr) -> Vec<CompletionCandidate> {
        let (Some(word), Some(cluster)) = (word.to_str().map(str::to_owned), self.cluster.clone())
        else {
            return Vec::new();
        };
        let (sender, answer) = mpsc::sync_channel(1);
        let (namespace, beginning) = (self.namespace.clone(), word.clone());
        // On a thread of its own: a name server's answer cannot be cancelled, but the process ends.
        thread::spawn(move || {
            let found = block_on(async {
                Ok(found(&cluster, namespace.as_deref(), wanted, &beginning).await)
            });
            let _ = sender.send(found.unwrap_or_default());
        });
        let found = answer.recv_timeout(PATIENCE).unwrap_or_default().into_iter();
        let mut found: Vec<String> = found.filter(|name| name.starts_with(&word)).collect();
        found.sort();
        found.dedup();
        found.into_iter().map(CompletionCandidate::new).collect()
    }
}

async fn found(
    cluster: &ClusterArgs,
    namespace: Option<&str>,
    wanted: CompletionKind,
    word: &str,
) -> Vec<String> {
    if wanted == CompletionKind::Context {
        return NameLister::contexts(cluster);
    }
    let Ok(names) = NameLister::open(cluster, namespace).await else { return Vec::new() };
    let prefixed = |prefix: &str, names: Vec<String>, suffix: &str| -> Vec<String> {
        names.into_iter().map(|name| format!("{prefix}{name}{suffix}")).collect()
    };
    let (prefix, kind, rest) = match word.strip_prefix(SERVICE) {
        Some(rest) if wanted == CompletionKind::Party => (SERVICE, ListedKind::Service, rest),
        Some(_) | None => ("", ListedKind::Pod, word),
    };
    match (wanted, rest.split_once('/')) {
        (CompletionKind::Context, _) => Vec::new(),
        (CompletionKind::Namespace, _) => names.namespaces().await,
        (CompletionKind::PodOfNamespace, _) => names.list(kind, None).await,
        (CompletionKind::Pod | CompletionKind::Party, Some((namespace, _))) => {
            prefixed(&format!("{prefix}{namespace}/"), names.list(kind, Some(namespace)).await, "")
        }
        (CompletionKind::Pod | CompletionKind::Party, None) => {
            let all = prefixed(prefix, names.namespaces().await, "/");
            if !prefix.is_empty() {
                return all;
            }
            let services = (wanted == CompletionKind::Party).then(|| SERVICE.to_owned());
            names.list(kind, None).await.into_iter().chain(all).chain(services).collect()
        }
    }
}

/// Kind of name that an argument takes, by its id and value name.
fn kind_of_argument(arg: &Arg) -> Option<CompletionKind> {
    let value =
        arg.get_value_names().and_then(|names| names.first()).map(clap::builder::Str::as_str);
    match (arg.get_id().as_str(), value) {
        ("context", _) => Some(CompletionKind::Context),
        ("namespace" | "agents_namespace", _) => Some(CompletionKind::Namespace),
        ("pod", Some("NAME")) => Some(CompletionKind::PodOfNamespace),
        ("pod", _) => Some(CompletionKind::Pod),
        ("from" | "to" | "peer", Some("WHO" | "PEER")) => Some(CompletionKind::Party),
        _ => None,
    }
}

/// Adds completion of names to the arguments of all subcommands.
pub(super) fn with_names(command: Command, typed: &Arc<TypedFlags>) -> Command {
    command.mut_subcommands(|sub| {
        sub.mut_args(|arg| {
            let Some(wanted) = kind_of_argument(&arg) else { return arg };
            let typed = Arc::clone(typed);
            arg.add(ArgValueCompleter::new(move |word: &OsStr| typed.complete(wanted, word)))
        })
    })
}

#[cfg(test)]
mod tests {
    use clap::Args;

    use super::*;
    use crate::flows::FlowsArgs;
    use crate::observe::ObserveArgs;
    use netpold_review::diff::DiffArgs;
    use netpold_review::explain::ExplainArgs;

    #[test]
    fn words_say_which_cluster_is_meant() {
        let read = |words: &str| {
            let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
            TypedFlags::read(&words, false)
        };
        assert!(read("netpold explain --from shop").cluster.is_none());
        let typed = read("netpold explain --context=a -n shop --from x --context b --to");
        assert_eq!(typed.cluster.unwrap().context.as_deref(), Some("b"));
        assert_eq!(typed.namespace.as_deref(), Some("shop"));
        for words in ["-n=shop", "-nshop", "--namespace=shop", "--namespace shop"] {
            let typed = read(&format!("netpold flows {words} --namespaces other --pod"));
            assert_eq!(typed.namespace.as_deref(), Some("shop"), "{words}");
        }
    }

    #[test]
    fn names_are_completed_where_they_are_asked_for() {
        fn of<A: Args>(id: &str) -> Option<CompletionKind> {
            let command = A::augment_args(Command::new("netpold"));
            kind_of_argument(command.get_arguments().find(|arg| arg.get_id() == id).unwrap())
        }
        assert_eq!(of::<ExplainArgs>("from"), Some(CompletionKind::Party));
        assert_eq!(of::<DiffArgs>("from"), None, "a directory");
        assert_eq!(of::<FlowsArgs>("pod"), Some(CompletionKind::PodOfNamespace));
        assert_eq!(of::<ObserveArgs>("pod"), Some(CompletionKind::Pod));
        assert_eq!(of::<ObserveArgs>("peer"), Some(CompletionKind::Party));
    }
}
