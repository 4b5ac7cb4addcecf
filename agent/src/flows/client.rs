//! Asks an agent for its node's flows, page by page.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use netpold_core::model::Key;

use super::reader::PAGE;
use super::{Answer, FLOWS_REQUEST, Filter, FlowsArgs, Page, PodFlows, Request, text};
use crate::events::unix_millis;
use crate::output::{Output, print};
use crate::socket;
use crate::status::understood;

/// Prints the flows, as text or JSON.
///
/// # Errors
/// No agent answers, or its answer is not one of this version.
pub fn run(args: &FlowsArgs) -> Result<()> {
    let filter = Filter { namespace: args.namespace.clone(), pod: args.pod.clone() };
    let limit = (args.limit > 0).then_some(args.limit);
    let answer = ask(&args.socket, &filter, limit)?;
    Ok(print(&match args.output {
        Output::Json => format!("{}\n", serde_json::to_string(&answer)?),
        Output::Text => text(&[answer])?,
    })?)
}

/// The flows of a node: at most `limit`, the others counted.
///
/// # Errors
/// As for [`run`].
pub fn ask(path: &Path, filter: &Filter, limit: Option<u32>) -> Result<Answer> {
    let mut answer = Answer { as_of: unix_millis() / 1000, ..Answer::default() };
    let mut others: BTreeMap<Key, u64> = BTreeMap::new();
    let mut left = limit.unwrap_or(u32::MAX);
    let mut ask = |from, kernel| {
        let asked = if kernel { left } else { left.min(PAGE) };
        let wanted = Request { filter: filter.clone(), from, limit: asked, kernel };
        let json =
            socket::answer(path, &format!("{FLOWS_REQUEST} {}", serde_json::to_string(&wanted)?))?;
        let page: Page = understood(&json)?;
        left = left.saturating_sub(u32::try_from(page.flows.len()).unwrap_or(u32::MAX));
        answer.node = page.node;
        answer.flows.extend(page.flows);
        answer.problems.extend(page.problem);
        for PodFlows { pod, flows } in page.left_out {
            *others.entry(pod).or_default() += flows;
        }
        anyhow::Ok(page.next)
    };
    let mut next = Some(0);
    while let Some(from) = next {
        next = ask(from, false)?;
    }
    ask(0, true)?;
    answer.left_out = others.into_iter().map(|(pod, flows)| PodFlows { pod, flows }).collect();
    answer.flows.sort();
    Ok(answer)
}
