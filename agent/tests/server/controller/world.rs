//! API server, and controllers that have only their own rights.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use netpold_testbed::{ApiServer, Credential, require_apiserver};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// Deadline of an expected change, long enough for a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
const INTERVAL: Duration = Duration::from_millis(100);
pub(crate) const NAMESPACE: &str = "shop";
/// User name of the controller's service account.
pub(crate) const USER: &str = "system:serviceaccount:netpold-system:netpold-controller";
/// Kinds of the manifest that the tests create: the server has no `policy/v1`, and no controller runs Deployments.
const CREATED: [&str; 5] =
    ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];

/// Controller process, killed on drop.
pub(crate) struct Controller {
    child: Child,
    log: PathBuf,
}

impl Controller {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Sends a signal that ends the process, and waits for its exit.
    pub(crate) fn end(&mut self, signal: Signal) {
        self.signal(signal);
        self.child.wait().unwrap();
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "{}:\n{}", self.log.display(), self.log());
        }
    }
}

pub(crate) struct World {
    pub(crate) server: ApiServer,
}

impl World {
    /// Starts a server with netpold's kinds and the controller's rights; `None` where the test cannot run.
    pub(crate) fn new(test: &str) -> Option<Self> {
        if !require_apiserver(test) {
            return None;
        }
        let world = Self { server: ApiServer::start().unwrap() };
        world.server.create_namespace("netpold-system").unwrap();
        world.server.create_namespace(NAMESPACE).unwrap();
        world.server.define(&std::fs::read_to_string(base("crds.yaml")).unwrap()).unwrap();
        let rights = manifest().into_iter();
        let rights = rights.filter(|it| CREATED.contains(&it["kind"].as_str().unwrap()));
        let list =
            json!({ "apiVersion": "v1", "kind": "List", "items": rights.collect::<Vec<_>>() });
        world.server.apply(&list.to_string()).unwrap();
        Some(world)
    }

    /// Starts a controller with the given identity.
    pub(crate) fn start(&self, name: &str, more: &[&str]) -> Controller {
        let token = self.server.token("netpold-system", "netpold-controller").unwrap();
        let kubeconfig = self.server.write_kubeconfig(name, &Credential::Token(&token)).unwrap();
        let log = self.server.directory().join(format!("{name}.log"));
        let child = Command::new(env!("CARGO_BIN_EXE_netpold"))
            .args(["controller", "--identity", name, "--kubeconfig"])
            .arg(kubeconfig)
            .args(["--log", "info,netpold_controller=debug"])
            .args(if more.contains(&"--webhook-listen") {
                &[][..]
            } else {
                &["--webhook-listen", "127.0.0.1:0"]
            })
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Controller { child, log }
    }

    pub(crate) fn create(&self, object: &Value) {
        self.server.create(object).unwrap();
    }

