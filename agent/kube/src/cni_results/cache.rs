//! Results of CNI plugins, as libcni caches them: a JSON file for each attachment, written after ADD and removed by DEL
//! (`cniCacheV1`, libcni 0.7 and later, in `/var/lib/cni/results`).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc as events;
use std::time::{Duration, Instant, SystemTime};

use ipnet::IpNet;
pub use netpold_core::bindings::CniResult;
use netpold_core::model::Key;
use notify::event::{AccessKind, AccessMode, EventKind};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;
use tracing::{debug, warn};

use super::static_pods::StaticPods;
use crate::watched::{Stamp, WatchedDirectory};

/// Name that the kubelet gives to a pod's first interface; other names are attachments to further networks.
const INTERFACE: &str = "eth0";
/// Longest time between two scans of the directory.
const RESCAN: Duration = Duration::from_secs(5);
/// Maximum number of bytes read of a result; no result is larger.
const MAX_BYTES: u64 = 1 << 20;

/// The used fields of a file.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cached {
    kind: String,
    if_name: String,
    #[serde(default)]
    cni_args: Vec<(String, String)>,
    result: Option<AddResult>,
}

/// A result of CNI 0.3.0 or later; older ones have no `ips` and are not read.
#[derive(Deserialize)]
struct AddResult {
    #[serde(default)]
    interfaces: Vec<Value>,
    #[serde(default)]
    ips: Vec<Ip>,
}

#[derive(Deserialize)]
struct Ip {
    address: IpNet,
    interface: Option<usize>,
}

impl AddResult {
    fn is_sandboxed(interface: &Value) -> bool {
        interface["sandbox"].as_str().is_some_and(|path| !path.is_empty())
    }

    /// Returns the names of the interfaces outside of a sandbox: the host side of the veth, and a bridge.
    fn host_interfaces(&self) -> Vec<String> {
        let outside = self.interfaces.iter().filter(|interface| !Self::is_sandboxed(interface));
        outside.filter_map(|interface| interface["name"].as_str().map(str::to_owned)).collect()
    }

    /// Returns the hardware address of the pod's interface.
    fn station(&self, name: &str) -> Option<[u8; 6]> {
        let own = |it: &&Value| Self::is_sandboxed(it) && it["name"].as_str() == Some(name);
        let text = self.interfaces.iter().find(own)?["mac"].as_str()?;
        let mut octets = text.split(':').map(|octet| u8::from_str_radix(octet, 16).ok());
        let mut station = [0; 6];
        for octet in &mut station {
            *octet = octets.next()??;
        }
        (octets.next().is_none() && station != [0; 6]).then_some(station)
    }

    /// Returns the pod's addresses: those of an interface in a sandbox, or without an interface.
    fn addresses(&self) -> Vec<IpAddr> {
        let sandboxed = |index: usize| self.interfaces.get(index).is_some_and(Self::is_sandboxed);
        let inside = self.ips.iter().filter(|ip| ip.interface.is_none_or(sandboxed));
        let mut addresses: Vec<IpAddr> = inside.map(|ip| ip.address.addr()).collect();
        addresses.sort();
        addresses.dedup();
        addresses
    }
}

/// Parses a file's content; `None` if it has no addresses or interfaces of a pod.
///
/// # Errors
/// The content is not in libcni's format, or incomplete.
pub fn parse(bytes: &[u8]) -> Result<Option<CniResult>, serde_json::Error> {
    let cached: Cached = serde_json::from_slice(bytes)?;
    let argument = |name| cached.cni_args.iter().rev().find(|(n, _)| n == name).map(|(_, v)| &**v);
    let (Some(namespace), Some(name)) = (argument("K8S_POD_NAMESPACE"), argument("K8S_POD_NAME"))
    else {
        return Ok(None);
    };
    let addresses = cached.result.as_ref().map(AddResult::addresses).unwrap_or_default();
    let interfaces = cached.result.as_ref().map(AddResult::host_interfaces).unwrap_or_default();
    let further = cached.if_name != INTERFACE;
    let station = cached.result.as_ref().and_then(|result| result.station(&cached.if_name));
    let says = !addresses.is_empty() || further && !interfaces.is_empty();
    Ok((cached.kind == "cniCacheV1" && says).then(|| CniResult {
        further,
        pod: Key::new(namespace, name),
        uid: argument("K8S_POD_UID").unwrap_or_default().to_owned(),
        addresses,
        interfaces,
        station,
        manifest: None,
    }))
}

