//! The form of slices: pods come back, and no other content is accepted.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use netpold_api::peer_slice::{PeerClaims, PeerSliceSpec};
use netpold_core::model::{Labels, NamedPort, Pod, Protocol, SecondaryInterface};
use netpold_slices::{MAX_PODS, SliceError, Vocabulary, decode, encode};
use netpold_testkit::objects;
use proptest::prelude::*;

fn pod() -> impl Strategy<Value = Pod> {
    let name = ("[a-c]{1,2}", "[a-c-]{0,6}[a-z0-9]{1,5}");
    let addresses = prop::collection::btree_set(
        prop_oneof![
            (1..200_u32).prop_map(|n| std::net::Ipv4Addr::from(0x0a00_0000 + n).into()),
            (1..200_u128).prop_map(|n| std::net::Ipv6Addr::from((0xfd00_u128 << 112) + n).into()),
        ],
        0..4,
    );
    let labels = prop::collection::btree_map("[a-c]", "[x-z]{0,2}", 0..3);
    let port = ("[p-r]", 1..4_u16).prop_map(|(name, port)| NamedPort {
        name,
        protocol: Protocol::Udp,
        port,
    });
    let second = prop::collection::vec(("[n-o]", 1..9_u32), 0..2);
    let rest = (any::<bool>(), any::<bool>(), any::<i64>(), prop::collection::vec(port, 0..2));
    (name, addresses, labels, rest, second).prop_map(|(name, addresses, labels, rest, second)| {
        let (host_network, terminating, created, ports) = rest;
        let second: Vec<_> = second
            .into_iter()
            .map(|(name, number)| SecondaryInterface {
                name: name.clone(),
                network: format!("x/{name}"),
                addresses: vec![std::net::Ipv4Addr::from(0xac10_0000 + number).into()],
                device: String::new(),
            })
            .collect();
        let mut pod = objects::pod(&name.0, &name.1, &[], &[]);
        pod.uid = pod.key.to_string();
        let has_node = host_network || !second.is_empty();
        pod.node = if has_node { format!("node-{}", name.0).into() } else { "".into() };
        pod.labels = labels.into_iter().collect::<Labels>();
        pod.addresses = addresses.into_iter().collect();
        Pod { host_network, terminating, created, ports, secondary: second, ..pod }
    })
}

fn sorted(mut pods: Vec<Pod>) -> Vec<Pod> {
    pods.sort_by(|a, b| a.key.cmp(&b.key));
    pods.dedup_by(|a, b| a.key == b.key);
    pods
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn pods_come_back(pods in prop::collection::vec(pod(), 0..=MAX_PODS)) {
        let pods = sorted(pods);
        let text = serde_json::to_string(&encode(&pods)).unwrap();
        let read: PeerSliceSpec = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(decode(&read).unwrap(), pods);
    }

    /// A slice with changed bytes is refused, or its pods are ones that the encoder can write.
    #[test]
    fn other_bytes_are_refused_or_are_pods(
        pods in prop::collection::vec(pod(), 1..8),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut spec = encode(&sorted(pods));
        let mut bytes = STANDARD_NO_PAD.decode(&spec.pods).unwrap();
        for (index, byte) in changes {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        for length in [bytes.len(), cut.index(bytes.len())] {
            spec.pods = STANDARD_NO_PAD.encode(&bytes[..length]);
            if let Ok(pods) = decode(&spec) {
                prop_assert!(pods.len() <= MAX_PODS);
                prop_assert_eq!(&sorted(pods.clone()), &pods);
            }
        }
    }
}

#[test]
fn a_slice_beyond_any_bound_is_refused() {
    let pod =
        |number: usize| objects::pod("x", &format!("p{number:05}"), &[("a", "b")], &["10.0.0.1"]);
    let pods: Vec<Pod> = (0..=MAX_PODS).map(pod).collect();
    assert_eq!(decode(&encode(&pods)), Err(SliceError::TooLarge("pods")));
    let good = encode(&pods[..3]);
    assert_eq!(decode(&good).unwrap().len(), 3);
    let refused = |change: &dyn Fn(&mut PeerSliceSpec)| {
        let mut spec = good.clone();
        change(&mut spec);
        decode(&spec).unwrap_err()
    };
    let many = |spec: &mut PeerSliceSpec| spec.nodes = vec![String::new(); MAX_PODS + 1];
    assert_eq!(refused(&many), SliceError::TooLarge("nodes"));
    let long = |spec: &mut PeerSliceSpec| spec.nodes = vec!["x".repeat(2_000_000)];
    assert_eq!(refused(&long), SliceError::TooLarge("texts"));
    assert_eq!(refused(&|spec| spec.labels.clear()), SliceError::OutOfBounds(0));
    assert_eq!(
        refused(&|spec| spec.pods = "A".repeat(MAX_PODS * 1_000)),
        SliceError::TooLarge("pods")
    );
    assert_eq!(refused(&|spec| spec.pods.insert(0, '!')), SliceError::Malformed(0));
    let claims = |pods: &[u32]| {
        let claims = |pod: &u32| PeerClaims { pod: *pod, interfaces: Vec::new() };
        let all: Vec<PeerClaims> = pods.iter().map(claims).collect();
        refused(&move |spec| spec.claims.clone_from(&all))
    };
    assert_eq!(claims(&[3]), SliceError::OutOfBounds(3));
    assert_eq!(claims(&[1, 1]), SliceError::Unsorted(1));
    // A name twice, and an address that no pod can have.
    let twice = [pod(1), pod(1)];
    assert_eq!(decode(&encode(&twice)), Err(SliceError::Unsorted(1)));
    let own = objects::pod("x", "p", &[], &["127.0.0.1"]);
    assert_eq!(decode(&encode(&[own])), Err(SliceError::Address(0)));
}

/// Figures of the page about scale.
#[test]
fn a_change_sends_few_bytes() {
    let pod = |number: usize| {
        let name = format!("checkout-7d4b9c5f4-{:05x}", number * 7_919 % 1_048_576);
        let address = format!("10.12.{}.{}", number % 250, number % 200 + 1);
        let mut pod =
            objects::pod("shop", &name, &[("app", "checkout"), ("tier", "web")], &[&address]);
        pod.node = "".into();
        pod.uid = pod.key.to_string();
        pod.created = 1_764_200_000 + (number * 37 % 90) as i64;
        pod
    };
    let pods = sorted((0..MAX_PODS).map(pod).collect());
    assert_eq!(pods.len(), MAX_PODS);
    let spec = encode(&pods);
    assert_eq!(decode(&spec).unwrap(), pods);
    let bytes = serde_json::to_string(&spec).unwrap().len();
    println!("{bytes} bytes for {MAX_PODS} pods");
    assert!(bytes < 650, "{bytes}");
}

/// Kubernetes has no limit of a pod's ports, but the API server has one of an object's size.
#[test]
fn a_pod_with_thousands_of_named_ports_fits_into_a_slice() {
    let mut pod = objects::pod("x", "p", &[], &["10.0.0.1"]);
    pod.ports = (0..60_000)
        .map(|port| objects::named(&format!("name-{}", port % 2_000), Protocol::Tcp, port))
        .collect();
    let port_names = pod.ports.iter().map(|port| port.name.clone()).collect();
    let vocabulary = Vocabulary { port_names, ..Vocabulary::default() };
    let pods = [vocabulary.reduce(&pod).unwrap()];
    let spec = encode(&pods);
    assert!(serde_json::to_string(&spec).unwrap().len() < 100_000);
    assert_eq!(decode(&spec).unwrap(), pods);
}
