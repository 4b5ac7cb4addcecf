//! Objects of the hostile tenant.

use std::fmt::Write;

use netpold_kube::convert::Kind;
use netpold_testkit::random::Random;

use super::{HOSTILE, NODE, OTHER};

/// Names of the hostile tenant's objects of each kind: few, so that objects are edited, and created again after a
/// deletion. One name has the maximum length that the API accepts.
pub(super) const NAMES: [&str; 4] = ["a", "b", "c", LONG_NAME];
const LONG_NAME: &str = "llllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllll\
     llllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllll\
     llllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllll\
     lllllllllllllllllllllllllllllllllllllllllllllllllllllllllllll";
/// Number of policies of a flood, above the agent's limit for Events.
pub(super) const FLOOD: usize = 120;

/// Returns unsupported policies that select every pod of the hostile tenant and sort before the other tenant's
/// policies by name.
pub(super) fn flood() -> impl Iterator<Item = String> {
    (0..FLOOD).map(|number| {
        let metadata = format!(r#""name":"flood-{number:03}","namespace":"{HOSTILE}""#);
        format!(r#"{{"metadata":{{{metadata}}},"spec":{{"podSelector":{{}},"ingress":[{{"from":[{BAD}]}}]}}}}"#)
    })
}

/// Peer that the API accepts but that matches no address on the wire (IPv4-mapped).
pub(super) const BAD: &str = r#"{"ipBlock":{"cidr":"::ffff:10.0.0.0/104"}}"#;
/// Maximum number of rules of a policy in one direction: few enough for the tables. The compiler's budgets limit the
/// cost of more rules.
const RULES: usize = 60;

pub(super) fn kind(random: &mut Random) -> Kind {
    [Kind::NetworkPolicy, Kind::Pod, Kind::Service, Kind::EndpointSlice, Kind::NetworkPolicy]
        [random.below(5)]
}

/// Returns an object of the hostile tenant, damaged in half of the cases.
pub(super) fn hostile(kind: Kind, name: &str, random: &mut Random) -> Vec<u8> {
    let rest = match kind {
        Kind::Pod => format!(
            r#""spec":{{"nodeName":"{}","hostNetwork":{},"containers":[{{"ports":[{}]}}]}},"status":{{"phase":"{}"}}"#,
            one(random, &[NODE, NODE, "n2", ""]),
            one(random, &["false", "false", "true"]),
            many(random, 40, |r| format!(
                r#"{{"name":"p{}","containerPort":{}}}"#,
                r.below(9),
                r.below(70_000)
            )),
            one(random, &["Running", "Running", "Failed"]),
        ),
        Kind::Service => format!(
            r#""spec":{{"clusterIP":"{}","externalIPs":[{}],"ports":[{}]}}"#,
            one(random, &["10.96.7.7", "10.96.7.8", "None", "10.96.0.1"]),
            many(random, 3, |r| format!(
                "\"{}\"",
                one(r, &["192.0.2.1", "10.0.0.2", "203.0.113.1", "0.0.0.0"])
            )),
            many(random, 40, |r| format!(
                r#"{{"name":"p{0}","port":{0},"nodePort":{1}}}"#,
                r.below(500),
                30_000 + r.below(99)
            )),
        ),
        Kind::EndpointSlice => format!(
            r#""addressType":"{}","endpoints":[{}],"ports":[{}]"#,
            one(random, &["IPv4", "IPv4", "IPv6", "FQDN"]),
            many(random, 40, |r| format!(
                r#"{{"addresses":["{}"],"conditions":{{"ready":{}}}}}"#,
                address(r),
                r.below(2) == 0
            )),
            many(random, 40, |r| format!(
                r#"{{"name":"p{}","port":{}}}"#,
                r.below(500),
                r.below(70_000)
            )),
        ),
        // Tenants write no cluster-scoped objects.
        Kind::Namespace | Kind::Node | Kind::ClusterNetworkPolicy | Kind::NetworkPolicy => {
            policy(random)
        }
    };
    let json = format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"{HOSTILE}","labels":{{{}"kubernetes.io/service-name":"{}"}},
            "managedFields":[{{"time":"{}","fieldsV1":{}}}]}},{rest}}}"#,
        many(random, 300, |r| format!(r#""l{}":"{}""#, r.below(1_000_000), r.below(50))) + ",",
        one(random, &NAMES),
        one(random, &["10000-01-01T00:00:00Z", "0000-01-01T00:00:00Z", "-0001-12-31T00:00:00Z"]),
        nested(one(random, &[1, 1, 1, 200, 200, 100_000])),
    );
    let json = json.replace("{,", "{");
    if random.below(2) == 0 { damaged(json.into_bytes(), random) } else { json.into_bytes() }
}

