//! Policies of `netpold learn`, as an API server stores them.

use netpold_kube::{decode, document};
use netpold_testbed::ApiServer;
use serde_json::Value;

use super::{netpold, stderr, stdout};

/// Checks that the stored object has every written value; a server adds defaults and drops unknown fields.
fn kept(written: &Value, stored: &Value) -> Result<(), String> {
    let differs = || Err(format!("{written} was written, {stored} is kept"));
    match (written, stored) {
        (Value::Object(written), Value::Object(all)) => {
            for (field, value) in written {
                // `omitempty`: this API does not distinguish an empty list from an absent one.
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

/// Applies the policies server-side in a dry run; kubectl validates the fields by the server's schema first.
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
    // Applies the printed YAML itself, comments included.
    let more = ["--validate=strict", "-f", "-"];
    server.kubectl_with(&[&apply[..], &more].concat(), &yaml).unwrap();
}
