//! One tenant writes arbitrary objects into its namespace, including objects that no API server accepts. Meanwhile
//! another tenant's policies keep their meaning, and its edits take effect.
//!
//! Objects are JSON and pass the conversion of the API server's source on their way to the compiler.
//! `NETPOLD_TENANT_SECONDS`: duration; default 120 if `CI=true`, else 10. `NETPOLD_TENANT_SEED`: first seed.

mod objects;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use netpold_core::compile::Compiler;
use netpold_core::model::{Change, Direction, Interface, Key};
use netpold_core::ops::TableWriter;
use netpold_core::options::Options;
use netpold_engine::unsupported_policies;
use netpold_kube::convert::{Kind, read};
use netpold_testkit::memory::MemoryTables;
use netpold_testkit::oracle::Oracle;
use netpold_testkit::random::Random;

use self::objects::{BAD, NAMES, flood, hostile, kind};

/// Namespace of the hostile tenant.
const HOSTILE: &str = "mallory";
/// Namespace of the tenant that must not be affected.
const OTHER: &str = "shop";
/// Bound of each of the other tenant's edits, on a busy machine and without optimization.
const EDIT: Duration = Duration::from_secs(10);
/// Bound of the test's peak memory, below the DaemonSet's limit.
const MEMORY_KIB: u64 = 1 << 20;
/// Duration in seconds, under CI and without.
const LONG: u64 = 120;
const SHORT: u64 = 10;
/// Number of rounds from one seed.
const ROUNDS: usize = 30;
const NODE: &str = "n1";

