//! Container that a runtime (runc, which containerd runs too) creates from the DaemonSet.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use netpold_testbed::{Agent, Manifests, TestNode, Unmount};
use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::deploy::{INTERVAL, TIMEOUT};

/// Directories of the host, below a directory of the test, and the node they belong to.
pub(crate) struct Host<'a> {
    node: &'a TestNode,
    // Unmounted before its parent directory is removed.
    _bpffs: Unmount<PathBuf>,
    directory: TempDir,
}

impl<'a> Host<'a> {
    pub(crate) fn new(node: &'a TestNode) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let bpffs = below(&directory, "/sys/fs/bpf");
        fs::create_dir_all(&bpffs).unwrap();
        mount(Some("bpf"), &bpffs, Some("bpf"), MsFlags::empty(), None::<&str>).unwrap();
        Self { node, _bpffs: Unmount(bpffs), directory }
    }

    /// Starts the DaemonSet's container, with objects from files instead of an API server.
    pub(crate) fn start(&self, manifests: &Manifests) -> Container {
        let bundle = tempfile::tempdir().unwrap();
        let made = Command::new("runc").arg("spec").current_dir(&bundle).status().unwrap();
        assert!(made.success(), "runc spec");
        let path = bundle.path().join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let pod = daemon_set();
        let container = &pod["containers"][0];
        self.process(&mut config, container, manifests.directory());
        assert_eq!(pod["hostNetwork"], true);
        let namespaces = config["linux"]["namespaces"].as_array_mut().unwrap();
        let network = namespaces.iter_mut().find(|one| one["type"] == "network").unwrap();
        network["path"] = json!(self.node.netns().path());
        let limit = container["resources"]["limits"]["memory"].as_str().unwrap();
        let gibibytes: i64 = limit.strip_suffix("Gi").unwrap().parse().unwrap();
        config["linux"]["resources"]["memory"] = json!({ "limit": gibibytes << 30 });
        let mounts = config["mounts"].as_array_mut().unwrap();
        mounts.extend(self.volumes(&pod));
        mounts.extend(files(manifests.directory()));
        fs::create_dir(bundle.path().join("rootfs")).unwrap();
        fs::write(&path, config.to_string()).unwrap();
        Container::run(self.node.name(), bundle)
    }

    /// Sets identity, privileges, command line and environment.
    fn process(&self, config: &mut Value, container: &Value, manifests: &Path) {
        let security = &container["securityContext"];
        assert_eq!(security["privileged"], false);
        assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
        let added = security["capabilities"]["add"].as_array().unwrap().iter();
        let set: Vec<_> = added.map(|name| format!("CAP_{}", name.as_str().unwrap())).collect();
        let arguments = container["args"].as_array().unwrap().iter().cloned();
        let more = [json!("--manifests"), json!(manifests)];
        let arguments: Vec<_> =
            [json!("/netpold")].into_iter().chain(arguments).chain(more).collect();
        let variables = container["env"].as_array().unwrap().iter();
        let variables: Vec<_> = variables
            .map(|one| {
                let value = one["value"].as_str().unwrap_or(self.node.name());
                format!("{}={value}", one["name"].as_str().unwrap())
            })
            .collect();
        config["root"]["readonly"] = security["readOnlyRootFilesystem"].clone();
        config["process"] = json!({
            "terminal": false,
            "cwd": "/",
            "user": { "uid": security["runAsUser"], "gid": security["runAsGroup"] },
            "args": arguments,
            "env": variables,
            "capabilities": { "bounding": set, "effective": set, "permitted": set },
            "noNewPrivileges": security["allowPrivilegeEscalation"] == false,
        });
    }

    fn volumes(&self, pod: &Value) -> Vec<Value> {
        let volumes = pod["volumes"].as_array().unwrap();
        let mounted = pod["containers"][0]["volumeMounts"].as_array().unwrap().iter();
        mounted
            .map(|place| {
                let volume = volumes.iter().find(|one| one["name"] == place["name"]).unwrap();
                let destination = &place["mountPath"];
                let Some(path) = volume["hostPath"]["path"].as_str() else {
                    return json!({ "destination": destination, "type": "tmpfs", "source": "tmpfs" });
                };
                let source = below(&self.directory, path);
                fs::create_dir_all(&source).unwrap();
                let changes = if place["readOnly"] == true { "ro" } else { "rw" };
                let follows = place["mountPropagation"] == "HostToContainer";
                let propagation = if follows { "rslave" } else { "rprivate" };
                bind(&source, destination, &[changes, propagation])
            })
            .collect()
    }
}

fn below(directory: &TempDir, path: &str) -> PathBuf {
    directory.path().join(path.trim_start_matches('/'))
}

fn bind(source: &Path, destination: &Value, options: &[&str]) -> Value {
    let options: Vec<&str> = ["rbind"].iter().chain(options).copied().collect();
    json!({ "destination": destination, "type": "bind", "source": source, "options": options })
}

/// Returns the mounts of the tested program, of the libraries that the image's program has linked in, and of the
/// objects.
fn files(manifests: &Path) -> Vec<Value> {
    let program = (Path::new(env!("CARGO_BIN_EXE_netpold")), json!("/netpold"));
    let libraries = ["/lib", "/lib64", "/usr/lib"].map(Path::new);
    let libraries = libraries.into_iter().filter(|path| path.is_dir());
    let same = libraries.chain([manifests]).map(|path| (path, json!(path)));
    same.chain([program]).map(|(source, place)| bind(source, &place, &["ro", "rprivate"])).collect()
}

/// Returns the DaemonSet's pod.
fn daemon_set() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/base/daemonset.yaml");
    let text = fs::read_to_string(path).unwrap();
    let mut set: Value = serde_saphyr::from_str(&text).unwrap();
    set["spec"]["template"]["spec"].take()
}

/// Running container, removed on drop.
pub(crate) struct Container {
    name: String,
    bundle: TempDir,
    child: Child,
}

impl Container {
    fn run(name: &str, bundle: TempDir) -> Self {
        let log = File::create(bundle.path().join("log")).unwrap();
        let child = runc(&bundle)
            .args(["run", "--bundle"])
            .arg(bundle.path())
            .arg(name)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { name: name.to_owned(), bundle, child }
    }

    /// Waits until the agent's status, read as by `kubectl exec`, fulfils a condition.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, what: &str, condition: impl Fn(&Value) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let mut status = runc(&self.bundle);
            let status = status.args(["exec", &self.name, "/netpold", "status", "-o", "json"]);
            let status = status.output().unwrap();
            let told: Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
            if Agent::enforces(&told) && condition(&told) {
                return;
            }
            let log = || fs::read_to_string(self.bundle.path().join("log")).unwrap_or_default();
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended ({ended:?}):\n{}", log());
            assert!(Instant::now() < deadline, "not {what}: {told}\n{}", log());
            std::thread::sleep(INTERVAL);
        }
    }

    /// Kills the container, as a runtime does after the grace period.
    pub(crate) fn kill(mut self) {
        let killed = runc(&self.bundle).args(["kill", &self.name, "KILL"]).status().unwrap();
        assert!(killed.success(), "runc kill");
        self.child.wait().unwrap();
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = runc(&self.bundle)
            .args(["delete", "--force", &self.name])
            .stderr(Stdio::null())
            .status();
        let _ = self.child.wait();
    }
}

/// Returns a `runc` command with a state directory of the test.
fn runc(bundle: &TempDir) -> Command {
    let mut command = Command::new("runc");
    command.arg("--root").arg(bundle.path().join("runc"));
    command
}
