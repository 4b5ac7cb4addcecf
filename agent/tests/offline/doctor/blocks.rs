//! Blocks of addresses, and rules of a direction that `policyTypes` lacks.

use netpold_doctor::Severity;

use super::{CLUSTER, examine, found, of, one, places, policy};

fn egress(rules: &str) -> String {
    format!(
        "podSelector: {{}}, policyTypes: [Egress], egress: [{{ports: [{{port: 53, protocol: UDP}}]}}, {rules}]"
    )
}

fn to(block: &str) -> String {
    egress(&format!("{{to: [{{ipBlock: {{cidr: '{block}'}}}}]}}"))
}

#[test]
fn blocks_without_addresses() {
    let at = |block: &str| {
        found(
            "block-without-addresses",
            &format!("NetworkPolicy x/p: spec.egress[1].to[0]: {block}"),
        )
    };
    for block in [
        "0.0.0.0/24",
        "0.0.0.0/8",
        "0.0.0.0/32",
        "0.1.2.0/24",
        "127.0.0.0/8",
        "127.0.0.1/32",
        "::/64",
        "::1/128",
    ] {
        assert_eq!(one(&to(block)), at(block), "{block}");
    }
    for block in [
        "0.0.0.0/0",
        "::/0",
        "0.0.0.0/1",
        "128.0.0.0/1",
        "1.0.0.0/8",
        "169.254.0.0/16",
        "224.0.0.0/4",
        "fe80::/10",
        "64:ff9b::/96",
        "100.64.0.0/10",
        "2000::/3",
        "10.0.0.0/8",
    ] {
        assert_eq!(one(&to(block)), [], "{block}");
    }
    let from = |block: &str| {
        one(&format!("podSelector: {{}}, ingress: [{{from: [{{ipBlock: {{cidr: '{block}'}}}}]}}]"))
    };
    let [(check, _)] = &from("224.0.0.0/4")[..] else {
        panic!("nobody sends from a group's address")
    };
    assert_eq!(check, "block-without-addresses");
    assert_eq!(from("0.0.0.0/0"), []);
}

#[test]
fn blocks_as_they_were_written() {
    let at = |block: &str, read: &str| {
        let place = format!(
            "NetworkPolicy x/p: spec.egress[1].to[0].ipBlock.cidr: {block} is read as {read}"
        );
        found("block-with-host-bits", &place)
    };
    assert_eq!(one(&to("10.0.0.5/8")), at("10.0.0.5/8", "10.0.0.0/8"));
    assert_eq!(one(&to("203.0.113.7/24")), at("203.0.113.7/24", "203.0.113.0/24"));
    assert_eq!(one(&to("2001:db8::1/64")), at("2001:db8::1/64", "2001:db8::/64"));
    assert_eq!(one(&to("203.0.113.7/32")), []);
    let except = egress("{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [172.16.1.0/12]}}]}");
    let place = "NetworkPolicy x/p: spec.egress[1].to[0].ipBlock.except[0]: 172.16.1.0/12 is read as 172.16.0.0/12";
    assert_eq!(one(&except), found("block-with-host-bits", place));
    let zeros = "NetworkPolicy x/p: spec.egress[1].to[0].ipBlock.cidr: 010.0.0.0/8";
    assert_eq!(one(&to("010.0.0.0/8")), found("block-with-leading-zeros", zeros));
    for block in ["::ffff:10.0.0.0/104", "10.0.0.0", "10.0.0.0/33"] {
        let all = one(&to(block));
        let [(check, place)] = &all[..] else { panic!("{block}: {all:?}") };
        assert_eq!(check, "not-understood", "{block}");
        assert!(
            place.starts_with("NetworkPolicy x/p: spec.egress[1].to[0].ipBlock.cidr: "),
            "{place}"
        );
    }
}

