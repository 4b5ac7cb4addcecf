//! Order of programs at a hook: netpold's program runs first.
//!
//! If a program in front accepts (`TCX_PASS`, `TC_ACT_OK`) or redirects a packet, netpold's program does not run. No
//! query shows whether a program only observes, so netpold's program moves in front of every other; observers then see
//! the packets that policy allows. A tool that moves its program to the front repeatedly keeps the position, and is
//! reported, because two such tools would move their programs forever.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use super::attach::{Attached, Attacher, Hook};
use super::generation::Generation;
use super::role::Roles;

/// Number of times that netpold's program is moved in front of others at one hook.
const MOVES: u32 = 3;

/// Foreign programs in front of netpold's.
#[derive(Debug, Default)]
pub(super) struct ForeignPrograms {
    moves: BTreeMap<Hook, u32>,
    problems: BTreeMap<Hook, String>,
}

impl ForeignPrograms {
    /// Moves netpold's programs in front of foreign programs. Returns the hooks.
    ///
    /// # Errors
    /// The attachments cannot be listed.
    pub(super) fn reconcile(
        &mut self,
        attacher: &mut Attacher,
        attached: &Roles,
        generation: &Generation,
    ) -> Result<Vec<Hook>, String> {
        let found = attacher.attached().map_err(|error| error.to_string())?;
        self.moves.retain(|hook, _| attached.contains_key(&hook.ifindex));
        self.problems.clear();
        let mut moved = Vec::new();
        for Attached { hook, ahead, .. } in found.into_iter().filter(|f| !f.ahead.is_empty()) {
            let role = attached.get(&hook.ifindex);
            let Some(program) = role.and_then(|role| role.program(hook.direction)) else {
                continue;
            };
            let program = generation.fd(program).map_err(|error| error.to_string());
            match program.and_then(|program| {
                generation.while_behind(|| self.put_first(attacher, program, hook))
            }) {
                Ok(true) => moved.push(hook),
                Ok(false) => {
                    let problem = format!(
                        "{} in front of netpold's again, after {MOVES} moves: packets that it accepts or redirects \
                         are not judged; find its tool (`bpftool net show`) and configure it to attach behind",
                        programs(&ahead),
                    );
                    self.problems.insert(hook, problem);
                }
                Err(error) => _ = self.problems.insert(hook, error),
            }
        }
        Ok(moved)
    }

    /// Problems of hooks where foreign programs stay in front of netpold's.
    pub(super) fn problems(&self) -> impl Iterator<Item = (Hook, &str)> {
        self.problems.iter().map(|(hook, problem)| (*hook, problem.as_str()))
    }

    /// Moves netpold's program to the front; has no effect and returns false after [`MOVES`] moves.
    fn put_first(
        &mut self,
        attacher: &mut Attacher,
        program: BorrowedFd<'_>,
        hook: Hook,
    ) -> Result<bool, String> {
        let moves = self.moves.entry(hook).or_default();
        if *moves == MOVES {
            return Ok(false);
        }
        *moves += 1;
        match attacher.put_first(program, hook) {
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
