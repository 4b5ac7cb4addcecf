//! A pod's interfaces on further networks, as reported by Multus and other implementations of the Network Plumbing
//! Working Group's specification: annotation `k8s.v1.cni.cncf.io/network-status`, a JSON list.
//!
//! Anyone who may write the pod may write the annotation, so it is bounded; an invalid one counts as absent.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use netpold_core::model::SecondaryInterface;
use netpold_core::printable::cut;
use serde::Deserialize;

use super::problem::FieldProblem;

/// Name of the annotation, and its name before the specification's version 1.2.
pub(super) const ANNOTATIONS: [&str; 2] =
    ["k8s.v1.cni.cncf.io/network-status", "k8s.v1.cni.cncf.io/networks-status"];
/// Longest annotation that is read, in bytes.
const BYTES_MAX: usize = 65_536;
/// Maximum number of interfaces of a pod besides the first one.
const INTERFACES_MAX: usize = 32;
/// Maximum number of addresses of these interfaces.
const ADDRESSES_MAX: usize = 64;
/// Longest name in bytes: a network's namespace has 63, its name 253.
const NAME_MAX: usize = 320;

/// The used fields of an entry.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct NetworkEntry {
    #[serde(default)]
    name: String,
    #[serde(default)]
    interface: String,
    #[serde(default)]
    ips: Option<Vec<String>>,
    #[serde(default)]
    default: Option<bool>,
    #[serde(default)]
    device_info: Option<DeviceInfo>,
}

#[derive(Deserialize)]
struct DeviceInfo {
    #[serde(default, rename = "type")]
    kind: String,
}

/// Returns the further interfaces from the annotations of a pod with these addresses.
pub(super) fn second(
    annotations: Option<&BTreeMap<String, String>>,
    own: &[IpAddr],
    problems: &mut Vec<FieldProblem>,
) -> Vec<SecondaryInterface> {
    let given = |name: &&'static str| Some((*name, annotations?.get(*name)?));
    let Some((name, text)) = ANNOTATIONS.iter().find_map(given) else { return Vec::new() };
    read(text, own).unwrap_or_else(|reason| {
        let path = format!("metadata.annotations.{name}");
        let text = format!("{reason}; the pod's further interfaces are not known");
        problems.push(FieldProblem::new(path, text));
        Vec::new()
    })
}

fn read(text: &str, own: &[IpAddr]) -> Result<Vec<SecondaryInterface>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    if text.len() > BYTES_MAX {
        return Err(format!("{} bytes, {BYTES_MAX} are read", text.len()));
    }
    let entries: Vec<NetworkEntry> =
        serde_json::from_str(text).map_err(|error| format!("not a list of networks: {error}"))?;
    let further = entries.into_iter().filter(|entry| entry.default != Some(true));
    let interfaces: Vec<SecondaryInterface> = further
        .map(|entry| interface(entry, own))
        .filter(|read| !matches!(read, Ok(None)))
        .map(|read| read.map(Option::unwrap_or_default))
        .collect::<Result<_, _>>()?;
    let addresses: usize = interfaces.iter().map(|interface| interface.addresses.len()).sum();
    if interfaces.len() > INTERFACES_MAX || addresses > ADDRESSES_MAX {
        return Err(format!(
            "{} interfaces with {addresses} addresses, {INTERFACES_MAX} with {ADDRESSES_MAX} are read",
            interfaces.len()
        ));
    }
    Ok(interfaces)
}

/// Converts an entry; `None` for the pod's first interface.
fn interface(entry: NetworkEntry, own: &[IpAddr]) -> Result<Option<SecondaryInterface>, String> {
    let NetworkEntry { name: network, interface: name, ips, device_info, .. } = entry;
    let device = device_info.map(|info| info.kind).unwrap_or_default();
    for text in [&network, &name, &device] {
        if text.len() > NAME_MAX {
            return Err(format!("a name of {} bytes, {NAME_MAX} are read", text.len()));
        }
    }
    let ips = ips.unwrap_or_default();
    let given = ips.iter().map(|text| address(text));
    let mut addresses: Vec<IpAddr> = given.collect::<Result<_, _>>()?;
    let is_first = !addresses.is_empty() && addresses.iter().all(|address| own.contains(address));
    if is_first {
        return Ok(None);
    }
    addresses.retain(|address| !own.contains(address) && is_unicast(*address));
    addresses.sort();
    addresses.dedup();
    Ok(Some(SecondaryInterface { name, network, addresses, device }))
}

