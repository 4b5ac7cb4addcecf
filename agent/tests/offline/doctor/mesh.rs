//! Pods of service meshes, and the meshes' ports.

use super::{examine, places, policy};

/// Namespaces `x` and `y`, each with a pod that labels, annotations or containers put into a mesh; `z` with a pod
/// outside the mesh.
struct World {
    namespace: &'static str,
    labels: &'static str,
    annotations: &'static str,
    container: &'static str,
}

const AMBIENT: World = World {
    namespace: "labels: {istio.io/dataplane-mode: ambient}",
    labels: "",
    annotations: "",
    container: "",
};
const LINKERD: World =
    World { namespace: "", labels: "", annotations: "", container: "{name: linkerd-proxy}, " };

impl World {
    fn objects(&self) -> String {
        let Self { namespace, labels, annotations, container } = self;
        let mut objects = String::new();
        for (number, name) in ["x", "y", "z"].into_iter().enumerate() {
            let (namespace, labels, annotations, container) = match name {
                "z" => ("", "", "", ""),
                _ => (*namespace, *labels, *annotations, *container),
            };
            objects.push_str(&format!(
                "{{apiVersion: v1, kind: Namespace, metadata: {{name: '{name}', {namespace}}}}}\n---\n{{apiVersion: v1, kind: Pod, \
                 metadata: {{name: p, namespace: '{name}', labels: {{app: '{name}', {labels}}}, annotations: {{{annotations}}}}}, spec: \
                 {{nodeName: n1, containers: [{container}{{name: c}}]}}, status: {{podIP: 10.0.0.{number}}}}}\n---\n"
            ));
        }
        // An injector adds its container before a pod runs.
        if container.is_empty() && format!("{namespace}{annotations}").contains("linkerd") {
            return objects.replace("podIP", "phase: Pending, message");
        }
        objects.replace("10.0.0.0", "10.0.0.9")
    }

    fn finds(&self, spec: &str) -> Vec<String> {
        let (_, report) = examine(&format!("{}{}", self.objects(), policy("p", spec)));
        places(&report)
            .get("mesh-port")
            .map_or(Vec::new(), |it| it.iter().map(ToString::to_string).collect())
    }
}

const FROM_Y: &str =
    "from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: 'y'}}}]";
const FROM_Z: &str = "from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: z}}}]";

#[test]
fn the_mesh_port_is_missed() {
    let worlds = [
        (AMBIENT, 15008),
        (World { namespace: "", labels: "istio.io/dataplane-mode: ambient", ..AMBIENT }, 15008),
        (
            World {
                namespace: "",
                annotations: "ambient.istio.io/redirection: enabled",
                ..AMBIENT
            },
            15008,
        ),
        (LINKERD, 4143),
        (World { annotations: "linkerd.io/inject: enabled", container: "", ..LINKERD }, 4143),
        (
            World {
                namespace: "annotations: {linkerd.io/inject: enabled}",
                container: "",
                ..LINKERD
            },
            4143,
        ),
    ];
    for (world, port) in worlds {
        let ingress = |rules: &str| world.finds(&format!("podSelector: {{}}, ingress: [{rules}]"));
        let at = |path: &str| [format!("NetworkPolicy x/p: {path}.ports: no TCP {port} (Pod x/p)")];
        assert_eq!(
            ingress(&format!("{{{FROM_Y}, ports: [{{port: 8080}}]}}")),
            at("spec.ingress[0]")
        );
        assert_eq!(ingress("{ports: [{port: 8080}]}"), at("spec.ingress[0]"));
        for rules in [
            String::new(),
            "{}".to_owned(),
            format!("{{{FROM_Y}}}"),
            format!("{{{FROM_Y}, ports: [{{port: 8080}}, {{port: {port}}}]}}"),
            format!(
                "{{{FROM_Y}, ports: [{{port: 8080}}]}}, {{{FROM_Y}, ports: [{{port: {port}}}]}}"
            ),
            format!("{{{FROM_Z}, ports: [{{port: 8080}}]}}"),
            format!("{{{FROM_Z}, ports: [{{port: 8080}}, {{port: {port}}}]}}"),
            format!("{{{FROM_Y}, ports: [{{port: 53, protocol: UDP}}]}}"),
            format!(
                "{{{FROM_Y}, ports: [{{port: 8080}}]}}, {{from: [{{ipBlock: {{cidr: 10.0.0.0/8}}}}], ports: [{{port: {port}}}]}}"
            ),
            "{from: [{ipBlock: {cidr: 203.0.113.0/24}}], ports: [{port: 8080}]}".to_owned(),
        ] {
            assert_eq!(ingress(&rules), [""; 0], "{port}: {rules}");
        }
        // The mesh's port is open to others than members only.
        let others = format!(
            "{{{FROM_Y}, ports: [{{port: 8080}}]}}, {{{FROM_Z}, ports: [{{port: {port}}}]}}"
        );
        assert_eq!(ingress(&others), at("spec.ingress[0]"));
        let egress = |rules: &str| {
            let dns = "{ports: [{port: 53, protocol: UDP}]}";
            world.finds(&format!(
                "podSelector: {{}}, policyTypes: [Egress], egress: [{dns}, {rules}]"
            ))
        };
        let to = FROM_Y.replace("from", "to");
        assert_eq!(egress(&format!("{{{to}, ports: [{{port: 8080}}]}}")), at("spec.egress[1]"));
        for rules in [
            "{ports: [{port: 443}]}".to_owned(),
            format!("{{{to}, ports: [{{port: 8080}}, {{port: {port}}}]}}"),
            format!("{{{}, ports: [{{port: 8080}}]}}", FROM_Z.replace("from", "to")),
        ] {
            assert_eq!(egress(&rules), [""; 0], "{port}: {rules}");
        }
    }
}

