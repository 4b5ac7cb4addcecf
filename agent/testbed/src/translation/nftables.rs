//! The rules of kube-proxy's nftables mode, without rules that have no effect in the testbed.

use std::fmt::Write as _;

use super::port::{MASQUERADE, TranslatedPort};

/// Returns the table of a family, as a script that replaces the former table.
pub(super) fn rules(v6: bool, services: &[TranslatedPort]) -> String {
    let (family, kind) = if v6 { ("ip6", "ipv6_addr") } else { ("ip", "ipv4_addr") };
    let mut table = format!(
        "table {family} kube-proxy {{}}\n\
         delete table {family} kube-proxy\n\
         table {family} kube-proxy {{\n\
         map service-ips {{ type {kind} . inet_proto . inet_service : verdict; }}\n\
         map service-nodeports {{ type inet_proto . inet_service : verdict; }}\n\
         chain mark-for-masquerade {{ mark set mark or {MASQUERADE}; }}\n\
         chain masquerading {{\n\
         mark and {MASQUERADE} == 0 return\n\
         mark set mark xor {MASQUERADE}\n\
         masquerade fully-random\n}}\n\
         chain services {{\n\
         {family} daddr . meta l4proto . th dport vmap @service-ips\n\
         fib daddr type local meta l4proto . th dport vmap @service-nodeports\n}}\n\
         chain nat-prerouting {{ type nat hook prerouting priority dstnat; jump services; }}\n\
         chain nat-output {{ type nat hook output priority -100; jump services; }}\n\
         chain nat-postrouting {{ type nat hook postrouting priority srcnat; jump masquerading; }}\n"
    );
    services.iter().for_each(|service| chains(&mut table, family, kind, service));
    table += "}\n";
    services.iter().for_each(|service| elements(&mut table, family, service));
    table
}

/// Adds the chains of one Service port: for external addresses, for the choice of a backend, and for each backend.
fn chains(table: &mut String, family: &str, kind: &str, service: &TranslatedPort) {
    let (name, protocol) = (&service.name, service.keyword());
    let mut choice = String::new();
    for (number, backend) in service.backends.iter().enumerate() {
        let endpoint = format!("endpoint-{name}-{number}");
        let address = backend.ip();
        let mut stay = String::new();
        if let Some(seconds) = service.affinity {
            let set = format!("affinity-{name}-{number}");
            let _ = writeln!(
                table,
                "set {set} {{ type {kind}; flags dynamic,timeout; timeout {seconds}s; }}"
            );
            stay = format!("update @{set} {{ {family} saddr }}\n");
            let _ = writeln!(choice, "{family} saddr @{set} goto {endpoint}");
        }
        let _ = writeln!(
            table,
            "chain {endpoint} {{\n{family} saddr {address} jump mark-for-masquerade\n{stay}\
             meta l4proto {protocol} dnat to {backend}\n}}"
        );
    }
    let goto = (0..service.backends.len()).map(|n| format!("{n} : goto endpoint-{name}-{n}"));
    let goto = goto.collect::<Vec<_>>().join(", ");
    let count = service.backends.len();
    let _ = writeln!(
        table,
        "chain service-{name} {{\n{choice}numgen random mod {count} vmap {{ {goto} }}\n}}\n\
         chain external-{name} {{\njump mark-for-masquerade\ngoto service-{name}\n}}"
    );
}

/// Adds the map elements of one Service port.
fn elements(rules: &mut String, family: &str, service: &TranslatedPort) {
    let (name, protocol, port) = (&service.name, service.keyword(), service.port);
    let cluster = service.cluster_ips.iter().map(|address| (address, "service"));
    let external = service.external_ips.iter().map(|address| (address, "external"));
    for (address, chain) in cluster.chain(external) {
        let _ = writeln!(
            rules,
            "add element {family} kube-proxy service-ips \
             {{ {address} . {protocol} . {port} : goto {chain}-{name} }}"
        );
    }
    if let Some(port) = service.node_port {
        let _ = writeln!(
            rules,
            "add element {family} kube-proxy service-nodeports \
             {{ {protocol} . {port} : goto external-{name} }}"
        );
    }
}
