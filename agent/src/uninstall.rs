//! `netpold uninstall`: takes every program, link and pin away and says what that was.

use anyhow::{Context, Result};

use crate::cli::UninstallArgs;
use crate::dataplane::attach::{Attacher, Mode};
use crate::dataplane::bpffs::PinRoot;
use crate::dataplane::{gate, xdp};

/// Removes what `netpold run` left in force. Pods are not under policy any more after that.
///
/// # Errors
/// An agent is running on this pin root, or the kernel refuses; what was removed is said first.
pub fn run(args: &UninstallArgs) -> Result<()> {
    let pins = PinRoot::open(&args.bpffs)?;
    let mut attacher = Attacher::new(&pins.links(), Mode::probe())?;
    let attached = attacher.attached()?;
    attacher.retain(|_| false)?;
    let links = pins.links();
    let early = xdp::detach_all(&links).context("cannot detach XDP programs")?;
    attacher.stop_watching().context("cannot detach what an upgrade left")?;
    gate::open_all().context("cannot open what is closed until programs are loaded")?;
    for found in &attached {
        let (ifindex, direction) = (found.hook.ifindex, found.hook.direction);
        anstream::println!("detached: interface {ifindex}, {direction}");
    }
    early.iter().for_each(|ifindex| anstream::println!("detached: interface {ifindex}, XDP"));
    let root = args.bpffs.display();
    let removed =
        pins.remove_all().with_context(|| format!("--bpffs {root}: cannot remove pins"))?;
    anstream::println!(
        "removed: {} programs, {removed} pins in {root}",
        attached.len() + early.len()
    );
    Ok(())
}
