//! Settings in force: written with each generation, and updated while it judges.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;

use netpold_ebpf::flow::key::hash_keys;
use netpold_ebpf::layout::{
    BRIDGES, DEVICE_LINE, DEVICE_LINES, DEVICE_PROBES, OBSERVED4_BUCKETS, OBSERVED6_BUCKETS,
    Settings, WITNESS_SHIFT, WITNESSES, bridge_ifindex, device_place,
};

use super::attach::AttachMode;
use super::bridges::Bridges;
use super::generation::{Generation, GenerationError};
use super::namespace;
use super::quiescence::grace_period;
use super::tables::TableError;
use crate::Rejections;
use crate::conntrack::{Sweeper, measure_hz, tick_rate, timeouts};

/// Drop events per CPU and second.
const EVENT_BURST: u32 = 100;

/// The settings in force; none before the first generation.
#[derive(Debug)]
pub(super) struct ActiveSettings {
    hash_seed: u64,
    /// Bit of `skb->mark` that proves a judgement.
    proof: u32,
    /// Limits of the answers to denied packets.
    rejections: Rejections,
    /// The kernel's ticks per second, measured once.
    hz: u32,
    /// The written settings.
    written: Option<Settings>,
    /// Socket of [`ActiveSettings::agent_port`].
    agent: Option<UdpSocket>,
    /// Interfaces that may forward packets without the proof.
    devices: Devices,
}

/// Interfaces of [`Settings::devices`], and those without a place there.
#[derive(Debug, Default)]
struct Devices {
    /// The wanted interfaces; `None`: unknown so far.
    wanted: Option<BTreeSet<u32>>,
    words: DeviceTable,
    left: BTreeSet<u32>,
}

/// [`Settings::devices`]
type DeviceTable = [[u32; DEVICE_LINE]; DEVICE_LINES];

impl Devices {
    /// Assigns places to the wanted interfaces. Those with a place keep it, so that new interfaces displace none.
    fn assign(&mut self, wanted: BTreeSet<u32>) {
        let words = self.words.as_flattened_mut();
        words.iter_mut().filter(|word| !wanted.contains(word)).for_each(|word| *word = 0);
        self.left.clear();
        for &ifindex in &wanted {
            let places = (0..DEVICE_PROBES).map(|probe| device_place(ifindex, probe));
            if places.clone().any(|place| words[place] == ifindex) {
                continue;
            }
            match places.into_iter().find(|place| words[*place] == 0) {
                Some(place) => words[place] = ifindex,
                None => _ = self.left.insert(ifindex),
            }
        }
        self.wanted = Some(wanted);
    }

    /// Writes the words that differ from the wanted ones. The next call repeats failed writes.
    fn write_changed<E: std::fmt::Display>(
        &self,
        in_force: &mut DeviceTable,
        write: impl Fn(usize, u32) -> Result<(), E>,
    ) {
        let in_force = in_force.as_flattened_mut().iter_mut();
        for (place, (now, wanted)) in in_force.zip(self.words.as_flattened()).enumerate() {
            if now == wanted {
                continue;
            }
            match write(place, *wanted) {
                Ok(()) => *now = *wanted,
                Err(error) => {
                    tracing::error!(%error, "cannot update the node's devices; will retry");
                }
            }
        }
    }
}

impl ActiveSettings {
    /// Settings before the first write. `proof` is the bit of `skb->mark` that proves a judgement.
    pub(super) fn new(hash_seed: u64, proof: u32, rejections: Rejections) -> Self {
        let devices = Devices::default();
        Self { hash_seed, proof, rejections, hz: 0, written: None, agent: None, devices }
    }

    /// Bit of `skb->mark` that proves a judgement.
    pub(super) fn proof(&self) -> u32 {
        self.proof
    }

    /// The written settings; `None` before the first generation.
    pub(super) fn written(&self) -> Option<Settings> {
        self.written
    }

    /// Buckets of the IPv4 flow table; `None` before the first generation.
    pub(super) fn buckets(&self) -> Option<u32> {
        self.written.map(|settings| settings.ct4_mask + 1)
    }

    /// Demands on bridges, as [`Settings::bridges`].
    pub(super) fn bridges(&self) -> [u32; BRIDGES] {
        self.written.map_or([0; BRIDGES], |settings| settings.bridges)
    }

    /// The first settings. Durations become jiffies by the kernel's own tick rate.
    pub(super) fn first(&mut self, generation: &Generation) -> Result<Settings, GenerationError> {
        let hz = match tick_rate() {
            Some(hz) => hz,
            None => measure_hz(|| generation.jiffies()).map_err(GenerationError::Clock)?,
        };
        self.hz = hz;
        Ok(Settings {
            hash_seed: self.hash_seed,
            hash_keys: hash_keys(self.hash_seed),
            timeouts: timeouts::current(hz, Path::new(timeouts::SYSCTLS)),
            refresh_after: hz,
            event_burst: EVENT_BURST,
            event_window: hz,
            proof: self.proof,
            netns_cookie: namespace::cookie().unwrap_or_default(),
            agent_port: self.agent_port(),
            witness: witness(),
            devices: self.devices.words,
            rejections: self.rejections.pod,
            node_rejections: self.rejections.node,
            ..Settings::default()
        })
    }

