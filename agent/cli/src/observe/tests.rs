use netpold_api::events::{LostEvents, TrafficVerdict};
use netpold_api::observe::{Attribution, ObserveLine, ObservedEvent, PolicyName, RuleName};
use netpold_api::samples::{NODE, event};
use netpold_core::cluster::AddressOwner;
use netpold_core::model::{Direction, Key};

use super::{lost_text, text};

fn plain(line: &ObserveLine) -> String {
    anstream::adapter::strip_str(&text(line).unwrap()).to_string()
}

#[test]
fn lines_for_people() {
    let web = Key::new("shop", "db");
    let rule =
        RuleName { policy: PolicyName::new(&web), index: 0, matches: "TCP 80 from anyone".into() };
    let mut denied = event(0);
    denied.attribution = Attribution {
        policies: vec![rule.policy.clone(), PolicyName::new(&Key::new("", "all"))],
        more_policies: 2,
        nearest: Some(rule.clone()),
        lacks: vec!["port 5432 is not in it".into()],
        ..Attribution::default()
    };
    let line = ObserveLine::Event(Box::new(denied.clone()));
    assert_eq!(
        plain(&line),
        "2026-11-23T10:00:00.000Z n1 deny ingress shop/db:5432 <- shop/web:4000 TCP policy: shop/db, \
         ClusterNetworkPolicy all, 2 more; nearest is rule 1 of shop/db: port 5432 is not in it"
    );
    let read: ObserveLine = serde_json::from_str(&serde_json::to_string(&line).unwrap()).unwrap();
    assert_eq!(read, line);
    let allowed = ObservedEvent {
        verdict: TrafficVerdict::Allow,
        reason: "allowed".into(),
        direction: Direction::Egress,
        peer: Some(AddressOwner::Outside),
        remote: Some("fd00::2".parse().unwrap()),
        attribution: Attribution {
            policies: vec![rule.policy.clone()],
            rule: Some(rule),
            ..Attribution::default()
        },
        ..event(0)
    };
    assert!(plain(&ObserveLine::Event(Box::new(allowed))).ends_with(
        " n1 allow egress shop/db:5432 -> [fd00::2]:4000 TCP: shop/db rule 1 (TCP 80 from anyone)"
    ));
    // Control characters in a name neither break the line nor move the cursor.
    let forged = ObservedEvent { pod: Some(Key::new("x\n\u{1b}[2J", "\u{202e}y")), ..event(0) };
    let shown = plain(&ObserveLine::Event(Box::new(forged)));
    assert!(shown.contains(r"x\n\u{1b}[2J/\u{202e}y"), "{shown:?}");
    let unknown = ObservedEvent {
        pod: None,
        interface: Some("veth7".into()),
        peer: None,
        remote: None,
        protocol: None,
        local_port: 0,
        remote_port: 0,
        reason: "not_ip".into(),
        attribution: Attribution::default(),
        ..denied
    };
    let shown = plain(&ObserveLine::Event(Box::new(unknown)));
    assert!(shown.ends_with(" n1 deny ingress veth7 <- unknown not IP not_ip"), "{shown}");
}

#[test]
fn everything_lost_is_named() {
    let lost = LostEvents { kernel: 4, flows: 3, slow: 2, unattributed: 1 };
    let shown = plain(&ObserveLine::Lost { node: NODE.into(), lost });
    for part in ["n1: 4 drops", "; 3 flows", "; 2 events", "; 1 events are without policy"] {
        assert!(shown.contains(part), "{shown}");
    }
    assert_eq!(lost_text(&LostEvents::default()), "");
}