#[test]
fn blocks_of_services() {
    let at = |block: &str, service: &str| {
        let place = format!("NetworkPolicy x/p: spec.egress[1].to[0]: {block}, Service {service}");
        found("block-of-a-service", &place)
    };
    assert_eq!(one(&to("10.96.0.1/32")), at("10.96.0.1/32", "x/web"));
    assert_eq!(one(&to("10.96.0.0/12")), at("10.96.0.0/12", "x/web"));
    for block in ["10.96.0.2/32", "10.0.0.0/8", "0.0.0.0/0", "10.0.0.1/32", "172.16.0.0/12"] {
        assert_eq!(one(&to(block)), [], "{block}");
    }
    // A policy that also allows the backends gets no finding.
    let pods = "{to: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 8080}]}";
    let both = egress(&format!("{{to: [{{ipBlock: {{cidr: 10.96.0.1/32}}}}]}}, {pods}"));
    assert_eq!(one(&both), []);
    let port = |port: u16| {
        one(&egress(&format!(
            "{{to: [{{ipBlock: {{cidr: 10.96.0.1/32}}}}], ports: [{{port: {port}}}]}}"
        )))
    };
    assert_eq!(port(80), at("10.96.0.1/32", "x/web"));
    // No packet has a Service's address as its source.
    let from = one("podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.96.0.1/32}}]}]");
    assert_eq!(
        from,
        found(
            "block-of-a-service",
            "NetworkPolicy x/p: spec.ingress[0].from[0]: 10.96.0.1/32, Service x/web"
        )
    );
    // Addresses of load balancers are Service addresses, except addresses of nodes.
    let balancer = |address: &str| {
        format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: n1}}, status: {{addresses: [{{type: InternalIP, address: \
             192.168.0.1}}]}}}}\n---\n{{apiVersion: v1, kind: Service, metadata: {{name: lb, namespace: x}}, spec: {{type: \
             LoadBalancer, clusterIP: 10.96.0.9, ports: [{{port: 80}}]}}, status: {{loadBalancer: {{ingress: [{{ip: \
             {address}}}]}}}}}}\n---\n"
        )
    };
    for (address, block, finds) in [
        ("203.0.113.9", "203.0.113.9/32", true),
        ("203.0.113.9", "203.0.113.0/24", false),
        ("203.0.113.9", "0.0.0.0/0", false),
        ("192.168.0.1", "192.168.0.1/32", false),
    ] {
        let objects = format!("{CLUSTER}{}{}", balancer(address), policy("p", &to(block)));
        let (_, report) = examine(&objects);
        assert_eq!(
            places(&report).contains_key("block-of-a-service"),
            finds,
            "{address} {block}: {report:#?}"
        );
    }
}

#[test]
fn rules_of_a_direction_that_policy_types_lack() {
    let void = |path: &str| found("rules-without-type", &format!("NetworkPolicy x/p: {path}"));
    let empty =
        |path: &str| found("empty-list-without-type", &format!("NetworkPolicy x/p: {path}: []"));
    let web = "podSelector: {matchLabels: {app: web}}";
    for (spec, finds) in [
        (
            "policyTypes: [Ingress], ingress: [{}], egress: [{to: [{podSelector: {}}]}]",
            void("spec.egress: 1 rule"),
        ),
        ("policyTypes: [Ingress], egress: [{}, {}]", void("spec.egress: 2 rules")),
        ("policyTypes: [Egress], ingress: [{}], egress: [{}]", void("spec.ingress: 1 rule")),
        ("egress: [], ingress: []", empty("spec.egress")),
        ("policyTypes: [Ingress], egress: []", empty("spec.egress")),
        ("policyTypes: [Egress], ingress: [], egress: [{}]", empty("spec.ingress")),
        ("policyTypes: [Ingress, Egress], egress: [{}], ingress: [{}]", Vec::new()),
        ("policyTypes: [Egress, Ingress], egress: [], ingress: []", Vec::new()),
        ("egress: [{}]", Vec::new()),
        ("policyTypes: [], egress: [{}]", Vec::new()),
        ("policyTypes: [Ingress]", Vec::new()),
        ("policyTypes: [Ingress], egress: ", Vec::new()),
    ] {
        assert_eq!(one(&format!("{web}, {spec}")), finds, "{spec}");
    }
    assert_eq!(of(&[policy("p", web)]), []);
}