struct World {
    compiler: Compiler,
    tables: MemoryTables,
    oracle: Oracle,
    /// The hostile tenant's objects, by kind and name.
    hostile: BTreeMap<(String, &'static str), Change>,
    interfaces: BTreeMap<IpAddr, u32>,
    /// Numbers of hostile objects that were decoded, were not decoded, and changed nothing.
    counts: [usize; 3],
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            compiler: Compiler::new(Options { node: NODE.into(), ..Options::default() }),
            tables: MemoryTables::new(),
            oracle: Oracle::default(),
            hostile: BTreeMap::new(),
            interfaces: BTreeMap::new(),
            counts: [0; 3],
        };
        for namespace in [HOSTILE, OTHER] {
            let metadata = format!(r#""name":"{namespace}","labels":{{"team":"{namespace}"}}"#);
            world.good(Kind::Namespace, &format!(r#"{{"metadata":{{{metadata}}}}}"#));
        }
        let status = r#"{"addresses":[{"type":"InternalIP","address":"10.9.0.1"}]}"#;
        world.good(Kind::Node, &format!(r#"{{"metadata":{{"name":"{NODE}"}},"status":{status}}}"#));
        for number in 1..=4_u32 {
            world.good(Kind::Pod, &pod(OTHER, &format!("v{number}"), &format!("10.0.0.{number}")));
            world.interface(number, &format!("10.0.0.{number}"));
            world.interface(10 + number, &format!("10.1.0.{number}"));
        }
        world.good(
            Kind::Service,
            &other(r#""name":"web""#, r#"{"clusterIP":"10.96.0.1","ports":[{"port":80}]}"#),
        );
        let slice = r#""addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"]}],"ports":[{"port":80}]"#;
        let labels = r#""name":"web","labels":{"kubernetes.io/service-name":"web"}"#;
        world.good(
            Kind::EndpointSlice,
            &format!(r#"{{"metadata":{{"namespace":"{OTHER}",{labels}}},{slice}}}"#),
        );
        let out = r#"{"ipBlock":{"cidr":"192.0.2.0/24","except":["192.0.2.128/25"]}}"#;
        let shop = r#"{"podSelector":{"matchLabels":{"app":"v1"}}}"#;
        world.policy(
            "v2",
            &format!(
                r#""egress":[{{"to":[{out},{shop}],"ports":[{{"port":80}},{{"port":443}}]}}]"#
            ),
        );
        let team = format!(r#"{{"namespaceSelector":{{"matchLabels":{{"team":"{OTHER}"}}}}}}"#);
        world.policy(
            "v3",
            &format!(r#""ingress":[{{"from":[{team}]}}],"egress":[{{"to":[{team}]}}]"#),
        );
        world.edit(0);
        world.broken();
        world.update();
        world
    }

    /// Adds a policy of the other tenant with an unsupported part, which an Event must report.
    fn broken(&mut self) {
        let spec = format!(
            r#"{{"podSelector":{{"matchLabels":{{"app":"v4"}}}},"ingress":[{{"from":[{BAD}]}}]}}"#
        );
        let json = other(r#""name":"broken""#, &spec);
        let read = read(Kind::NetworkPolicy, json.as_bytes(), true);
        assert!(!read.problems.is_empty(), "{json}");
        self.apply(read.change.expect("it can be decoded"));
    }

    /// Writes very many policies of the hostile tenant, or deletes them again.
    fn flood(&mut self, is_there: bool) {
        for json in flood() {
            let change = read(Kind::NetworkPolicy, json.as_bytes(), true).change;
            let change = change.expect("it can be decoded");
            self.apply(if is_there { change } else { change.removal() });
        }
    }

    /// Asserts that the other tenant's policy is among the policies that get Events.
    fn check_events(&self) {
        let named = unsupported_policies(&self.compiler);
        let broken = Key::new(OTHER, "broken");
        assert!(named.contains_key(&broken), "it is not among {}", named.len());
    }

    fn interface(&mut self, index: u32, address: &str) {
        let address: IpAddr = address.parse().expect("an address");
        self.interfaces.insert(address, index);
        let addresses = vec![address];
        self.compiler.ingest(Change::Interface(Interface {
            index,
            incarnation: 1,
            addresses,
            ..Interface::default()
        }));
    }

    fn apply(&mut self, change: Change) {
        self.compiler.ingest(change.clone());
        self.oracle.ingest(change);
    }

    fn good(&mut self, kind: Kind, json: &str) {
        let read = read(kind, json.as_bytes(), true);
        assert_eq!(read.problems, [], "{json}");
        self.apply(read.change.expect("it can be decoded"));
    }

    /// Adds a policy for one of the other tenant's pods.
    fn policy(&mut self, app: &str, rules: &str) {
        let spec = format!(r#"{{"podSelector":{{"matchLabels":{{"app":"{app}"}}}},{rules}}}"#);
        self.good(Kind::NetworkPolicy, &other(&format!(r#""name":"{app}""#), &spec));
    }

    /// Edits the other tenant's policy: changes the pod that reaches its first pod.
    fn edit(&mut self, round: usize) {
        let from = format!(r#"{{"podSelector":{{"matchLabels":{{"app":"v{}"}}}}}}"#, 2 + round % 3);
        self.policy("v1", &format!(r#""ingress":[{{"from":[{from}],"ports":[{{"port":80}}]}}]"#));
    }

    fn update(&mut self) -> Duration {
        let began = Instant::now();
        let ops = self.compiler.update().expect("the tables are large enough");
        let took = began.elapsed();
        for op in &ops {
            self.tables.write(op).expect("operations are in order");
        }
        self.compiler.grace_passed();
        took
    }

    /// Writes or deletes an object of the hostile tenant. An object with another name or namespace than its request
    /// cannot come from an API server.
    fn act(&mut self, random: &mut Random) {
        let (name, kind) = (NAMES[random.below(NAMES.len())], kind(random));
        let key = (format!("{kind:?}"), name);
        if random.below(5) == 0 {
            if let Some(gone) = self.hostile.remove(&key) {
                self.apply(gone.removal());
            }
            return;
        }
        let number = 1 + NAMES.iter().position(|n| *n == name).unwrap_or_default();
        let json = hostile(kind, name, random);
        let read = read(kind, &json, true);
        assert!(read.undecoded <= !read.problems.is_empty());
        for problem in &read.problems {
            assert!(problem.to_string().len() < 1000, "{problem}");
        }
        self.counts[usize::from(read.undecoded)] += 1;
        let Some(mut change) = read.change else {
            self.counts[2] += 1;
            return;
        };
        if let Change::Pod(pod) = &mut change {
            // The kubelet sets the address, not the tenant.
            pod.addresses = vec![IpAddr::from([10, 1, 0, number as u8])];
        }
        let expected = Key::new(HOSTILE, name);
        if !matches!(&change,
            Change::Pod(netpold_core::model::Pod { key, .. })
            | Change::Policy(netpold_core::model::Policy { key, .. })
            | Change::Service(netpold_core::model::Service { key, .. })
            | Change::EndpointSlice(netpold_core::model::EndpointSlice { key, .. })
                if *key == expected)
        {
            return;
        }
        self.hostile.insert(key, change.clone());
        self.apply(change);
    }

    /// Asserts that the tables have the oracle's verdicts for the other tenant's pods. The hostile tenant's own pods
    /// may be closed beyond these, for the cost of its objects.
    fn check(&self) {
        let remotes = [
            "10.0.0.1",
            "10.0.0.2",
            "10.0.0.3",
            "10.0.0.4",
            "10.1.0.1",
            "10.1.0.2",
            "10.1.0.3",
            "10.1.0.4",
            "192.0.2.1",
            "192.0.2.129",
            "198.51.100.1",
            "10.96.0.1",
            "10.96.7.7",
            "10.9.0.1",
            "2001:db8::1",
        ];
        for pod in self.oracle.pods.iter().filter(|pod| pod.key.namespace == OTHER) {
            let ifindex = self.interfaces[&pod.addresses[0]];
            for remote in remotes.map(|text| text.parse::<IpAddr>().expect("an address")) {
                if pod.addresses.contains(&remote) {
                    continue;
                }
                for direction in [Direction::Ingress, Direction::Egress] {
                    for (protocol, port) in [(6, 80), (6, 443), (17, 80), (6, 8080), (1, 0)] {
                        let expected = self.oracle.judge(pod, direction, remote, protocol, port);
                        let found = self.tables.allows(ifindex, direction, remote, protocol, port);
                        assert_eq!(
                            found,
                            Some(expected),
                            "{} {direction:?} {remote} {protocol}/{port} beside {:#?}",
                            pod.key,
                            self.hostile
                        );
                    }
                }
            }
        }
    }
}

fn pod(namespace: &str, name: &str, address: &str) -> String {
    format!(
        r#"{{"metadata":{{"namespace":"{namespace}","name":"{name}","labels":{{"app":"{name}"}}}},
            "spec":{{"nodeName":"{NODE}"}},"status":{{"podIP":"{address}"}}}}"#
    )
}

fn other(metadata: &str, spec: &str) -> String {
    format!(r#"{{"metadata":{{"namespace":"{OTHER}",{metadata}}},"spec":{spec}}}"#)
}

/// Returns `VmHWM` in KiB: the peak of resident memory.
fn most_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    line.split_whitespace().next().and_then(|text| text.parse().ok()).expect("a number")
}

fn environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect(name))
}

#[test]
fn one_tenant_does_not_harm_another() {
    let ci = std::env::var("CI").is_ok_and(|value| value == "true");
    let seconds = environment("NETPOLD_TENANT_SECONDS", if ci { LONG } else { SHORT });
    let until = Instant::now() + Duration::from_secs(seconds);
    let first = environment("NETPOLD_TENANT_SEED", 1);
    println!("NETPOLD_TENANT_SEED={first} for {seconds} s");
    let (mut seed, mut edits, mut counts) = (first, Vec::new(), [0; 3]);
    while Instant::now() < until {
        let began = Instant::now();
        let run = std::panic::catch_unwind(|| {
            let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            let (mut world, mut edits) = (World::new(), Vec::new());
            // Large policies are left to the successor, as in the engine, or compiled here, as by the successor.
            world.compiler.defer((seed % 2 == 0).then(BTreeSet::new));
            for round in 1..=ROUNDS {
                (0..=random.below(5)).for_each(|_| world.act(&mut random));
                world.update();
                world.edit(round);
                edits.push(world.update());
                world.check();
                world.check_events();
                match round % 10 {
                    3 => world.flood(true),
                    6 => world.flood(false),
                    _ => {}
                }
            }
            (edits, world.counts)
        });
        match run {
            Ok((more, of_run)) => {
                edits.extend(more);
                counts.iter_mut().zip(of_run).for_each(|(count, more)| *count += more);
            }
            Err(panic) => {
                println!("NETPOLD_TENANT_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
        seed += 1;
        // Leaves half of a CPU to other tests.
        std::thread::sleep(began.elapsed());
    }
    edits.sort_unstable();
    let (most, memory) = (edits.last().copied().unwrap_or_default(), most_memory());
    println!(
        "{} seeds, {} hostile objects, {} of them cannot be decoded; {} edits of the other tenant: \
         half within {:?}, all within {most:?}; {} MiB",
        seed - first,
        counts[0] + counts[1],
        counts[1],
        edits.len(),
        edits.get(edits.len() / 2).copied().unwrap_or_default(),
        memory / 1024
    );
    assert!(counts.iter().all(|count| *count > 0), "of each sort: {counts:?}");
    assert!(most < EDIT, "{most:?}");
    assert!(memory < MEMORY_KIB, "{memory} KiB");
}
