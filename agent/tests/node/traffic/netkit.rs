//! Pods behind netkit devices (kernel 6.7): netpold treats a netkit device as a device of the node, and packets from it
//! as packets of an unknown sender.

use std::io;
use std::os::fd::AsRawFd;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoNetkit, LinkAttribute, LinkInfo, LinkMessage, NetkitMode,
};
use netpold_ebpf::layout::{endpoint_slot, mark};
use netpold_testbed::cluster::{ENFORCED, NAMESPACE, TestCluster, all_pass, allow_from, none_pass};
use netpold_testbed::{Cni, PodSpec, TestPod, require_root};
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Creates a netkit pair, one end in the current namespace and one in a pod's; the `ip` command of Debian 12 cannot.
fn pair(name: &str, pod: &TestPod, mode: NetkitMode) -> io::Result<()> {
    let there = std::fs::File::open(pod.netns().path())?;
    let mut far = LinkMessage::default();
    far.attributes.push(LinkAttribute::IfName("eth0".into()));
    far.attributes.push(LinkAttribute::NetNsFd(there.as_raw_fd()));
    let mut near = LinkMessage::default();
    near.attributes.push(LinkAttribute::IfName(name.into()));
    near.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Netkit),
        LinkInfo::Data(InfoData::Netkit(vec![InfoNetkit::Mode(mode), InfoNetkit::Peer(far)])),
    ]));
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    let payload = NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(near));
    let mut message = NetlinkMessage::new(header, payload);
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;
    let (answer, _) = socket.recv_from_full()?;
    // Acknowledgement: 0 or a negative errno, after the header of 16 bytes.
    let code = answer.get(16..20).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes);
    match code {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::Error::other("no acknowledgement")),
    }
}

/// Returns a pod with a netkit device in place of its veth.
fn behind_netkit(cluster: &TestCluster, mode: NetkitMode) -> io::Result<TestPod> {
    let node = &cluster.nodes[0];
    let pod = node.add_pod(&PodSpec::new(NAMESPACE, "netkit")).unwrap();
    let name = pod.host_interface().to_owned();
    node.netns().ip(&format!("link del {name}\n")).unwrap();
    node.run(|| pair(&name, &pod, mode)).unwrap()?;
    let [own4, own6] = node.addresses();
    let [ip4, ip6] = [pod.ip4().unwrap(), pod.ip6().unwrap()];
    node.netns()
        .ip(&format!(
            "link set {name} up\n\
             address add 169.254.1.1/32 dev {name} scope link\n\
             address add fe80::1/64 dev {name} nodad\n\
             route add {ip4} dev {name} src {own4}\n\
             route add {ip6} dev {name} src {own6}\n"
        ))
        .unwrap();
    pod.netns()
        .ip(&format!(
            "link set eth0 up\n\
             address add {ip4}/32 dev eth0\n\
             address add {ip6}/128 dev eth0 nodad\n\
             route add 169.254.1.1 dev eth0 scope link\n\
             route add default via 169.254.1.1 dev eth0\n\
             route add default via fe80::1 dev eth0\n"
        ))
        .unwrap();
    Ok(pod)
}

/// Packets from the device get the mark of an unknown sender, regardless of the mark that the pod sets.
#[test]
fn a_pod_behind_a_netkit_device_cannot_forge_a_mark() {
    const TEST: &str = "a_pod_behind_a_netkit_device_cannot_forge_a_mark";
    require_root!();
    for mode in [NetkitMode::L2, NetkitMode::L3] {
        let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "friend"]);
        cluster.policy("server", allow_from("server", "friend")).enforce();
        let pod = match behind_netkit(&cluster, mode) {
            Ok(pod) => pod,
            Err(e) => return eprintln!("SKIPPED {TEST}: no netkit here: {e}"),
        };
        let name = pod.host_interface().to_owned();
        let judged = |status: &serde_json::Value| status["devices"].to_string().contains(&name);
        cluster.agents[0].wait_for("programs at the netkit device", ENFORCED, judged).unwrap();
        let (server, friend) = (cluster.pod("server"), cluster.pod("friend"));
        all_pass(&pod, friend, friend.addresses());
        none_pass(&pod, server, server.addresses());
        for id in 0..7 {
            let forged = mark(endpoint_slot(server.host_ifindex(), 0), id) as u16;
            let _stain = pod.set_tc_index("eth0", forged).unwrap();
            none_pass(&pod, server, server.addresses());
            all_pass(&pod, friend, friend.addresses());
        }
    }
}
