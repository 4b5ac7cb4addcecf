//! Checks of a node: its kernel and its agent.

use std::fs;
use std::io;
use std::path::Path;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::LinkMessage;
use netpold_api::status::{AgentStatus, STATUS_REQUEST};
use netpold_client::socket::request;
use netpold_dataplane::attach::AttachMode;
use netpold_dataplane::bpffs::is_bpffs;
use netpold_dataplane::netlink::link::{IFLA_IFNAME, IFLA_LINKINFO, LINK_HEADER, link_kind, text};
use netpold_dataplane::netlink::{MessageBody, NetlinkConnection};
use netpold_dataplane::nftables;
use netpold_discovery::SERVICE_DEVICE;
use netpold_doctor::enforcers::{self, ENFORCERS};
use netpold_doctor::{Check, DoctorArgs, DoctorReport, Findings, Severity};

use super::netfilter;
use crate::requirements;

const KERNEL: Check = Check {
    name: "kernel",
    severity: Severity::Error,
    problem: "the kernel lacks a feature that netpold requires",
    fix: "boot a later kernel: deploy/limits.md lists tested versions",
};
const KERNEL_SLOW: Check = Check {
    name: "kernel-option",
    severity: Severity::Info,
    problem: "the kernel lacks an optional feature",
    fix: "a kernel of Linux 6.6 or later has it; `sysctl -w net.core.bpf_jit_enable=1`",
};
const NO_BPFFS: Check = Check {
    name: "bpffs",
    severity: Severity::Warning,
    problem: "no BPF file system is mounted where the agent pins its maps and links: enforcement ends \
              with the agent",
    fix: "`mount -t bpf bpf /sys/fs/bpf`; in Kubernetes agent.mountBpffs=true of the chart",
};
const NO_AGENT: Check = Check {
    name: "agent",
    severity: Severity::Error,
    problem: "no agent answers on this node",
    fix: "`kubectl -n netpold-system get pods -o wide`, and the log of the pod on this node; or give its \
          --socket",
};
const NOT_IN_SYNC: Check = Check {
    name: "agent-not-in-sync",
    severity: Severity::Warning,
    problem: "the agent is not in sync: the previously enforced state stays in force",
    fix: "`netpold status` shows what is missing under watches or files",
};
const AGENT_PROBLEM: Check = Check {
    name: "agent-problem",
    severity: Severity::Warning,
    problem: "the agent reports a problem",
    fix: "each names its remedy; deploy/troubleshooting.md lists all of them",
};
const NOT_ATTACHED: Check = Check {
    name: "pod-without-program",
    severity: Severity::Error,
    problem: "a pod's interface has no program: policy is not enforced for it",
    fix: "`netpold status` lists the reason under problems",
};
const NO_INTERFACE: Check = Check {
    name: "pod-without-interface",
    severity: Severity::Warning,
    problem: "a pod has an address, but no veth on this node: policy is not enforced for it",
    fix: "a pod that starts has one in a moment; SR-IOV, ipvlan, macvlan and netkit give pods none: use a \
          CNI with veths for pods under policy",
};
const OPEN_VSWITCH: Check = Check {
    name: "open-vswitch",
    severity: Severity::Warning,
    problem: "Open vSwitch forwards between its ports past the programs' exits",
    fix: "packets are judged at the pods' veths only if these are the ports: `ovs-vsctl list-ports` must \
          name veths that `netpold status` lists; do not use hardware offload",
};
const NETKIT: Check = Check {
    name: "netkit",
    severity: Severity::Error,
    problem: "pods behind netkit devices are not under policy: netpold judges at veths",
    fix: "configure the CNI for veth (Cilium: `--set bpf.datapathMode=veth`)",
};

const IPVS: Check = Check {
    name: "ipvs",
    severity: Severity::Warning,
    problem: "kube-proxy's IPVS mode is not supported: policy for packets to Services was not tested there",
    fix: "set mode: nftables or mode: iptables in kube-proxy's configuration",
};

/// Mount point where other tools pin.
const BPFFS: &str = "/sys/fs/bpf";