/// Parses an address, with or without a prefix length.
fn address(text: &str) -> Result<IpAddr, String> {
    let block = || text.parse::<IpNet>().map(|block| block.addr());
    let address = text.parse::<IpAddr>().or_else(|_| block());
    let address = address.map_err(|_| format!("`{}` is not an address", cut(text.to_owned(), 64)));
    // On the wire an IPv4-mapped address is an IPv4 address.
    address.map(|address| address.to_canonical())
}

/// Returns whether a pod can own an address that is reachable beyond its link.
fn is_unicast(address: IpAddr) -> bool {
    let is_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !is_local && !address.is_unspecified() && !address.is_loopback() && !address.is_multicast()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 244, 1, 5));

    fn parse(text: &str) -> Result<Vec<SecondaryInterface>, String> {
        read(text, &[OWN])
    }

    fn addresses(text: &str) -> Vec<String> {
        let all = parse(text).unwrap();
        all.iter().flat_map(|it| &it.addresses).map(ToString::to_string).collect()
    }

    /// Format of Multus 4.1.
    #[test]
    fn what_multus_writes_is_read() {
        let text = r#"[{
            "name": "kindnet", "interface": "eth0", "ips": ["10.244.1.5"],
            "mac": "be:5e:2d:4c:cb:e2", "default": true, "dns": {}, "gateway": ["10.244.1.1"]
        },{
            "name": "shop/storage", "interface": "net1", "ips": ["192.168.77.2", "fd77::2"],
            "mac": "c2:b0:57:49:47:f1", "dns": {}
        },{
            "name": "shop/fast", "interface": "net2", "dns": {},
            "device-info": {"type": "pci", "version": "1.1.0", "pci": {"pci-address": "0000:18:02.5"}}
        }]"#;
        let name = str::to_owned;
        let expected = [
            SecondaryInterface {
                name: name("net1"),
                network: name("shop/storage"),
                addresses: vec!["192.168.77.2".parse().unwrap(), "fd77::2".parse().unwrap()],
                device: String::new(),
            },
            SecondaryInterface {
                name: name("net2"),
                network: name("shop/fast"),
                addresses: Vec::new(),
                device: name("pci"),
            },
        ];
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[test]
    fn the_newer_name_of_the_annotation_counts_alone() {
        let status = |address: &str| format!(r#"[{{"name": "n", "ips": ["{address}"]}}]"#);
        let [newer, older] = ANNOTATIONS.map(str::to_owned);
        let both = BTreeMap::from([
            (newer, status("192.168.0.1")),
            (older.clone(), status("192.168.0.2")),
        ]);
        let mut problems = Vec::new();
        let of = |all: &BTreeMap<_, _>, problems: &mut _| {
            let second = second(Some(all), &[], problems);
            second.iter().map(|it| it.addresses[0].to_string()).collect::<Vec<_>>()
        };
        assert_eq!(of(&both, &mut problems), ["192.168.0.1"]);
        let one = BTreeMap::from([(older.clone(), both[&older].clone())]);
        assert_eq!(of(&one, &mut problems), ["192.168.0.2"]);
        assert_eq!(problems, []);
        let broken = BTreeMap::from([(older, "[{]".to_owned())]);
        assert_eq!(of(&broken, &mut problems), [""; 0]);
        assert_eq!(problems[0].path, "metadata.annotations.k8s.v1.cni.cncf.io/networks-status");
    }

    #[test]
    fn addresses_that_no_pod_has_to_itself_are_left_out() {
        let one = |ip: &str| addresses(&format!(r#"[{{"name": "n", "ips": ["{ip}"]}}]"#));
        for none in [
            "0.0.0.0",
            "127.0.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "169.254.1.1",
            "::",
            "::1",
            "fe80::1",
            "ff02::1",
            "10.244.1.5",
        ] {
            assert_eq!(one(none), [""; 0], "{none}");
        }
        assert_eq!(one("192.168.7.2/24"), ["192.168.7.2"]);
        assert_eq!(one("::ffff:192.168.7.2"), ["192.168.7.2"]);
    }

    #[test]
    fn hostile_annotations_are_refused_as_a_whole() {
        let entries = |count: usize, entry: &str| format!("[{}]", vec![entry; count].join(","));
        let deep =
            |depth: usize| format!(r#"[{{"dns": {}{}}}]"#, "[".repeat(depth), "]".repeat(depth));
        let long = "x".repeat(NAME_MAX + 1);
        for (text, reason) in [
            (entries(33, r#"{"name": "n"}"#), "33 interfaces with 0 addresses"),
            (entries(5500, r#"{"name":"n"}"#), "bytes, 65536 are read"),
            (format!(r#"[{{"ips": [{}]}}]"#, vec![r#""10.9.9.9""#; 3000].join(",")), ""),
            (" ".repeat(BYTES_MAX) + "[]", "bytes"),
            (r#"[{"ips": ["10.0.0"]}]"#.to_owned(), "`10.0.0` is not an address"),
            (r#"[{"ips": [7]}]"#.to_owned(), "not a list of networks"),
            (r#"[{"ips": "10.0.0.1"}]"#.to_owned(), "not a list of networks"),
            (r#"{"name": "n"}"#.to_owned(), "not a list of networks"),
            (r#"[{"default": false, "default": true}]"#.to_owned(), "duplicate field"),
            (format!(r#"[{{"interface": "{long}"}}]"#), "a name of 321 bytes"),
            ("\u{1b}[2J".to_owned(), "not a list of networks"),
        ] {
            match parse(&text) {
                Err(error) => assert!(error.contains(reason) && !reason.is_empty(), "{error}"),
                // A repeated address counts once.
                Ok(read) => assert!(reason.is_empty() && read[0].addresses.len() == 1, "{read:?}"),
            }
        }
        let many: Vec<String> = (0..65).map(|n| format!(r#""10.9.9.{n}""#)).collect();
        let error = parse(&format!(r#"[{{"ips": [{}]}}]"#, many.join(","))).unwrap_err();
        assert!(error.contains("1 interfaces with 65 addresses"), "{error}");
        // Unused fields are skipped without recursion.
        assert_eq!(parse(&deep(20_000)).unwrap().len(), 1);
        assert_eq!(parse(""), Ok(Vec::new()));
        assert_eq!(parse("[]"), Ok(Vec::new()));
        assert_eq!(parse(r#"[{"ips": null, "default": null}]"#).unwrap().len(), 1);
    }

    proptest! {
        #[test]
        fn whatever_the_text_the_result_is_bounded(text in "[\\[\\]{}\":,a-z0-9./ -]{0,200}") {
            if let Ok(read) = parse(&text) {
                prop_assert!(read.len() <= INTERFACES_MAX);
            }
        }

        /// Written entries are read back, with any other fields among them.
        #[test]
        fn entries_are_read_whatever_else_they_have(
            names in proptest::collection::vec("[a-z]{1,12}", 1..8),
            number in 1u8..200,
        ) {
            let entries: Vec<serde_json::Value> = names.iter().zip(number..).map(|(name, n)| {
                serde_json::json!({
                    "name": name, "interface": name, "ips": [format!("192.168.1.{n}")],
                    "dns": { "nameservers": [name] }, "unknown": [[{ "x": n }]],
                })
            }).collect();
            let read = parse(&serde_json::to_string(&entries).unwrap()).unwrap();
            prop_assert_eq!(read.len(), names.len());
            for ((interface, name), n) in read.iter().zip(&names).zip(number..) {
                prop_assert_eq!(&interface.network, name);
                prop_assert_eq!(interface.addresses[0], IpAddr::from([192, 168, 1, n]));
            }
        }
    }
}
