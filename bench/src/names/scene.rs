//! A node with a client pod, a resolver, and a server that has all addresses of the answers.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netpold_core::lock::lock;
use netpold_testbed::cluster::TestCluster;
use netpold_testbed::{Agent, Cni, TestPod};
use serde_json::{Value, json};

use crate::{agent, host};

/// Port of the resolver.
const DNS: u16 = 53;
/// Port of the server, over TCP and UDP.
pub(crate) const PORT: u16 = 443;
/// Time within which an answer or a datagram must arrive on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Function that returns the resolver's answer to a question.
pub(crate) type Answers = fn(&[u8]) -> Option<Vec<u8>>;

/// A node, without an agent until [`Scene::enforce`].
pub(crate) struct Scene {
    cluster: TestCluster,
    /// Numbers of the datagrams that arrived.
    arrived: Arc<Mutex<HashSet<u32>>>,
}

impl Scene {
    /// Sets the node up, with a resolver that gives these answers.
    ///
    /// # Errors
    /// A socket cannot be opened.
    pub(crate) fn new(answers: Answers) -> Result<Self> {
        let cluster = TestCluster::one(Cni::Ptp).with_pods(&["client", "server", "dns"]);
        let server = cluster.pod("server");
        let blocks = ["198.18.0.0/15", "2001:db8:9::/48"];
        let local = blocks.map(|block| format!("route add local {block} dev lo\n"));
        server.netns().ip(&local.concat())?;
        let via = blocks.iter().zip(server.addresses());
        let via = via.map(|(block, server)| format!("route add {block} via {server}\n"));
        cluster.nodes[0].netns().ip(&via.collect::<String>())?;
        for address in cluster.pod("dns").addresses() {
            let socket = open(cluster.pod("dns"), (*address, DNS).into())?;
            thread::spawn(move || resolve(&socket, answers));
        }
        let any = SocketAddr::from(([0_u16; 8], PORT));
        let listener = server.run(|| TcpListener::bind(any))??;
        thread::spawn(move || listener.incoming().for_each(drop));
        let (socket, arrived) = (open(server, any)?, Arc::default());
        let scene = Self { cluster, arrived: Arc::clone(&arrived) };
        thread::spawn(move || receive(&socket, &arrived));
        Ok(scene)
    }

    /// Starts an agent, with these names for the client and nothing else.
    ///
    /// # Errors
    /// There is no agent's binary.
    pub(crate) fn enforce(&mut self, names: &[String]) -> Result<()> {
        let resolvers = self.cluster.pod("dns").addresses().to_vec();
        let list: Vec<String> = resolvers.iter().map(ToString::to_string).collect();
        let servers = list.join(",");
        // The server answers from addresses that are not its own.
        let arguments = ["--dns-servers", &servers, "--take-over", "--check-source", "isolated"];
        self.cluster.arguments = arguments.map(str::to_owned).to_vec();
        self.cluster.objects.push(policy(&resolvers, names));
        agent::start(&mut self.cluster)
    }

    /// The cluster, to end and start its agent.
    pub(crate) const fn cluster_mut(&mut self) -> &mut TestCluster {
        &mut self.cluster
    }

    /// The agent.
    pub(crate) fn agent(&self) -> &Agent {
        &self.cluster.agents[0]
    }

    /// The client pod.
    pub(crate) fn client(&self) -> &TestPod {
        self.cluster.pod("client")
    }

    /// Sockets of the client.
    ///
    /// # Errors
    /// They cannot be opened.
    pub(crate) fn asker(&self) -> Result<Asker> {
        self.client().run(|| Asker::here(self.cluster.pod("dns").addresses()))?
    }

    /// Sockets of a thread in the client's namespace.
    ///
    /// # Errors
    /// They cannot be opened.
    pub(crate) fn asker_here(&self) -> Result<Asker> {
        Asker::here(self.cluster.pod("dns").addresses())
    }

    /// Forgets the datagrams that arrived.
    pub(crate) fn forget(&self) {
        lock(&self.arrived).clear();
    }