#[test]
fn named_ports_towards_blocks() {
    let named = |peers: &str| {
        one(&egress(&format!("{{to: [{peers}], ports: [{{port: 6000}}, {{port: http}}]}}")))
    };
    let at = "NetworkPolicy x/p: spec.egress[1].ports[1]: http (TCP)";
    let outside = "{ipBlock: {cidr: 203.0.113.123/32}}";
    assert_eq!(named(outside), found("port-name-towards-blocks", at));
    assert_eq!(
        named(&format!("{outside}, {{ipBlock: {{cidr: 198.51.100.0/24}}}}")),
        found("port-name-towards-blocks", at)
    );
    for peers in
        ["{ipBlock: {cidr: 10.0.0.0/8}}", "{ipBlock: {cidr: 0.0.0.0/0}}", "{podSelector: {}}"]
    {
        assert_eq!(named(peers), [], "{peers}");
    }
    assert_eq!(named(&format!("{outside}, {{podSelector: {{matchLabels: {{app: web}}}}}}")), []);
    assert_eq!(
        named("{ipBlock: {cidr: 10.0.0.2/32}}"),
        found("port-name-absent", at),
        "a pod without that name"
    );
    let beside = format!(
        "{{to: [{{podSelector: {{matchLabels: {{app: web}}}}}}, {outside}], ports: [{{port: http}}]}}"
    );
    let at = "NetworkPolicy x/p: spec.egress[1].to[1]: 203.0.113.123/32";
    assert_eq!(one(&egress(&beside)), found("port-name-towards-blocks", at), "a block beside pods");
    let ingress = "podSelector: {matchLabels: {app: web}}, ingress: [{from: [{ipBlock: {cidr: 203.0.113.0/24}}], ports: [{port: http}]}]";
    assert_eq!(one(ingress), [], "the name is the selected pod's");
}

#[test]
fn addresses_of_networks() {
    let check = "block-of-a-network-address";
    let at = |block: &str| {
        found(check, &format!("NetworkPolicy x/p: spec.egress[1].to[0].ipBlock.cidr: {block}"))
    };
    let severity = |block: &str| {
        let (_, report) = examine(&format!("{CLUSTER}{}", policy("p", &to(block))));
        report.findings.into_iter().find(|it| it.check == check).map(|it| it.severity)
    };
    for block in ["10.0.0.0/32", "192.168.0.0/32", "fd00:1::/128"] {
        assert_eq!((one(&to(block)), severity(block)), (at(block), Some(Severity::Warning)));
    }
    assert_eq!(
        severity("203.0.113.0/32"),
        Some(Severity::Info),
        "may be a host of a larger network"
    );
    for block in ["10.0.0.0/8", "10.0.0.0/31", "203.0.113.10/32", "fd00::1/128", "0.0.0.0/32"] {
        assert_eq!(severity(block), None, "{block}");
    }
    let pod = CLUSTER.replace("10.0.0.2}", "10.0.0.0}");
    let (_, report) = examine(&format!("{pod}{}", policy("p", &to("10.0.0.0/32"))));
    assert!(!places(&report).contains_key(check), "a pod's address");
    let except = "{to: [{ipBlock: {cidr: 10.0.0.0/7, except: [10.0.0.0/32]}}]}";
    let path = "NetworkPolicy x/p: spec.egress[1].to[0].ipBlock.except[0]: 10.0.0.0/32";
    assert_eq!(one(&egress(except)), found(check, path));
}

#[test]
fn a_block_of_every_address_has_no_named_port() {
    let at = |peer: u8| {
        let place = format!("NetworkPolicy x/p: spec.egress[1].to[{peer}]: 0.0.0.0/0");
        found("port-name-towards-blocks", &place)
    };
    let named =
        |peers: &str, ports: &str| one(&egress(&format!("{{to: [{peers}], ports: [{ports}]}}")));
    let every = "{ipBlock: {cidr: 0.0.0.0/0}}";
    assert_eq!(named(every, "{port: http}"), at(0));
    assert_eq!(named(&format!("{{podSelector: {{}}}}, {every}"), "{port: http}"), at(1));
    assert_eq!(named(every, "{port: http}, {port: 80}"), [], "the number is beside the name");
    let [(check, _)] = &named(every, "{port: htpp}")[..] else { panic!("one finding") };
    assert_eq!(check, "port-name-absent");
}

