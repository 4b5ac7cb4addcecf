//! The rules of kube-proxy's iptables mode, less those without effect here.

use std::fmt::Write as _;

use super::port::{MASQUERADE, TranslatedPort};

/// Input for `iptables-restore`: the whole table, which replaces the former one.
pub(super) fn rules(services: &[TranslatedPort]) -> String {
    let (mut names, mut rules, mut node_ports) = (String::new(), String::new(), String::new());
    for service in services {
        chains(&mut names, &mut rules, service);
        ways_in(&mut rules, &mut node_ports, service);
    }
    format!(
        "*nat\n\
         :PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n\
         :KUBE-SERVICES - [0:0]\n:KUBE-NODEPORTS - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n\
         :KUBE-POSTROUTING - [0:0]\n{names}\
         -A PREROUTING -j KUBE-SERVICES\n\
         -A OUTPUT -j KUBE-SERVICES\n\
         -A POSTROUTING -j KUBE-POSTROUTING\n\
         -A KUBE-MARK-MASQ -j MARK --or-mark {MASQUERADE}\n\
         -A KUBE-POSTROUTING -m mark ! --mark {MASQUERADE}/{MASQUERADE} -j RETURN\n\
         -A KUBE-POSTROUTING -j MARK --xor-mark {MASQUERADE}\n\
         -A KUBE-POSTROUTING -j MASQUERADE --random-fully\n\
         {rules}{node_ports}\
         -A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\n\
         COMMIT\n"
    )
}

/// Adds the chains of one port: external addresses, the choice, one for each backend.
fn chains(names: &mut String, rules: &mut String, service: &TranslatedPort) {
    let (name, protocol) = (&service.name, service.keyword());
    let _ = writeln!(names, ":KUBE-SVC-{name} - [0:0]\n:KUBE-EXT-{name} - [0:0]");
    let _ = writeln!(
        rules,
        "-A KUBE-EXT-{name} -j KUBE-MARK-MASQ\n-A KUBE-EXT-{name} -j KUBE-SVC-{name}"
    );
    let endpoints = (0..service.backends.len()).map(|n| format!("KUBE-SEP-{name}-{n}"));
    let endpoints: Vec<String> = endpoints.collect();
    if let Some(seconds) = service.affinity {
        for endpoint in &endpoints {
            let _ = writeln!(
                rules,
                "-A KUBE-SVC-{name} -m recent --name {endpoint} --rcheck --seconds {seconds} \
                 --reap -j {endpoint}"
            );
        }
    }
    for (number, (endpoint, backend)) in endpoints.iter().zip(&service.backends).enumerate() {
        let _ = writeln!(names, ":{endpoint} - [0:0]");
        let left = service.backends.len() - number;
        let chance = 1.0 / left as f64;
        let choice = if left > 1 {
            format!("-m statistic --mode random --probability {chance:.10} ")
        } else {
            String::new()
        };
        let _ = writeln!(rules, "-A KUBE-SVC-{name} {choice}-j {endpoint}");
        let address = backend.ip();
        let stay = match service.affinity {
            Some(_) => format!("-m recent --name {endpoint} --set "),
            None => String::new(),
        };
        let _ = writeln!(
            rules,
            "-A {endpoint} -s {address} -j KUBE-MARK-MASQ\n\
             -A {endpoint} -p {protocol} {stay}-j DNAT --to-destination {backend}"
        );
    }
}

/// Adds the addresses and ports that lead to one port's chains.
fn ways_in(rules: &mut String, node_ports: &mut String, service: &TranslatedPort) {
    let (name, protocol, port) = (&service.name, service.keyword(), service.port);
    let cluster = service.cluster_ips.iter().map(|address| (address, "SVC"));
    let external = service.external_ips.iter().map(|address| (address, "EXT"));
    for (address, chain) in cluster.chain(external) {
        let _ = writeln!(
            rules,
            "-A KUBE-SERVICES -d {address} -p {protocol} --dport {port} -j KUBE-{chain}-{name}"
        );
    }
    if let Some(port) = service.node_port {
        let _ = writeln!(
            node_ports,
            "-A KUBE-NODEPORTS -p {protocol} --dport {port} -j KUBE-EXT-{name}"
        );
    }
}