fn policy(random: &mut Random) -> String {
    let app = one(random, &["a", "b", "v1", "v2"]);
    let selector = [
        "{}".to_owned(),
        format!(r#"{{"matchLabels":{{"app":"{app}"}}}}"#),
        format!(
            r#"{{"matchExpressions":[{{"key":"app","operator":"NotIn","values":["{app}"]}}]}}"#
        ),
    ];
    let rules = |random: &mut Random, side: &str| {
        many(random, RULES, |r| {
            let peers = many(r, 5, peer);
            let ports = many(r, 5, |r| {
                let first = r.below(66_000);
                format!(r#"{{"port":{first},"endPort":{}}}"#, first + r.below(2000))
            });
            format!(r#"{{"{side}":[{peers}],"ports":[{ports}]}}"#)
        })
    };
    format!(
        r#""spec":{{"podSelector":{},"policyTypes":[{}],"ingress":[{}],"egress":[{}]}}"#,
        selector[random.below(3)],
        one(random, &["", "\"Ingress\"", "\"Egress\"", "\"Ingress\",\"Egress\"", "\"All\""]),
        rules(random, "from"),
        rules(random, "to"),
    )
}

/// Returns a peer: overlapping blocks with exceptions, or selectors that also match the other tenant.
fn peer(random: &mut Random) -> String {
    let selector = |random: &mut Random| {
        let team = one(random, &[HOSTILE, OTHER]);
        one(random, &["{}".to_owned(), format!(r#"{{"matchLabels":{{"team":"{team}"}}}}"#)])
    };
    if random.below(4) == 0 {
        return format!(r#"{{"namespaceSelector":{},"podSelector":{{}}}}"#, selector(random));
    }
    let address = address(random);
    let except = if address.contains(':') { String::new() } else { format!("\"{address}/32\"") };
    let (wide, narrow) = if address.contains(':') { (0, 128) } else { (random.below(25), 32) };
    match random.below(3) {
        0 => format!(r#"{{"ipBlock":{{"cidr":"{address}/{narrow}"}}}}"#),
        1 => format!(r#"{{"ipBlock":{{"cidr":"{address}/{wide}","except":[{except}]}}}}"#),
        _ => format!(
            r#"{{"ipBlock":{{"cidr":"{}","except":[{except}]}}}}"#,
            one(random, &["0.0.0.0/0", "10.0.0.0/8"])
        ),
    }
}

fn address(random: &mut Random) -> String {
    match random.below(6) {
        0 => format!("10.0.0.{}", random.below(6)),
        1 => format!("10.1.0.{}", random.below(6)),
        2 => format!("192.0.2.{}", random.below(256)),
        3 => format!("2001:db8::{:x}", random.below(8)),
        _ => format!("10.{}.{}.{}", random.below(3), random.below(256), random.below(256)),
    }
}

fn one<T: Clone>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len())].clone()
}

/// Returns a list of at most `most` items, in three of four cases of at most 3.
fn many(random: &mut Random, most: usize, mut make: impl FnMut(&mut Random) -> String) -> String {
    let most = if random.below(4) == 0 { most } else { most.min(3) };
    let all: Vec<String> = (0..random.below(most + 1)).map(|_| make(random)).collect();
    all.join(",")
}

fn nested(depth: usize) -> String {
    let mut text = String::new();
    (0..depth).for_each(|_| text.push_str("{\"f:a\":"));
    text.push_str("{}");
    (0..depth).for_each(|_| text.push('}'));
    text
}

/// Replaces some values by other JSON or by bytes that are not JSON.
fn damaged(mut json: Vec<u8>, random: &mut Random) -> Vec<u8> {
    for _ in 0..=random.below(3) {
        let at = random.below(json.len());
        // Values begin after a colon, a comma or a bracket.
        let begin = json[at..].iter().position(|b| b",:[".contains(b)).map_or(at, |n| at + n + 1);
        let end =
            json[begin..].iter().position(|b| b",]}".contains(b)).map_or(begin, |n| begin + n);
        let mut with = String::new();
        match random.below(12) {
            0 => with.push_str("null"),
            1 => with.push_str("[]"),
            2 => with.push_str("{}"),
            3 => with.push_str("1e400"),
            4 => with.push_str("-1"),
            5 => with.push_str(&nested(200)),
            6 => with.push_str(&nested(100_000)),
            7 => with.push_str("\"\\u0000\\u001b[2J\\n\""),
            8 => with = format!("\"{}\"", "x".repeat(1 << random.below(21))),
            9 => _ = write!(with, "\"a\":1,\"a\":2"),
            10 => with.push_str("18446744073709551615"),
            _ => {}
        }
        let with = if with.is_empty() { b"\"\xff\xfe\"".to_vec() } else { with.into_bytes() };
        json.splice(begin..end, with);
    }
    json
}