#[test]
fn exceptions_that_other_rules_allow() {
    let check = "except-allowed-elsewhere";
    let all = |except: &str, ports: &str| {
        format!("{{to: [{{ipBlock: {{cidr: 0.0.0.0/0, except: [{except}]}}}}]{ports}}}")
    };
    let finds = |rules: &[String], more: &str| -> Vec<(Severity, String)> {
        let rules = format!("{CLUSTER}{}{more}", policy("p", &egress(&rules.join(", "))));
        let found = examine(&rules).1.findings.into_iter().filter(|it| it.check == check);
        found.flat_map(|it| it.places.into_iter().map(move |at| (it.severity, at))).collect()
    };
    let (metadata, ports) = ("169.254.169.254/32", ", ports: [{port: 443}]");
    let at = |severity, by: &str| {
        let place = format!(
            "NetworkPolicy x/p: spec.egress[1].to[0]: {metadata}; allowed by {by} (all.yaml:47)"
        );
        vec![(severity, place)]
    };
    let lines = |found: Vec<(Severity, String)>| -> Vec<(Severity, String)> {
        let cut = |at: String| at.split(" (all.yaml").next().unwrap().to_owned();
        found.into_iter().map(|(severity, place)| (severity, cut(place))).collect()
    };
    let same = lines(at(Severity::Warning, "spec.egress[2]"));
    let rule = all(metadata, "");
    let none = Vec::new();
    let half = |ports: &str| format!("{{to: [{{ipBlock: {{cidr: 128.0.0.0/1}}}}]{ports}}}");
    let link_local = "{to: [{ipBlock: {cidr: 169.254.0.0/16}}]}".to_owned();
    for other in ["{}".to_owned(), half(""), link_local] {
        assert_eq!(lines(finds(&[rule.clone(), other.clone()], "")), same, "{other}");
    }
    for other in [
        all(metadata, ""),
        all("169.254.0.0/16", ""),
        format!("{{to: [{{ipBlock: {{cidr: {metadata}}}}}]}}"),
        "{to: [{podSelector: {}}]}".to_owned(),
        half(ports),
    ] {
        assert_eq!(finds(&[rule.clone(), other.clone()], ""), none, "{other}");
    }
    let with_ports = [all(metadata, ports), half(ports)];
    assert_eq!(lines(finds(&with_ports, "")), same);
    // Another policy may be for some of the pods alone, and meant so.
    let other = "podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [{}]";
    assert_eq!(
        lines(finds(std::slice::from_ref(&rule), &policy("q", other))),
        lines(at(Severity::Info, "NetworkPolicy x/q: spec.egress[0]"))
    );
    // The excepted address is that of a pod which a selector has.
    let pod = all("10.0.0.2/32", "");
    let found = finds(&[pod.clone(), "{to: [{podSelector: {}}]}".to_owned()], "");
    assert_eq!(found.len(), 1, "{found:?}");
    let web = "{to: [{podSelector: {matchLabels: {app: web}}}]}".to_owned();
    assert_eq!(finds(&[pod, web], ""), none);
}

#[test]
fn blocks_of_one_family_at_pods_of_both() {
    let both = CLUSTER.replace(
        "status: {podIP: 10.0.0.1}",
        "status: {podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]}",
    );
    let finds = |cluster: &str, peers: &str| {
        let spec = format!("podSelector: {{}}, ingress: [{{from: [{peers}]}}]");
        let (_, report) = examine(&format!("{cluster}{}", policy("p", &spec)));
        let all = places(&report);
        all.get("block-of-one-family").map(|it| it.join(" "))
    };
    let (v4, v6) = ("{ipBlock: {cidr: 0.0.0.0/0}}", "{ipBlock: {cidr: '::/0'}}");
    let place = |block: &str| {
        Some(format!("NetworkPolicy x/p: spec.ingress[0].from[0]: {block} (Pod x/web)"))
    };
    assert_eq!(finds(&both, v4), place("0.0.0.0/0"));
    assert_eq!(finds(&both, v6), place("::/0"));
    assert_eq!(finds(&both, &format!("{v4}, {v6}")), None);
    assert_eq!(finds(&both, "{ipBlock: {cidr: 10.0.0.0/8}}"), None);
    assert_eq!(finds(CLUSTER, v4), None);
}

#[test]
fn empty_lists_of_peers_allow_everyone() {
    let web = "podSelector: {matchLabels: {app: web}}";
    let at = |path: &str| found("empty-list-of-peers", &format!("NetworkPolicy x/p: {path}: []"));
    let rule = "{from: [], ports: [{port: 8080}]}";
    assert_eq!(one(&format!("{web}, ingress: [{rule}]")), at("spec.ingress[0].from"));
    assert_eq!(
        one(&format!("{web}, policyTypes: [Egress], egress: [{{to: []}}]")),
        at("spec.egress[0].to")
    );
    assert_eq!(one(&format!("{web}, ingress: [{{ports: [{{port: 8080}}]}}]")), []);
}
