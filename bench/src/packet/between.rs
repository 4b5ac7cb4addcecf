//! Packets between two local pods: at the sender's veth, and, with the proof that the program there leaves, at the
//! receiver's.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result};
use netpold_core::model::Direction;
use netpold_ebpf::layout::WITNESS_SHIFT;
use netpold_testbed::SkbMarker;

use super::probe::{Effort, ONE, PASS, PacketCase, ProgramHook, Runnable, program};
use crate::cluster::{FlowCluster, Local, PORT};
use crate::frame::{ACK, tcp};
use crate::world::LoadedCluster;

/// `skb->tc_index` of a packet that a program has finally passed.
const WITNESS: u16 = 1 << WITNESS_SHIFT;

/// The cases of one family; they leave no state.
pub(super) struct Between {
    pub(super) v6: bool,
    pub(super) probes: Vec<PacketCase>,
}

impl Between {
    pub(super) fn new(
        cluster: &FlowCluster,
        locals: [Local; 2],
        world: &mut LoadedCluster,
        empty: &OwnedFd,
        v6: bool,
    ) -> Result<Self> {
        let [isolated, open] = locals;
        let peer = *cluster.allowed(v6, 1).first().context("a cluster without peers")?;
        let (ingress, egress) =
            (program(world, Direction::Ingress)?, program(world, Direction::Egress)?);
        let proven = |target: &OwnedFd| -> Result<Runnable> {
            let marker =
                SkbMarker::before(target.as_fd(), WITNESS).context("no program that marks")?;
            Ok(Runnable::Marked(marker))
        };
        let sent = tcp((open.address(v6), PORT), peer, ACK);
        let got = |local: Local| tcp(peer, (local.address(v6), PORT), ACK);
        let probe = |name, program, (at, from): (Local, Local), frame, baseline| {
            let place = ProgramHook::Classifier(at.ifindex);
            PacketCase::new((name, ONE), program, place, frame, PASS, baseline).from(from.ifindex)
        };
        let probes = vec![
            probe("empty", Runnable::Direct(empty.try_clone()?), (open, open), sent.clone(), None),
            probe("empty, proven", proven(empty)?, (open, open), sent.clone(), None),
            probe("not isolated, sent", Runnable::Direct(egress), (open, open), sent, Some(0)),
            probe("open to isolated", proven(&ingress)?, (isolated, open), got(isolated), Some(1)),
            probe("isolated to open", proven(&ingress)?, (open, isolated), got(open), Some(1)),
        ];
        Ok(Self { v6, probes })
    }

    pub(super) fn round(&mut self, effort: Effort) -> Result<()> {
        self.probes.iter_mut().try_for_each(|probe| probe.measure(effort.hot))
    }
}