/// Checks this node.
pub(crate) fn examine(args: &DoctorArgs) -> DoctorReport {
    let DoctorArgs { socket, bpffs, .. } = args;
    let mut found = Findings::default();
    kernel(&mut found);
    if !is_bpffs(bpffs.ancestors().find(|path| path.exists()).unwrap_or(bpffs)) {
        found.add(&NO_BPFFS, bpffs.display().to_string());
    }
    match request::<AgentStatus>(socket, STATUS_REQUEST, &()) {
        Ok(status) => agent(&status, &mut found),
        Err(error) => found.add(&NO_AGENT, format!("{error:#}")),
    }
    chains(&mut found);
    pins(Path::new(BPFFS), &mut found);
    if let Err(error) = devices(&mut found) {
        found.unknown(format!("devices: {error}"));
    }
    found.report()
}

fn kernel(found: &mut Findings) {
    if let Err(error) = requirements::privileges_here() {
        found.unknown(format!("kernel: {error}"));
        return;
    }
    match requirements::kernel() {
        Ok(Some(lack)) => found.add(&KERNEL, lack),
        Ok(None) => {}
        Err(error) => found.unknown(format!("kernel: {error:#}")),
    }
    for lack in requirements::lacks_here(AttachMode::probe()) {
        found.add(&KERNEL_SLOW, lack);
    }
}

fn agent(status: &AgentStatus, found: &mut Findings) {
    if !status.in_sync {
        found.add(&NOT_IN_SYNC, format!("source: {}", status.source.origin));
    }
    let source = status.source.problems.iter().map(ToString::to_string);
    for problem in status.problems.iter().cloned().chain(source) {
        found.add(&AGENT_PROBLEM, problem);
    }
    for endpoint in status.endpoints.iter().filter(|endpoint| !endpoint.addresses.is_empty()) {
        match (&endpoint.interface, &endpoint.hook) {
            (Some(interface), None) => {
                found.add(&NOT_ATTACHED, format!("Pod {} ({interface})", endpoint.pod));
            }
            (None, _) => found.add(&NO_INTERFACE, format!("Pod {}", endpoint.pod)),
            (Some(_), Some(_)) => {}
        }
    }
}

fn chains(found: &mut Findings) {
    let told = nftables::tables(|family, table| enforcers::table(family, table, found));
    let told = told.and_then(|()| {
        nftables::chains(nftables::ALL, |family, table, chain| {
            enforcers::chain(&format!("nftables table {family} {table}"), chain, found);
        })
    });
    if let Err(error) = told {
        found.unknown(format!("nftables: {}", needs_root(&error)));
    }
    let told = netfilter::old_chains(|table, chain| enforcers::chain(table, chain, found));
    if let Err(error) = told {
        found.unknown(format!("iptables: {}", needs_root(&error)));
    }
}

fn needs_root(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::PermissionDenied {
        return format!("{error}; run netpold doctor as root, or give it CAP_NET_ADMIN");
    }
    error.to_string()
}

/// Reports pins of other enforcers: non-empty directories, and objects.
fn pins(root: &Path, found: &mut Findings) {
    for enforcer in &ENFORCERS {
        for pin in enforcer.pins {
            let path = root.join(pin);
            let is_there = match fs::read_dir(&path) {
                Ok(mut entries) => entries.next().is_some(),
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => true,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    found.unknown(format!("{}: {error}", path.display()));
                    false
                }
                Err(_) => false,
            };
            if is_there {
                enforcer.found(format!("pinned in {}", path.display()), found);
            }
        }
    }
}

fn devices(found: &mut Findings) -> io::Result<()> {
    let all = RouteNetlinkMessage::GetLink(LinkMessage::default());
    for (name, kind) in NetlinkConnection::open()?.dump(&all, device)? {
        enforcers::device(&name, found);
        if name == SERVICE_DEVICE {
            found.add(&IPVS, format!("device {name}"));
        }
        match kind.as_str() {
            "openvswitch" => found.add(&OPEN_VSWITCH, format!("device {name}")),
            "netkit" => found.add(&NETKIT, format!("device {name}")),
            _ => {}
        }
    }
    Ok(())
}

/// Reads name and kind of a link.
fn device(link: MessageBody<'_>) -> Option<(String, String)> {
    let attribute = |wanted| link.attributes(LINK_HEADER).find(|(kind, _)| *kind == wanted);
    let (_, name) = attribute(IFLA_IFNAME)?;
    let kind = attribute(IFLA_LINKINFO).map(|(_, info)| link_kind(info)).unwrap_or_default();
    Some((text(name), kind))
}