/// Follows the directory, which need not exist, in a thread that ends with the receiver. Its current content has been
/// read on return. Results for static pods are completed from the manifests.
///
/// # Errors
/// The thread cannot be started.
pub fn follow(
    directory: PathBuf,
    manifests: StaticPods,
) -> io::Result<watch::Receiver<Vec<CniResult>>> {
    let mut follower = CniFollower::new(directory, manifests);
    let (sender, results) = watch::channel(follower.scan_results());
    let thread = std::thread::Builder::new().name("cni-results".into());
    thread.spawn(move || follower.run(&sender))?;
    Ok(results)
}

/// Parsed content of a file.
struct ParsedFile {
    stamp: Stamp,
    written: SystemTime,
    result: Option<CniResult>,
}

/// Returns whether the content of a file may differ after an event.
fn may_change(event: &notify::Event) -> bool {
    if let EventKind::Access(kind) = event.kind {
        kind == AccessKind::Close(AccessMode::Write)
    } else {
        true
    }
}

struct CniFollower {
    directory: PathBuf,
    manifests: StaticPods,
    watched: WatchedDirectory,
    events: events::Receiver<notify::Result<notify::Event>>,
    files: BTreeMap<PathBuf, ParsedFile>,
    complained: bool,
}

impl CniFollower {
    fn new(directory: PathBuf, manifests: StaticPods) -> Self {
        let (sender, events) = events::channel();
        let watched = WatchedDirectory::new(&directory, sender);
        Self { directory, manifests, watched, events, files: BTreeMap::new(), complained: false }
    }

    fn run(mut self, results: &watch::Sender<Vec<CniResult>>) {
        while !results.is_closed() {
            let now = self.scan_results();
            results.send_if_modified(|before| {
                let modified = *before != now;
                *before = now;
                modified
            });
            self.wait();
        }
    }

    /// Scans the directory; returns the current results.
    fn scan_results(&mut self) -> Vec<CniResult> {
        self.watched.renew();
        match self.scan() {
            Ok(()) => self.complained = false,
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.files.clear(),
            Err(error) => self.complain(&error),
        }
        let mut now = self.results();
        self.manifests.complete(&mut now);
        now
    }

    /// Logs an error once. The known results stay: the directory may become readable again.
    fn complain(&mut self, error: &io::Error) {
        if !self.complained {
            let directory = self.directory.display();
            warn!("--cni-results {directory}: {error}; pods are known by their status only");
        }
        self.complained = true;
    }

    /// Waits for an event that may have changed a file. Opening a file, as scans do, changes none. The next scan
    /// handles events that arrive during a scan.
    fn wait(&mut self) {
        let deadline = Instant::now() + RESCAN;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(Ok(event)) => {
                    self.watched.handle_event(&event);
                    if may_change(&event) {
                        return;
                    }
                }
                Ok(Err(_)) | Err(_) => return,
            }
        }
    }

    fn scan(&mut self) -> io::Result<()> {
        let entries = fs::read_dir(&self.directory)?;
        let paths = entries.map(|entry| entry.map(|entry| entry.path()));
        let paths: Vec<PathBuf> = paths.collect::<io::Result<_>>()?;
        // A file that has vanished meanwhile is skipped.
        let there =
            paths.into_iter().filter_map(|path| Some((path.clone(), self.parse_file(&path)?)));
        self.files = there.collect();
        Ok(())
    }

    fn parse_file(&mut self, path: &Path) -> Option<ParsedFile> {
        let stamp = Stamp::of(&fs::metadata(path).ok()?);
        if let Some(seen) = self.files.remove(path).filter(|seen| seen.stamp == stamp) {
            return Some(seen);
        }
        let file = File::open(path).ok()?;
        let metadata = file.metadata().ok()?;
        let (stamp, written) = (Stamp::of(&metadata), metadata.modified().ok()?);
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
        // libcni writes in place: half a file is not a result yet, and the other half causes an event.
        let result = parse(&bytes).unwrap_or_else(|error| {
            debug!("{}: {error}; not read", path.display());
            None
        });
        Some(ParsedFile { stamp, written, result })
    }

    /// Returns the results in the order of writing.
    fn results(&self) -> Vec<CniResult> {
        let mut files: Vec<&ParsedFile> = self.files.values().collect();
        files.sort_by_key(|seen| seen.written);
        files.into_iter().filter_map(|seen| seen.result.clone()).collect()
    }
}
