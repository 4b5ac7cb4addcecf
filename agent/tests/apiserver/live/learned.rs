//! Learned policies, as an API server takes them.

use netpold::source::{decode, document};
use netpold_testbed::ApiServer;
use serde_json::Value;

use super::{netpold, stderr, stdout};

/// Whether all that was written was kept; a server adds defaults, and drops what it does not know.
fn kept(written: &Value, stored: &Value) -> Result<(), String> {
    let differs = || Err(format!("{written} was written, {stored} is kept"));
    match (written, stored) {
        (Value::Object(written), Value::Object(all)) => {
            for (field, value) in written {
                // `omitempty`: an empty list and none are the same to this API.
                if value.as_array().is_some_and(Vec::is_empty) && !all.contains_key(field) {
                    continue;
                }
                let stored = all.get(field).ok_or_else(|| format!("{field} is not kept"))?;
                kept(value, stored).map_err(|error| format!("{field}: {error}"))?;
            }
            Ok(())
        }
        (Value::Array(written), Value::Array(stored)) if written.len() == stored.len() => {
            written.iter().zip(stored).try_for_each(|(written, stored)| kept(written, stored))
        }
        (written, stored) if written == stored => Ok(()),
        _ => differs(),
    }
}

/// A server-side apply that leaves nothing behind; kubectl checks the fields by the server's schema before.
pub(super) fn policies_are_what_the_api_server_keeps(server: &ApiServer) {
    let output = netpold(server, &server.admin(), &["learn", "-n", "shop"]);
    let yaml = stdout(&output);
    let documents = document::parse(&yaml).unwrap();
    let policies: Vec<Value> =
        documents.iter().map(|document| decode::decode(document).unwrap()).collect();
    assert!(!policies.is_empty(), "{yaml}{}", stderr(&output));
    let apply = ["apply", "--server-side", "--force-conflicts", "--dry-run=server"];
    for policy in policies {
        let more = ["--validate=strict", "-o", "json", "-f", "-"];
        let stored = server.kubectl_with(&[&apply[..], &more].concat(), &policy.to_string());
        let stored: Value = serde_json::from_str(&stored.unwrap()).unwrap();
        kept(&policy, &stored).unwrap();
        assert_eq!(stored["metadata"]["annotations"]["netpold.io/enforcement"], "audit");
        let mut unknown = policy.clone();
        unknown["spec"]["ingres"] = Value::Array(vec![Value::Null]);
        assert!(kept(&unknown, &stored).is_err());
    }
    // As people apply it, comments and all.
    let more = ["--validate=strict", "-f", "-"];
    server.kubectl_with(&[&apply[..], &more].concat(), &yaml).unwrap();
}
