//! Gate that keeps isolated pods closed until the first programs are loaded.
//!
//! At boot, pods and agent start together, and the kernel needs longer to verify the programs than a pod to open a
//! denied connection. A program that drops every packet is verified at once, and a clsact filter is attached without
//! the grace periods of a TCX link. TCX runs before it, so a pod is opened after its own programs are attached.
//! Filters outlive the agent: if it ends in between, such pods stay closed until the next one.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;

use super::clsact::Clsact;
use super::front;
use super::hook::Hook;

/// The closed hooks.
#[derive(Debug, Default)]
pub(super) struct Gate {
    hooks: BTreeSet<Hook>,
    /// Interfaces with a qdisc that the gate has created.
    qdiscs: BTreeSet<u32>,
}

impl Gate {
    /// The hooks closed by an earlier agent that ended before it could open them.
    pub(super) fn find() -> Self {
        let found = Clsact::open().and_then(|mut filters| filters.temporaries());
        let hooks = found.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot list filters of an earlier agent");
            Vec::new()
        });
        Self { hooks: hooks.into_iter().collect(), qdiscs: BTreeSet::new() }
    }

    /// Closes hooks of isolated pods; returns the number of closed hooks.
    pub(super) fn close(&mut self, hooks: &[Hook]) -> usize {
        if let Err(error) = self.try_close(hooks) {
            tracing::warn!(%error, "cannot close isolated pods: open until their programs are loaded");
        }
        self.hooks.len()
    }

    /// Opens the hooks of interfaces that are ready.
    pub(super) fn open(&mut self, ready: impl Fn(u32) -> bool) {
        if let Err(error) = self.try_open(ready) {
            tracing::error!(%error, "cannot open pods that were closed until their programs are attached");
        }
    }

    fn try_close(&mut self, hooks: &[Hook]) -> io::Result<()> {
        let program = front::closed()?;
        let mut filters = Clsact::open()?;
        for &hook in hooks {
            match filters.attach_temporary(program.as_fd(), hook) {
                Ok(made) => {
                    self.hooks.insert(hook);
                    if made {
                        self.qdiscs.insert(hook.ifindex);
                    }
                }
                Err(error) => tracing::warn!(
                    %error, ifindex = hook.ifindex, direction = %hook.direction,
                    "cannot close an isolated pod: open until its programs are loaded"
                ),
            }
        }
        Ok(())
    }

    fn try_open(&mut self, ready: impl Fn(u32) -> bool) -> io::Result<()> {
        let hooks: Vec<Hook> =
            self.hooks.iter().filter(|hook| ready(hook.ifindex)).copied().collect();
        if hooks.is_empty() {
            return Ok(());
        }
        let mut filters = Clsact::open()?;
        for hook in hooks {
            filters.detach_temporary(hook, self.qdiscs.contains(&hook.ifindex))?;
            self.hooks.remove(&hook);
        }
        Ok(())
    }
}

/// Opens all closed hooks in this network namespace.
///
/// # Errors
/// The kernel refuses.
pub fn open_all() -> io::Result<()> {
    let hooks = Clsact::open()?.temporaries()?.into_iter().collect();
    Gate { hooks, qdiscs: BTreeSet::new() }.try_open(|_| true)
}
