//! Rendering of flows as text.

use std::fmt::Write as _;

use anyhow::Result;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use netpold_api::flows::{CachedVerdicts, FlowState, FlowsAnswer, ListedFlow};
use netpold_client::flows::address_and_port;
use netpold_client::printable_document::printable_document;

/// Renders the flows of nodes as text. All names are made printable here, in one place.
///
/// # Errors
/// The answers cannot be converted to JSON and back.
pub fn text(answers: &[FlowsAnswer]) -> Result<String> {
    let answers: Vec<FlowsAnswer> = printable_document(answers)?;
    Ok(render(&answers))
}

fn render(answers: &[FlowsAnswer]) -> String {
    let mut text = String::new();
    let many = answers.len() > 1;
    let mut table = Table::new();
    let node = many.then_some("NODE");
    let header = ["POD", "BEGAN", "PROTOCOL", "PORT", "REMOTE", "STATE", "IDLE", "CACHED VERDICT"];
    table.load_style(NOTHING).set_header(node.into_iter().chain(header));
    for answer in answers {
        for flow in &answer.flows {
            let node = many.then(|| answer.node.clone());
            table.add_row(node.into_iter().chain(row(flow)));
        }
    }
    if table.row_count() == 0 {
        let _ = writeln!(text, "no flows");
    } else {
        for line in table.lines() {
            let _ = writeln!(text, "{}", line.trim());
        }
    }
    for answer in answers {
        for left_out in &answer.left_out {
            let (pod, flows) = (&left_out.pod, left_out.flows);
            let _ = writeln!(text, "not listed: {flows} flows of {pod} (--limit)");
        }
        for problem in &answer.problems {
            let _ = writeln!(text, "node {}: {problem}", answer.node);
        }
    }
    text
}

fn row(flow: &ListedFlow) -> [String; 8] {
    let port = |port: u16| if port == 0 { String::from("-") } else { port.to_string() };
    let mut began: Vec<String> = flow.began.iter().map(ToString::to_string).collect();
    if flow.from_node {
        began.push("node".to_owned());
    }
    let remote = address_and_port(flow.remote, flow.remote_port);
    let name = flow.remote_name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
    [
        flow.pod.to_string(),
        began.join(", "),
        flow.protocol.to_string(),
        port(flow.local_port),
        format!("{remote}{name}"),
        state(flow.state).to_owned(),
        flow.idle_ms.map_or_else(|| "-".to_owned(), |idle| format!("{} s", idle / 1000)),
        match &flow.cached {
            Some(cached) => verdict(cached),
            None if flow.kernel => "not isolated".to_owned(),
            None => "-".to_owned(),
        },
    ]
}

fn state(state: FlowState) -> &'static str {
    match state {
        FlowState::Opening => "opening",
        FlowState::Open => "open",
        FlowState::Closing => "closing",
        FlowState::Closed => "closed",
    }
}

fn verdict(cached: &CachedVerdicts) -> String {
    let directions = [("ingress", &cached.ingress), ("egress", &cached.egress)];
    let known = directions.into_iter().filter_map(|(direction, reason)| {
        reason.as_ref().map(|reason| format!("{direction} {reason}"))
    });
    let known = known.collect::<Vec<_>>().join(", ");
    if cached.stale { format!("{known} (stale)") } else { known }
}

#[cfg(test)]
mod tests {
    use netpold_api::flows::{PodFlows, merge};
    use netpold_core::model::{Direction, Key};
    use netpold_core::probe::IpProtocol;

    use super::*;

    fn flow(pod: &str) -> ListedFlow {
        ListedFlow {
            pod: Key::new("shop", pod),
            began: vec![Direction::Egress],
            from_node: false,
            protocol: IpProtocol::TCP,
            local: Some("10.0.0.1".parse().unwrap()),
            local_port: 40_000,
            remote: "10.96.0.9".parse().unwrap(),
            remote_port: 80,
            remote_name: Some("svc/shop/web".to_owned()),
            translated: None,
            to_own_node: false,
            state: FlowState::Open,
            idle_ms: Some(3200),
            cached: Some(CachedVerdicts {
                stale: true,
                ingress: Some("reply".to_owned()),
                egress: Some("translated".to_owned()),
            }),
            kernel: false,
        }
    }

    #[test]
    fn a_line_says_what_is_known_of_a_flow() {
        let left_out = vec![PodFlows { pod: Key::new("shop", "flooder"), flows: 7 }];
        let answer = FlowsAnswer {
            node: "n1".into(),
            flows: vec![flow("web")],
            left_out,
            ..FlowsAnswer::default()
        };
        let shown = text(std::slice::from_ref(&answer)).unwrap();
        let lines: Vec<Vec<&str>> =
            shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            lines[1].join(" "),
            "shop/web egress TCP 40000 10.96.0.9:80 svc/shop/web open 3 s ingress reply, egress \
             translated (stale)"
        );
        assert_eq!(lines[2].join(" "), "not listed: 7 flows of shop/flooder (--limit)");
        let both = merge(vec![("n2".into(), answer.clone()), ("n1".into(), answer)]);
        let shown = text(&both).unwrap();
        let nodes: Vec<&str> =
            shown.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(nodes[..3], ["NODE", "n1", "n2"], "{shown}");
    }

    #[test]
    fn names_forge_no_lines() {
        let forged = ListedFlow { pod: Key::new("x\ny\x1b[2J", "\u{202e}"), ..flow("web") };
        let answer = FlowsAnswer { flows: vec![forged], ..FlowsAnswer::default() };
        let shown = text(&[answer]).unwrap();
        assert_eq!(shown.lines().count(), 2, "{shown}");
        assert!(shown.contains(r"x\ny\u{1b}[2J/\u{202e}"), "{shown}");
    }
}
