//! Check for pods with a mesh's proxy whose policies keep it from the mesh's control plane.
//!
//! A proxy gets its certificate and configuration from the control plane. Without them, the pod does not become ready.

use netpold_client::details::Mesh;
use netpold_core::model::{Direction, Pod};
use netpold_core::probe::IpProtocol;

use crate::finding::{Check, Findings, Severity};
use crate::objects::{GroupedObjects, PodGroup, pods_text};

const MESH_CONTROL_PLANE: Check = Check {
    name: "mesh-control-plane",
    severity: Severity::Warning,
    problem: "pods have a proxy of {}, and their policies do not allow it to reach the mesh's control plane: it gets no \
              certificate, and the pods do not become ready",
    fix: "add an egress rule to the control plane: Istio {to: [{namespaceSelector: {}, podSelector: {matchLabels: {app: \
          istiod}}}], ports: [{port: 15012}]}, Linkerd {to: [{namespaceSelector: {}, podSelector: {matchExpressions: \
          [{key: linkerd.io/control-plane-component, operator: Exists}]}}], ports: [{port: 8080}, {port: 8086}, {port: \
          8090}]}",
};

/// Component of a control plane that every proxy of the mesh connects to.
struct Component {
    mesh: &'static str,
    /// Label of its pods.
    label: [&'static str; 2],
    /// TCP ports of its pods.
    ports: &'static [u16],
}

const COMPONENTS: [Component; 3] = [
    Component { mesh: "Istio", label: ["app", "istiod"], ports: &[15012] },
    Component {
        mesh: "Linkerd",
        label: ["linkerd.io/control-plane-component", "identity"],
        ports: &[8080],
    },
    Component {
        mesh: "Linkerd",
        label: ["linkerd.io/control-plane-component", "destination"],
        ports: &[8086, 8090],
    },
];

impl Component {
    fn is(&self, group: &PodGroup<'_>) -> bool {
        let [key, value] = self.label;
        group.labels.get(key).is_some_and(|found| found.as_str() == value)
    }
}

/// Checks the groups with a proxy, by the mesh of each group. In Istio's ambient mode the node's proxy connects.
pub(super) fn examine(objects: &GroupedObjects<'_>, meshes: &[Option<Mesh>], found: &mut Findings) {
    for (group, mesh) in objects.groups.iter().zip(meshes) {
        let mesh = match mesh {
            Some(Mesh::Istio | Mesh::IstioHbone) => "Istio",
            Some(Mesh::Linkerd) => "Linkerd",
            Some(Mesh::Ambient) | None => continue,
        };
        let is_server = COMPONENTS.iter().any(|component| component.is(group));
        let isolating = objects.isolating(group, Direction::Egress);
        let Some(pod) = group.pods.first().filter(|_| !is_server && !isolating.is_empty()) else {
            continue;
        };
        let mut of_mesh = COMPONENTS.iter().filter(|component| component.mesh == mesh);
        let Some(port) = of_mesh.find_map(|it| unreached(objects, pod, it)) else { continue };
        let text = |names: &str| format!("{}: no TCP {port} ({names})", pods_text(group));
        let place =
            objects.place_of(isolating.iter().map(|(policy, _)| *policy), "spec.egress", text);
        found.add_of(&MESH_CONTROL_PLANE, mesh, place);
    }
}

/// Returns the first port of a component that a pod reaches at none of its pods. A component without a pod address is
/// unknown.
fn unreached(objects: &GroupedObjects<'_>, pod: &Pod, component: &Component) -> Option<u16> {
    let servers = objects.groups.iter().filter(|group| component.is(group));
    let addresses: Vec<_> =
        servers.flat_map(|group| &group.pods).flat_map(|pod| pod.all_addresses()).collect();
    let allows =
        |port| addresses.iter().any(|at| objects.may_send(pod, *at, IpProtocol::TCP, port));
    let mut ports = component.ports.iter().copied();
    ports.find(|port| !addresses.is_empty() && !allows(*port))
}