    pub(crate) fn node(&self, name: &str) {
        self.create(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } }));
    }

    /// Creates a pod of an app, as a scheduler leaves it.
    pub(crate) fn pod(&self, name: &str, app: &str, node: &str) {
        let metadata = json!({ "namespace": NAMESPACE, "name": name, "labels": { "app": app } });
        let containers = json!([{ "name": "main", "image": "example/main" }]);
        let spec = json!({ "nodeName": node, "containers": containers });
        self.create(
            &json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec }),
        );
    }

    /// Applies a policy for the pods of an app, with the given number of rules.
    pub(crate) fn policy(&self, name: &str, app: &str, rules: usize) {
        let policy = json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": { "namespace": NAMESPACE, "name": name },
            "spec": {
                "podSelector": { "matchLabels": { "app": app } },
                "ingress": vec![json!({}); rules],
            },
        });
        self.server.replace(&policy).unwrap();
    }

    /// Installs the definition of ClusterNetworkPolicy.
    pub(crate) fn serve_cluster_policies(&self) {
        self.server.define(include_str!("../apiserver/cluster-network-policy.yaml")).unwrap();
    }

    /// Applies a ClusterNetworkPolicy for the pods of namespaces with `tenant=red`.
    pub(crate) fn cluster_policy(&self, priority: i32) {
        let policy = json!({
            "apiVersion": "policy.networking.k8s.io/v1alpha2",
            "kind": "ClusterNetworkPolicy",
            "metadata": { "name": "tenants" },
            "spec": {
                "tier": "Admin", "priority": priority,
                "subject": { "namespaces": { "matchLabels": { "tenant": "red" } } },
            },
        });
        self.server.replace(&policy).unwrap();
    }

    /// Returns an object, or with an empty name, a list.
    pub(crate) fn get(&self, kind: &str, namespace: &str, name: &str) -> Value {
        self.server.get(kind, namespace, name).unwrap().unwrap()
    }

    /// Writes the report of a node's agent, dated `minutes` ago: name, enforcement and message of each policy; the name
    /// of a ClusterNetworkPolicy begins with a slash.
    pub(crate) fn report(&self, node: &str, minutes: i64, policies: &[(&str, bool, &str)]) {
        let entry = |(name, enforced, message): &(&str, bool, &str)| {
            let (kind, namespace, name) = match name.strip_prefix('/') {
                Some(name) => ("clusternetworkpolicy", "", name),
                None => ("networkpolicy", NAMESPACE, *name),
            };
            let policy = self.get(kind, NAMESPACE, name);
            let mut entry = json!({
                "name": name, "pods": 1, "enforced": enforced,
                "uid": policy["metadata"]["uid"], "observedGeneration": policy["metadata"]["generation"],
            });
            // Agents omit empty fields.
            if !namespace.is_empty() {
                entry["namespace"] = json!(namespace);
            }
            if !message.is_empty() {
                entry["message"] = json!(message);
            }
            entry
        };
        let renewed = Timestamp::now() - SignedDuration::from_mins(minutes);
        let status = json!({
            "agentVersion": "0", "renewTime": Timestamp::from_second(renewed.as_second()).unwrap().to_string(),
            "policies": policies.iter().map(entry).collect::<Vec<_>>(),
        });
        let object = json!({
            "apiVersion": "netpold.io/v1alpha1", "kind": "NodePolicyStatus", "metadata": { "name": node },
            "status": status,
        });
        if self.server.get("nodepolicystatus", "", node).unwrap().is_none() {
            self.server.create(&object).unwrap();
        }
        self.server.write_status(&object).unwrap();
    }

    /// Returns a policy's status, if it has one.
    pub(crate) fn status(&self, policy: &str) -> Option<Value> {
        self.server.get("networkpolicystatus", NAMESPACE, policy).unwrap()
    }

    /// Waits until a policy's status has these counts (desired, enforced and failed nodes) and this condition
    /// `Enforcing` (status and reason).
    #[track_caller]
    pub(crate) fn becomes(&self, policy: &str, nodes: [i64; 3], enforcing: [&str; 2]) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let object = self.status(policy).unwrap_or_default();
            let said = &object["status"];
            let counts = ["desired", "enforced", "failed"]
                .map(|name| said["nodes"][name].as_i64().unwrap_or(-1));
            let found = condition(said, "Enforcing");
            if counts == nodes && found["status"] == enforcing[0] && found["reason"] == enforcing[1]
            {
                return object;
            }
            assert!(Instant::now() < deadline, "not {nodes:?}, {enforcing:?}: {object:#}");
            std::thread::sleep(INTERVAL);
        }
    }
}

/// Waits until the condition holds.
#[track_caller]
pub(crate) fn wait(what: &str, condition: impl FnMut() -> bool) {
    netpold_testbed::cluster::eventually_at(INTERVAL, PATIENCE, condition, || {
        format!("not {what}")
    });
}

pub(crate) fn condition<'s>(status: &'s Value, name: &str) -> &'s Value {
    let all = status["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    all.iter().find(|it| it["type"] == name).unwrap_or(&Value::Null)
}

fn base(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/base").join(name)
}

/// Returns the objects of `deploy/base/controller.yaml`, with the right that the chart adds with readinessGate.mode=webhook.
pub(crate) fn manifest() -> Vec<Value> {
    let text = std::fs::read_to_string(base("controller.yaml")).unwrap();
    let [without, with] = ["[get, list, watch]", "[get, list, watch, patch]"];
    let of_webhook =
        |verbs| format!("  resourceNames: [netpold-readiness-gate]\n  verbs: {verbs}\n");
    assert!(text.contains(&of_webhook(without)));
    serde_saphyr::from_multiple(&text.replace(&of_webhook(without), &of_webhook(with))).unwrap()
}