    /// Waits for the datagrams with these numbers, at most for `patience`; returns the numbers that did not arrive.
    pub(crate) fn missing(&self, numbers: &HashSet<u32>, patience: Duration) -> HashSet<u32> {
        let deadline = Instant::now() + patience;
        loop {
            let missing: HashSet<u32> = numbers.difference(&lock(&self.arrived)).copied().collect();
            if missing.is_empty() || Instant::now() > deadline {
                return missing;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A ClusterNetworkPolicy for the client: its resolver and these names. The API has up to 25 rules with 25 peers of 25 names.
fn policy(resolvers: &[IpAddr], names: &[String]) -> Value {
    let block =
        |address: &IpAddr| format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 });
    let resolvers: Vec<String> = resolvers.iter().map(block).collect();
    let to =
        |protocol: &str, port: u16| json!({ protocol: { "destinationPort": { "number": port } } });
    let peers: Vec<Value> = names.chunks(25).map(|names| json!({ "domainNames": names })).collect();
    let rules = peers.chunks(25).map(|peers| {
        let protocols = [to("tcp", PORT), to("udp", PORT)];
        json!({ "action": "Accept", "to": peers, "protocols": protocols })
    });
    let resolver = json!({ "action": "Accept", "to": [{ "networks": resolvers }], "protocols": [to("udp", DNS)] });
    let nothing = json!({ "action": "Deny", "to": [{ "networks": ["0.0.0.0/0", "::/0"] }] });
    let egress: Vec<Value> = [resolver].into_iter().chain(rules).chain([nothing]).collect();
    json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy",
        "metadata": { "name": "names" },
        "spec": {
            "tier": "Admin",
            "priority": 10,
            "subject": { "pods": { "podSelector": { "matchLabels": { "app": "client" } } } },
            "egress": egress,
        },
    })
}

fn open(pod: &TestPod, at: SocketAddr) -> Result<UdpSocket> {
    pod.run(|| UdpSocket::bind(at))?.with_context(|| format!("cannot open a socket at {at}"))
}

/// Answers questions until the process ends.
fn resolve(socket: &UdpSocket, answers: Answers) {
    let _ = host::run_first();
    let mut buffer = [0; 1500];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        if let Some(answer) = answers(&buffer[..length]) {
            let _ = socket.send_to(&answer, from);
        }
    }
}

/// Collects the numbers of datagrams until the process ends.
fn receive(socket: &UdpSocket, arrived: &Mutex<HashSet<u32>>) {
    let mut number = [0; 4];
    while socket.recv(&mut number).is_ok() {
        lock(arrived).insert(u32::from_ne_bytes(number));
    }
}

/// Sockets of the client: one for each family of the resolver, and one for datagrams to any address.
pub(crate) struct Asker {
    resolvers: [UdpSocket; 2],
    out: UdpSocket,
}

impl Asker {
    fn here(resolvers: &[IpAddr]) -> Result<Self> {
        let any = SocketAddr::from(([0_u16; 8], 0));
        let to = |resolver: &IpAddr| -> Result<UdpSocket> {
            let socket = UdpSocket::bind(any)?;
            let mapped = match resolver {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => *address,
            };
            socket.connect((mapped, DNS))?;
            socket.set_read_timeout(Some(PATIENCE))?;
            Ok(socket)
        };
        Ok(Self { resolvers: [to(&resolvers[0])?, to(&resolvers[1])?], out: UdpSocket::bind(any)? })
    }

    /// Sends a question, and waits for its answer; returns the time, or `None` if no answer arrived.
    ///
    /// # Errors
    /// The question cannot be sent.
    pub(crate) fn ask(&self, question: &[u8], over_ipv6: bool) -> Result<Option<Duration>> {
        let socket = &self.resolvers[usize::from(over_ipv6)];
        let begun = Instant::now();
        socket.send(question)?;
        let mut buffer = [0; 1500];
        loop {
            match socket.recv(&mut buffer) {
                Ok(length) => {
                    let took = begun.elapsed();
                    ensure!(length > 12, "an answer without a header");
                    if buffer[..2] == question[..2] {
                        return Ok(Some(took));
                    }
                }
                Err(error) if begun.elapsed() < PATIENCE => return Err(error.into()),
                Err(_) => return Ok(None),
            }
        }
    }

    /// Sends a datagram with a number to the server behind an address.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn send(&self, number: u32, to: IpAddr) -> Result<()> {
        let mapped = match to {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        self.out.send_to(&number.to_ne_bytes(), (mapped, PORT))?;
        Ok(())
    }
}
