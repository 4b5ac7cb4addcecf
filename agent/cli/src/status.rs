//! `netpold status`: the status of an agent, or of all agents of a cluster.

mod args;
mod client;
mod cluster;
mod render;

pub use args::StatusArgs;
pub use client::run;
pub use cluster::{ClusterStatus, merge};

#[cfg(test)]
mod tests {
    use netpold_api::status::{AgentStatus, EndpointStatus, RecentDrop};
    use netpold_core::model::{Direction, Key};

    use super::render::text;

    #[test]
    fn names_forge_no_lines() {
        let forged = "x\nproblems\x1b[2J\u{202e}";
        let status = AgentStatus {
            node: forged.to_owned(),
            problems: vec![format!("policy {forged}: refused")],
            waiting: vec![forged.to_owned()],
            not_enforced: vec![forged.to_owned()],
            devices: vec![forged.to_owned()],
            recent_drops: vec![RecentDrop {
                at: 0,
                pod: forged.to_owned(),
                direction: Direction::Ingress,
                packet: String::new(),
                reason: forged.to_owned(),
                explanation: vec![forged.to_owned()],
            }],
            endpoints: vec![EndpointStatus {
                pod: Key::new(forged, forged),
                interface: Some(forged.to_owned()),
                ifindex: Some(1),
                addresses: Vec::new(),
                isolated: Vec::new(),
                rejects: Vec::new(),
                observed: false,
                hook: Some(forged.to_owned()),
                xdp: None,
            }],
            ..AgentStatus::default()
        };
        let shown = text(serde_json::to_value(&status).unwrap()).unwrap();
        let shown = anstream::adapter::strip_str(&shown).to_string();
        let plain = AgentStatus { problems: vec!["x".into()], ..status.clone() };
        let lines = |text: &str| text.lines().count();
        let same = text(serde_json::to_value(&plain).unwrap()).unwrap();
        assert_eq!(lines(&shown), lines(&same), "{shown}");
        let named = shown.matches(r"x\nproblems\u{1b}[2J\u{202e}").count();
        assert_eq!(named, 12, "{shown}");
        assert!(!shown.lines().any(|line| line.starts_with("problems\x1b")), "{shown}");
    }
}