#[test]
fn pods_that_are_in_no_mesh() {
    let rules = format!("podSelector: {{}}, ingress: [{{{FROM_Y}, ports: [{{port: 8080}}]}}]");
    let none = World { namespace: "", ..AMBIENT };
    assert_eq!(none.finds(&rules), [""; 0]);
    let out = World { labels: "istio.io/dataplane-mode: none", ..AMBIENT };
    assert_eq!(out.finds(&rules), [""; 0]);
    // Pods that run without the proxy, and those that an annotation leaves out.
    let annotated = World {
        namespace: "annotations: {linkerd.io/inject: enabled}",
        labels: "",
        annotations: "",
        container: "{name: other}, ",
    };
    assert_eq!(annotated.finds(&rules), [""; 0]);
    let disabled = World { annotations: "linkerd.io/inject: disabled", container: "", ..annotated };
    assert_eq!(disabled.finds(&rules), [""; 0]);
    // Sidecars keep the application's port.
    let sidecars = World { container: "{name: istio-proxy}, ", ..none };
    assert_eq!(sidecars.finds(&rules), [""; 0]);
}

/// The mesh's proxy listens at its port, which no container lists.
#[test]
fn the_port_of_the_mesh_need_not_be_listed() {
    let listed =
        |objects: String| objects.replace("{name: c}", "{name: c, ports: [{containerPort: 8080}]}");
    for (world, port) in [(AMBIENT, 15008), (LINKERD, 4143)] {
        let of = |number: u16| {
            let rules = format!(
                "podSelector: {{}}, ingress: [{{{FROM_Y}, ports: [{{port: 8080}}, {{port: {port}}}, {{port: {number}}}]}}]"
            );
            let (_, report) =
                examine(&format!("{}{}", listed(world.objects()), policy("p", &rules)));
            places(&report).get("port-not-listed").map_or(0, Vec::len)
        };
        assert_eq!((of(8080), of(9)), (0, 1), "{port}");
    }
}

/// A control plane with these labels, in a namespace `control`.
fn control_plane(labels: &[&str]) -> String {
    let mut objects =
        "---\n{apiVersion: v1, kind: Namespace, metadata: {name: control}}\n".to_owned();
    for (number, labels) in labels.iter().enumerate() {
        objects.push_str(&format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: c{number}, namespace: control, labels: {{{labels}}}}}, \
             spec: {{nodeName: n1, containers: [{{name: c}}]}}, status: {{podIP: 10.0.1.{}}}}}\n",
            number + 1
        ));
    }
    objects + "---\n"
}

#[test]
fn proxies_reach_their_control_plane() {
    let istio = World { namespace: "", container: "{name: istio-proxy}, ", ..AMBIENT };
    let istiod = &["app: istiod"][..];
    let linkerd = &[
        "linkerd.io/control-plane-component: identity",
        "linkerd.io/control-plane-component: destination",
    ][..];
    let to = "to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: control}}}]";
    let dns = "{ports: [{port: 53, protocol: UDP}]}";
    let finds = |world: &World, control: &[&str], rules: &str| {
        let spec = format!("podSelector: {{}}, policyTypes: [Egress], egress: [{rules}]");
        let objects =
            format!("{}{}{}", world.objects(), control_plane(control), policy("p", &spec));
        let (_, report) = examine(&objects);
        let found = places(&report);
        found
            .get("mesh-control-plane")
            .map_or(Vec::new(), |it| it.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    for (world, control, ports) in
        [(&istio, istiod, &[15012][..]), (&LINKERD, linkerd, &[8080, 8086, 8090])]
    {
        let lacks = |port| [format!("Pod x/p: no TCP {port} (NetworkPolicy x/p)")];
        assert_eq!(finds(world, control, dns), lacks(ports[0]));
        assert_eq!(finds(world, control, ""), lacks(ports[0]));
        // Each of the ports is needed.
        for missing in ports {
            let others: String = ports
                .iter()
                .filter(|port| *port != missing)
                .map(|port| format!(", {{{to}, ports: [{{port: {port}}}]}}"))
                .collect();
            assert_eq!(finds(world, control, &format!("{dns}{others}")), lacks(*missing));
        }
        for rules in [
            "{}".to_owned(),
            format!("{dns}, {{{to}}}"),
            format!("{dns}, {{ports: [{{port: 1, endPort: 65535}}]}}"),
            format!("{dns}, {{to: [{{ipBlock: {{cidr: 10.0.1.0/24}}}}]}}"),
        ] {
            assert_eq!(finds(world, control, &rules), [""; 0], "{rules}");
        }
        assert_eq!(finds(world, &[], dns), [""; 0], "the control plane is elsewhere");
    }
    assert_eq!(finds(&AMBIENT, istiod, dns), [""; 0]);
    assert_eq!(finds(&istio, linkerd, dns), [""; 0]);
}
