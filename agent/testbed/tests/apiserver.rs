//! The control plane of the tests.

use netpold_testbed::{ApiServer, Credential, require_apiserver};
use nix::sys::signal::Signal;

const OBJECTS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: shop}
";

#[test]
fn a_control_plane_comes_goes_and_comes_back() {
    if !require_apiserver("a_control_plane_comes_goes_and_comes_back") {
        return;
    }
    let mut server = ApiServer::start().unwrap();
    server.apply(OBJECTS).unwrap();
    let token = server.token("shop", "reader").unwrap();
    let reader = server.write_kubeconfig("reader", &Credential::Token(&token)).unwrap();
    let refused = server
        .kubectl_command()
        .unwrap()
        .args(["get", "pods", "-n", "shop", "--kubeconfig"])
        .arg(reader)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("system:serviceaccount:shop:reader"), "{said}");
    server.end(Signal::SIGKILL);
    assert!(server.kubectl(&["get", "namespaces"]).is_err());
    server.restart().unwrap();
    server.etcd().compact().unwrap();
    assert!(server.kubectl(&["get", "namespace", "shop", "-o", "name"]).unwrap().contains("shop"));
    let requests = server.requests("system:serviceaccount:shop:reader").unwrap();
    let listed = requests.iter().find(|r| r.resource == "pods").unwrap();
    assert_eq!((listed.verb.as_str(), listed.code), ("list", 403));
}