    /// Writes settings to a generation, under a new revision.
    pub(super) fn write(
        &mut self,
        mut settings: Settings,
        generation: &mut Generation,
    ) -> Result<(), TableError> {
        // Random, since the flow table is shared with generations of unknown revisions.
        settings.revision = RandomState::new().hash_one(()) as u32;
        self.written = Some(generation.write_settings(settings)?);
        Ok(())
    }

    /// Demands the proof once all programs are attached: from then on, an endpoint's packets without the proof have
    /// bypassed the programs.
    pub(super) fn demand_proof(&mut self, generation: &mut Generation) {
        let Some(settings) = self.written.as_mut().filter(|it| it.demands_proof == 0) else {
            return;
        };
        // Packets that passed the hooks before are still on their way.
        grace_period();
        match generation.demand_proof() {
            Ok(()) => settings.demands_proof = 1,
            Err(error) => tracing::error!(%error, "cannot require proofs; will retry"),
        }
    }

    /// [`Settings::closes_unknown`], once all programs are attached.
    pub(super) fn closes_unknown(&self) -> u32 {
        self.devices.wanted.is_some().into()
    }

    /// Sets the interfaces that may forward packets without the proof, and writes them to the programs at once.
    pub(super) fn devices_are(
        &mut self,
        devices: BTreeSet<u32>,
        generation: Option<&mut Generation>,
    ) {
        if self.devices.wanted.as_ref() != Some(&devices) {
            self.devices.assign(devices);
        }
        if let Some(generation) = generation {
            self.write_devices(generation);
        }
    }

    /// Writes the interfaces that the programs' settings lack.
    pub(super) fn write_devices(&mut self, generation: &mut Generation) {
        let Some(settings) = self.written.as_mut().filter(|_| self.devices.wanted.is_some()) else {
            return;
        };
        let tables = generation.tables();
        self.devices.write_changed(&mut settings.devices, |place, ifindex| {
            tables.write_device(place, ifindex)
        });
    }

    /// Interfaces that may forward packets, but have no place in the table.
    pub(super) fn devices_left(&self) -> impl Iterator<Item = u32> {
        self.devices.left.iter().copied()
    }

    /// Drops packets from unknown interfaces once all programs are attached.
    pub(super) fn close_unknown(&mut self, generation: &mut Generation) {
        let wanted = self.closes_unknown();
        let Some(settings) = self.written.as_mut().filter(|it| it.closes_unknown != wanted) else {
            return;
        };
        match generation.tables().close_unknown(wanted) {
            Ok(()) => settings.closes_unknown = wanted,
            Err(error) => {
                tracing::error!(%error, "cannot close unknown interfaces; will retry");
            }
        }
    }

    /// Interfaces from which fragments without the proof are reassembled; `None`: from all, because not all other
    /// interfaces have programs that leave the proof. A bridge that lost the program of a port stays strict for fragments.
    pub(super) fn fragment_sources(&self) -> Option<BTreeSet<u32>> {
        let settings = self.written.filter(|it| it.demands_proof != 0 && it.closes_unknown != 0)?;
        let proving = settings.bridges.map(bridge_ifindex);
        let devices = self.devices.wanted.iter().flatten().copied();
        Some(devices.filter(|ifindex| !proving.contains(ifindex)).collect())
    }

    /// Relaxes the demand on bridges with a port without program.
    pub(super) fn demand_no_more(&mut self, bridges: &Bridges, generation: &mut Generation) {
        self.demand(bridges.kept(&self.bridges()), generation);
    }

    /// Demands the proof on every bridge where that is possible. Returns the bridges without a place, with the reason.
    pub(super) fn demand_of_bridges(
        &mut self,
        bridges: &Bridges,
        mode: AttachMode,
        generation: &mut Generation,
    ) -> Vec<(u32, String)> {
        let (words, left) = bridges.demanded(&self.bridges());
        if words != self.bridges() {
            // Earlier packets are still on their way. With TCX, attaching a link has taken long enough.
            if mode == AttachMode::Clsact {
                grace_period();
            }
            self.demand(words, generation);
        }
        let reason = format!(
            "more than {BRIDGES} bridges have pods: packets that bypass a pod's program are not detected on this one"
        );
        left.into_iter().map(|bridge| (bridge, reason.clone())).collect()
    }

    /// Writes changed demands on bridges, place by place.
    fn demand(&mut self, words: [u32; BRIDGES], generation: &mut Generation) {
        let Some(settings) = &mut self.written else { return };
        for (place, (now, wanted)) in settings.bridges.iter_mut().zip(words).enumerate() {
            if wanted == *now {
                continue;
            }
            match generation.tables().write_bridge(place, wanted) {
                Ok(()) => *now = wanted,
                Err(error) => tracing::error!(%error, "cannot update a bridge's proof requirement"),
            }
        }
    }

