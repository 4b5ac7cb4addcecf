//! Writers of peer slices.

use serde_json::json;

use crate::manifests::expressions::Expressions;
use crate::manifests::rendered::{can_render, find, option};

#[test]
fn only_the_controller_writes_peer_slices() {
    if !can_render("only_the_controller_writes_peer_slices") {
        return;
    }
    let objects = option("peer-slices");
    let policy = find(&objects, "ValidatingAdmissionPolicy", "netpold-peer-slices");
    let policy = Expressions::of(policy);
    let refused = |operation: &str, user: &str, groups: &[&str]| {
        let user = json!({ "username": user, "groups": groups });
        let request = json!({ "operation": operation, "userInfo": user });
        !policy.refusals(&[("request", &request)]).is_empty()
    };
    let account = |name: &str| format!("system:serviceaccount:netpold-system:{name}");
    for operation in ["CREATE", "UPDATE", "DELETE"] {
        assert!(!refused(operation, &account("netpold-controller"), &[]));
        assert!(refused(operation, &account("netpold"), &["system:authenticated"]));
        let deletes = operation == "DELETE";
        assert_eq!(refused(operation, "admin", &["system:masters"]), !deletes, "{operation}");
    }
}
