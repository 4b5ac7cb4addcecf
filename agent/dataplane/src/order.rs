//! Order of programs at a hook: netpold's program runs first.
//!
//! If a program in front accepts (`TCX_PASS`, `TC_ACT_OK`) or redirects a packet, netpold's program does not run. No
//! query shows whether a program only observes, so netpold's program moves in front of every other; observers then see
//! the packets that policy allows. A tool that moves its program to the front repeatedly keeps the position, and is
//! reported, because two such tools would move their programs forever.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use netpold_ebpf::layout::MAY_BE_BEHIND;

use super::attach::{Attached, Attacher, Hook};
use super::generation::Generation;
use super::quiescence::grace_period;
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
        let (mut moved, mut doubled) = (Vec::new(), None);
        for Attached { hook, ahead, .. } in found.into_iter().filter(|f| !f.ahead.is_empty()) {
            let role = attached.get(&hook.ifindex);
            let Some(program) = role.and_then(|role| role.program(hook.direction)) else {
                continue;
            };
            let program = generation.fd(program).map_err(|error| error.to_string());
            let moving = program.and_then(|program| {
                let is_due = self.is_move_due(hook);
                if is_due {
                    doubled.get_or_insert_with(|| ExpectedDoubles::begin(generation));
                    put_first(attacher, program, hook)?;
                }
                Ok(is_due)
            });
            match moving {
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

    /// Counts a move at a hook; false after [`MOVES`] moves.
    fn is_move_due(&mut self, hook: Hook) -> bool {
        let moves = self.moves.entry(hook).or_default();
        let is_due = *moves < MOVES;
        *moves += u32::from(is_due);
        is_due
    }
}

/// Moves netpold's program to the front. An interface that is gone needs no move.
fn put_first(attacher: &mut Attacher, program: BorrowedFd<'_>, hook: Hook) -> Result<(), String> {
    match attacher.put_first(program, hook) {
        Err(error) if !error.is_gone() => Err(error.to_string()),
        _ => Ok(()),
    }
}

/// Time in which a packet may pass netpold's program at both positions of a hook. Meanwhile the programs also judge packets
/// that have the proof already ([`MAY_BE_BEHIND`]).
struct ExpectedDoubles<'a> {
    generation: &'a Generation,
    /// Flags before, unless they cannot be read.
    before: Option<u32>,
}

impl<'a> ExpectedDoubles<'a> {
    fn begin(generation: &'a Generation) -> Self {
        let expected = Self { generation, before: generation.handover() };
        expected.set(MAY_BE_BEHIND);
        expected
    }

    fn set(&self, flags: u32) {
        if let Some(before) = self.before {
            // A failed write loses a few packets, or omits a check until the next attachment.
            let _ = self.generation.set_handover(before | flags);
        }
    }
}

impl Drop for ExpectedDoubles<'_> {
    fn drop(&mut self) {
        // Packets that passed both positions are gone.
        grace_period();
        self.set(0);
    }
}

fn programs(ahead: &[u32]) -> String {
    let ids: Vec<String> = ahead.iter().map(u32::to_string).collect();
    match ahead {
        [_] => format!("program {} of another tool is", ids[0]),
        _ => format!("programs {} of other tools are", ids.join(", ")),
    }
}