    /// Follows changed timeouts of the kernel's conntrack.
    pub(super) fn follow_timeouts(
        &mut self,
        generation: &mut Generation,
    ) -> Result<(), TableError> {
        let Some(settings) = &mut self.written else { return Ok(()) };
        let current = timeouts::current(self.hz, Path::new(timeouts::SYSCTLS));
        if current != settings.timeouts {
            tracing::info!("timeouts of the kernel's conntrack changed; applying them to flows");
            generation.tables().write_timeouts(&current)?;
            settings.timeouts = current;
        }
        Ok(())
    }

    /// The flow tables, and the kernel's jiffies; `None` before the first generation.
    pub(super) fn flow_tables(
        &self,
        generation: Option<&Generation>,
    ) -> Result<Option<(Sweeper, u32)>, GenerationError> {
        let (Some(settings), Some(generation)) = (self.written, generation) else {
            return Ok(None);
        };
        let (four, six) = generation.conntrack()?;
        let tables = Sweeper::new(four, six, settings, self.hz)
            .map_err(|cause| TableError::Mapped { name: "CT4", cause })?;
        Ok(Some((tables, generation.jiffies().map_err(GenerationError::Clock)?)))
    }

    /// The tables of observed flows, and the kernel's jiffies; `None` before the first generation.
    pub(super) fn observed_flows(
        &self,
        generation: Option<&Generation>,
    ) -> Result<Option<(Sweeper, u32)>, GenerationError> {
        let (Some(settings), Some(generation)) = (self.written, generation) else {
            return Ok(None);
        };
        let masks = (OBSERVED4_BUCKETS - 1, OBSERVED6_BUCKETS - 1);
        let settings = Settings { ct4_mask: masks.0, ct6_mask: masks.1, ..settings };
        let (four, six) = generation.observed()?;
        let tables = Sweeper::new(four, six, settings, self.hz)
            .map_err(|cause| TableError::Mapped { name: "OBSERVED4", cause })?;
        Ok(Some((tables, generation.jiffies().map_err(GenerationError::Clock)?)))
    }

    /// Port, in network byte order, of a socket that ends with this process; 0 if there is none.
    fn agent_port(&mut self) -> u32 {
        let port = |socket: &UdpSocket| Ok(u32::from(socket.local_addr()?.port().to_be()));
        let own = || -> io::Result<UdpSocket> {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            socket.connect(socket.local_addr()?)?;
            Ok(socket)
        };
        let found = match &self.agent {
            Some(socket) => port(socket),
            None => own().and_then(|socket| port(self.agent.insert(socket))),
        };
        found.unwrap_or_else(|error| {
            tracing::warn!(
                %error,
                "cannot open a socket at 127.0.0.1: packets that bypass a pod's program on a bridge drop only if \
                 they have a pod's source"
            );
            0
        })
    }
}

/// Random [`Settings::witness`], unknown to pods.
fn witness() -> u32 {
    let (first, last) = (*WITNESSES.start(), *WITNESSES.end());
    let random = RandomState::new().hash_one(()) as u32;
    (first + random % (last - first + 1)) << WITNESS_SHIFT
}

#[cfg(test)]
mod tests {
    use netpold_ebpf::layout::DEVICES;

    use super::*;

    #[test]
    fn a_device_that_could_not_be_let_in_is_tried_again() {
        let (mut devices, mut in_force) = (Devices::default(), DeviceTable::default());
        devices.assign([7, 9].into());
        devices.write_changed(
            &mut in_force,
            |_, ifindex| if ifindex == 7 { Err("full") } else { Ok(()) },
        );
        let has = |table: &DeviceTable, index| table.as_flattened().contains(&index);
        assert!(!has(&in_force, 7) && has(&in_force, 9), "each for itself");
        devices.write_changed(&mut in_force, |_, _| Ok::<_, String>(()));
        assert_eq!(in_force, devices.words);
    }

    #[test]
    fn a_device_that_has_a_place_keeps_it() {
        let mut devices = Devices::default();
        let has = |devices: &Devices, index| devices.words.as_flattened().contains(&index);
        // All of these indexes have the same first place, and two of them find no place.
        let sharing = (1..).filter(|index| device_place(*index, 0) == 2);
        let all: BTreeSet<u32> = sharing.take(DEVICE_PROBES as usize + 2).collect();
        let last = all.last().copied().unwrap_or_default();
        devices.assign([last].into());
        devices.assign(all.clone());
        assert!(has(&devices, last), "it was there first");
        assert_eq!(devices.left.len(), 2);
        assert!(devices.left.iter().all(|index| !has(&devices, *index)));
        devices.assign([last].into());
        let flat = devices.words.as_flattened();
        assert_eq!(flat.iter().filter(|word| **word != 0).count(), 1);
        devices.assign((1000..1000 + DEVICES / 2).collect());
        assert!(devices.left.is_empty(), "neighbours are far apart");
    }
}
