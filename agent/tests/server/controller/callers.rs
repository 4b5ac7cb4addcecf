//! Clients of the webhook: pods cannot block answers to the API server, and no client is expensive for the controller.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::controller::webhook::{bundle, configuration, free_port, is_gated, trusted};
use crate::controller::world::{Controller, NAMESPACE, World, wait};

/// Address of a pod in its object, and source of the pod's connections.
const POD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Certificate and key, in PEM.
struct Identity {
    certificate: String,
    key: String,
}

/// Controller with a webhook for the API server. The order of the fields is the order of their drop.
struct Asked {
    controller: Controller,
    world: World,
    port: u16,
}

impl Asked {
    fn new(test: &str, more: &[&str]) -> Option<Self> {
        let world = World::new(test)?;
        world.node("n1");
        let port = free_port();
        world.create(&configuration(port));
        let address = format!("127.0.0.1:{port}");
        let controller = world.start("one", &[&["--webhook-listen", &address], more].concat());
        wait("trusted", || trusted(&world));
        Some(Self { controller, world, port })
    }

    /// Returns the address of the webhook.
    const fn address(&self) -> SocketAddr {
        SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), self.port)
    }

    /// Sends a request over TLS and returns the answer.
    async fn ask(&self, from: Ipv4Addr, who: Option<&Identity>, body: &[u8]) -> io::Result<String> {
        let mut roots = RootCertStore::empty();
        let authority = base64_decoded(&bundle(&self.world));
        for certificate in CertificateDer::pem_slice_iter(&authority) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match who {
            None => config.with_no_client_auth(),
            Some(Identity { certificate, key }) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
        };
        let stream = connect(from, self.address()).await?;
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        let head = format!(
            "POST /mutate-pods HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body).await?;
        stream.flush().await?;
        let mut answer = Vec::new();
        // A connection that ends without TLS close_notify has delivered its whole answer.
        match stream.read_to_end(&mut answer).await {
            Err(error) if answer.is_empty() => Err(error),
            _ => Ok(String::from_utf8_lossy(&answer).into_owned()),
        }
    }
}

async fn connect(from: Ipv4Addr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}

fn base64_decoded(text: &str) -> Vec<u8> {
    let quoted = serde_json::to_string(text).unwrap();
    serde_json::from_str::<k8s_openapi::ByteString>(&quoted).unwrap().0
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Returns `VmHWM` in MiB.
fn most_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
}

/// Opens four hundred connections of a pod that send no request, and replaces each connection that ends.
#[test]
fn idle_connections_of_a_pod_keep_the_api_server_out_of_nothing() {
    const TEST: &str = "idle_connections_of_a_pod_keep_the_api_server_out_of_nothing";
    let Some(asked) = Asked::new(TEST, &[]) else { return };
    let world = &asked.world;
    world.pod("attacker", "x", "n1");
    let patch = json!({ "status": { "podIP": POD, "podIPs": [{ "ip": POD }] } }).to_string();
    let patch = [
        "patch",
        "pod",
        "attacker",
        "-n",
        NAMESPACE,
        "--subresource=status",
        "--type=merge",
        "-p",
        &patch,
    ];
    world.server.kubectl(&patch).unwrap();
    let mut number = 0;
    wait("asked", || {
        number += 1;
        is_gated(world, &format!("before-{number}"))
    });
    let (runtime, ends) = (runtime(), Arc::new(AtomicBool::new(false)));
    let to = asked.address();
    for _ in 0..400 {
        let ends = Arc::clone(&ends);
        runtime.spawn(async move {
            while !ends.load(Ordering::Relaxed) {
                if let Ok(mut stream) = connect(POD, to).await {
                    let _ = stream.read(&mut [0]).await;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
    std::thread::sleep(Duration::from_secs(2));
    let without = (0..20).filter(|n| !is_gated(world, &format!("beside-{n}"))).count();
    ends.store(true, Ordering::Relaxed);
    runtime.shutdown_background();
    assert_eq!(without, 0, "of 20 pods\n{}", asked.controller.log());
}

/// Sends sixty reviews of 4 MiB at a time, each of many small values.
#[test]
fn large_reviews_take_no_memory() {
    const REVIEWS: usize = 60;
    let Some(asked) = Asked::new("large_reviews_take_no_memory", &[]) else { return };
    let before = most_memory(asked.controller.pid());
    let filling = "{},".repeat((4 << 20) / 3 - 100);
    let request = r#""uid":"u","operation":"CREATE","kind":{"group":"","kind":"Pod"}"#;
    let body = format!(r#"{{"request":{{{request},"object":{{"spec":{{}},"x":[{filling}1]}}}}}}"#);
    assert!(body.len() < 4 << 20);
    let answers = runtime().block_on(async {
        let asks = (0..REVIEWS).map(|n| {
            let from = Ipv4Addr::new(127, 0, 1, 1 + (n / 16) as u8);
            asked.ask(from, None, body.as_bytes())
        });
        futures::future::join_all(asks).await
    });
    let gated = answers.iter().filter(|answer| {
        answer.as_ref().is_ok_and(|it| it.contains("200 OK") && it.contains("JSONPatch"))
    });
    let (gated, most) = (gated.count(), most_memory(asked.controller.pid()));
    println!("{gated} of {REVIEWS} answered; at most {most} MiB, {before} before");
    // Without optimization, some reviews take longer than the time limit of a connection.
    assert!(gated >= 5, "{answers:?}");
    assert!(most < before + 64, "{most} MiB, {before} before");
}

#[test]
fn only_the_addresses_that_are_named_may_ask() {
    const TEST: &str = "only_the_addresses_that_are_named_may_ask";
    let clients = ["--webhook-clients", "127.0.0.1,10.0.0.0/8"];
    let Some(asked) = Asked::new(TEST, &clients) else { return };
    let body = br#"{"request":{"uid":"u"}}"#;
    runtime().block_on(async {
        let answer = asked.ask(Ipv4Addr::LOCALHOST, None, body).await.unwrap();
        assert!(answer.contains("200 OK"), "{answer}");
        let refused = asked.ask(POD, None, body).await;
        assert!(refused.is_err(), "{refused:?}");
    });
    assert!(is_gated(&asked.world, "pod"));
}

#[test]
fn only_a_client_with_a_certificate_may_ask() {
    const TEST: &str = "only_a_client_with_a_certificate_may_ask";
    let directory = tempfile::TempDir::new().unwrap();
    let signed = |name: &str| {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let key = KeyPair::generate().unwrap();
        let authority = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap().pem();
        (authority, Identity { certificate, key: key.serialize_pem() })
    };
    let (authority, server) = signed("kube-apiserver");
    let (_, stranger) = signed("stranger");
    let file = directory.path().join("ca.pem");
    std::fs::write(&file, authority).unwrap();
    let Some(asked) = Asked::new(TEST, &["--webhook-client-ca", file.to_str().unwrap()]) else {
        return;
    };
    let body = br#"{"request":{"uid":"u"}}"#;
    runtime().block_on(async {
        let answer = asked.ask(POD, Some(&server), body).await.unwrap();
        assert!(answer.contains("200 OK"), "{answer}");
        for who in [None, Some(&stranger)] {
            let refused = asked.ask(POD, who, body).await;
            assert!(refused.is_err(), "{refused:?}");
        }
    });
}
