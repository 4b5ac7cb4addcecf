//! Our programs are the first at their hooks, and stay it.
//!
//! A program in front that accepts (`TCX_PASS`, `TC_ACT_OK`) or redirects ends a packet's way through the
//! hook before ours has seen it. Whether one only looks on cannot be told from outside, so ours goes in
//! front of each: those that look on see what policy lets through. Whoever comes back again and again
//! is let have the place, and reported: two tools that both want to be first would never end.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use super::Dataplane;
use super::attach::{Attached, Hook};
use super::role::Program;

/// How often ours is put in front of others at one hook.
const MOVES: u32 = 3;

/// What was found ahead of ours.
#[derive(Debug, Default)]
pub(super) struct Order {
    moves: BTreeMap<Hook, u32>,
    problems: BTreeMap<Hook, String>,
}

impl Dataplane {
    /// Puts our programs in front of those that were put in front of them. Gives the hooks.
    ///
    /// # Errors
    /// The attachments cannot be listed.
    pub fn keep_order(&mut self) -> Result<Vec<Hook>, String> {
        let found = self.attacher.attached().map_err(|error| error.to_string())?;
        self.order.moves.retain(|hook, _| self.attached.contains_key(&hook.ifindex));
        self.order.problems.clear();
        let mut moved = Vec::new();
        for Attached { hook, ahead, .. } in found.into_iter().filter(|f| !f.ahead.is_empty()) {
            let role = self.attached.get(&hook.ifindex);
            let Some(program) = role.and_then(|role| role.program(hook.direction)) else {
                continue;
            };
            match self.put_first_at(hook, program) {
                Ok(true) => moved.push(hook),
                Ok(false) => {
                    let problem = format!(
                        "{} in front of netpold's again, after it was put behind {MOVES} times: \
                         what it accepts or redirects is not judged; find its tool (`bpftool net \
                         show`) and have it attach behind",
                        programs(&ahead),
                    );
                    self.order.problems.insert(hook, problem);
                }
                Err(error) => _ = self.order.problems.insert(hook, error),
            }
        }
        Ok(moved)
    }

    /// Hooks where others come before us, and stay there.
    pub fn order_problems(&self) -> impl Iterator<Item = (Hook, &str)> {
        self.order.problems.iter().map(|(hook, problem)| (*hook, problem.as_str()))
    }

    /// Whether it was moved; not if it was too often.
    fn put_first_at(&mut self, hook: Hook, program: Program) -> Result<bool, String> {
        let Some(generation) = &mut self.generation else { return Ok(false) };
        let moves = self.order.moves.entry(hook).or_default();
        if *moves == MOVES {
            return Ok(false);
        }
        *moves += 1;
        let program = generation.program(program).map_err(|e| e.to_string())?;
        let program = program.fd().map_err(|e| e.to_string())?;
        match self.attacher.put_first(program.as_fd(), hook) {
            Err(error) if !error.is_gone() => Err(error.to_string()),
            _ => Ok(true),
        }
    }
}

fn programs(ahead: &[u32]) -> String {
    let ids: Vec<String> = ahead.iter().map(u32::to_string).collect();
    match ahead {
        [_] => format!("program {} of another tool is", ids[0]),
        _ => format!("programs {} of other tools are", ids.join(", ")),
    }
}
