//! Tables of other layout versions, or of another size, that are being replaced: endpoint numbers and flows, read from
//! their pins by the description that each version leaves next to its tables.

mod description;

use std::io;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::{MapData, MapError};
use netpold_ebpf::layout::{
    Ct4Key, Ct6Key, EP_STATION_SHIFT, Endpoint, MAY_BE_BEHIND, SHARES_NAMES, STANDS_ASIDE,
    Settings, WATCH_ONLY,
};
use std::os::fd::AsFd;

pub(super) use description::Description;
use description::{FLAGS, FieldPosition, MissingName, VALID_FLAGS};

use crate::bpf::mmap::{MappedArray, MmapError};
use crate::bpf::sys;
use crate::conntrack::{FlowKey, TrackedFlow};
use crate::names::LEARNED;

/// Pin name of the description.
pub(super) const DESCRIPTION: &str = "LAYOUT";

/// Failure to read another version's tables.
#[derive(Debug, thiserror::Error)]
pub(super) enum OtherLayoutError {
    /// A pin cannot be opened.
    #[error("{}: {cause}", path.display())]
    Pin {
        /// Path of the pin.
        path: PathBuf,
        /// Cause.
        cause: MapError,
    },
    /// A map cannot be mapped.
    #[error("{}: {cause}", path.display())]
    Mapped {
        /// Path of the pin.
        path: PathBuf,
        /// Cause.
        cause: MmapError,
    },
    /// The description lacks a name.
    #[error(transparent)]
    Missing(#[from] MissingName),
}

/// The tables of another layout version, or of another size.
#[derive(Debug)]
pub(super) struct OtherLayout {
    description: Description,
    endpoints: MapWords,
    four: MapWords,
    six: MapWords,
    /// Resolved addresses, if they have this version's form.
    resolved: Option<MapWords>,
    /// The settings, if they are described.
    settings: Option<MapWords>,
}

/// An array map as 64-bit words.
#[derive(Debug)]
struct MapWords {
    map: u32,
    array: MappedArray<u64>,
}

impl OtherLayout {
    /// Opens the tables pinned in a version's directory.
    pub(super) fn open(directory: &Path) -> Result<Self, OtherLayoutError> {
        let records = MappedArray::<description::PinnedRecord>::new(&pin(directory, DESCRIPTION)?)
            .map_err(mapped(directory, DESCRIPTION))?;
        let records = (0..records.elements()).filter_map(|index| records.read(index).ok());
        let description = Description::from_records(records);
        let words = |name| MapWords::open(directory, name);
        let described = |name| description.find(name).is_some();
        Ok(Self {
            endpoints: words("ENDPOINTS")?,
            four: words("CT4")?,
            six: words("CT6")?,
            settings: (described("settings.hash_seed") || described("settings.watch"))
                .then(|| words("SETTINGS"))
                .transpose()?,
            resolved: description.has_own_resolved().then(|| words(LEARNED)).transpose()?,
            description,
        })
    }

    /// The endpoints in use by slot, with the fields that a later agent needs.
    pub(super) fn endpoints(&self) -> Result<Vec<(u32, Endpoint)>, OtherLayoutError> {
        let place = |name| self.description.place(name);
        let (ifindex, id) = (place("endpoint.ifindex")?, place("endpoint.id")?);
        let (uid_hash, words) = (place("endpoint.uid_hash")?, self.endpoints.all());
        // Versions before 11 do not have it.
        let station = self.description.find("endpoint.station");
        let records = (0..words.len() * 8).step_by(place("endpoint")?.stride());
        let read = |at: usize| Endpoint {
            ifindex: number(words, at, ifindex) as u32,
            id: number(words, at, id) as u32,
            uid_hash: number(words, at, uid_hash),
            flags: station.map_or(0, |place| number(words, at, place) << EP_STATION_SHIFT),
            ..Endpoint::default()
        };
        let records = (0..).zip(records.map(read));
        Ok(records.filter(|(_, endpoint)| endpoint.ifindex != 0).collect())
    }

    /// Makes the other version's programs at pods' hooks leave every packet as it is ([`STANDS_ASIDE`]), while other
    /// programs judge in front of them. False if the version has no such flag.
    pub(super) fn stand_aside(&self) -> bool {
        self.set(STANDS_ASIDE)
    }

    /// Makes the other version's programs expect programs in front of them ([`MAY_BE_BEHIND`]). Versions without this
    /// flag expect them anyway.
    pub(super) fn expect_others(&self) {
        let _ = self.set(MAY_BE_BEHIND);
    }

    /// Whether the other version's programs never judged: their agent ended while they ran in front of former programs
    /// ([`WATCH_ONLY`]).
    pub(super) fn only_watches(&self) -> bool {
        self.flags().is_some_and(|(word, shift)| {
            word.load(Ordering::Acquire) & u64::from(WATCH_ONLY) << shift != 0
        })
    }

    /// Sets a flag of the programs; false if the version has no flags.
    fn set(&self, flag: u32) -> bool {
        self.flags().is_some_and(|(word, shift)| {
            word.fetch_or(u64::from(flag) << shift, Ordering::AcqRel);
            true
        })
    }

    /// Word with the programs' flags, and their first bit; `None` if the version has no flags.
    fn flags(&self) -> Option<(&AtomicU64, usize)> {
        let place = self.description.find("settings.watch")?;
        let word = self.settings.as_ref()?.all().get(place.at / 8)?;
        Some((word, place.at % 8 * 8))
    }

    /// Makes the programs of a version without the flag of [`OtherLayout::stand_aside`] pass every packet of an
    /// interface: both directions in one store. They also erase the marks of the programs in front, so they must be
    /// detached at once.
    pub(super) fn pass_all(&self, ifindex: u32) -> Result<(), OtherLayoutError> {
        let (rows, index) =
            (self.description.place("endpoint.rows")?, self.description.place("endpoint.ifindex")?);
        let stride = self.description.place("endpoint")?.stride();
        let words = self.endpoints.all();
        let records = (0..words.len() * 8).step_by(stride);
        for at in records.filter(|at| number(words, *at, index) as u32 == ifindex) {
            if let Some(word) = words.get((at + rows.at) / 8) {
                word.store(0, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Makes the programs of these tables expect that programs in front of them read DNS messages, too
    /// ([`SHARES_NAMES`]). Only for tables of this layout version.
    pub(super) fn share_names(&self) {
        const AT: usize = offset_of!(Settings, handover);
        if let Some(word) = self.settings.as_ref().and_then(|words| words.all().get(AT / 8)) {
            word.fetch_or(u64::from(SHARES_NAMES) << (AT % 8 * 8), Ordering::AcqRel);
        }
    }

    /// Bit of `skb->mark` that the other version's programs leave as the proof; `None` until all of them leave it, or if
    /// the version does not describe it.
    pub(super) fn proof(&self) -> Option<u32> {
        let words = self.settings.as_ref()?.all();
        let setting = |name| Some(number(words, 0, self.description.find(name)?) as u32);
        setting("settings.demands_proof").filter(|demands| *demands != 0)?;
        setting("settings.proof")
    }

    /// Seed of the hashes of names in [`OtherLayout::resolved`].
    pub(super) fn hash_seed(&self) -> Option<u64> {
        self.resolved.as_ref()?;
        let place = self.description.find("settings.hash_seed")?;
        Some(number(self.settings.as_ref()?.all(), 0, place))
    }

    /// Identifier and words of the table of resolved addresses; none if they have another form.
    pub(super) fn resolved(&self) -> Option<(u32, &[AtomicU64])> {
        self.resolved.as_ref().map(|words| (words.map, words.all()))
    }

    /// Calls `each` with every flow. A flow that is being written may be left out.
    pub(super) fn flows(&self, mut each: impl FnMut(TrackedFlow)) -> Result<(), OtherLayoutError> {
        self.ways(
            &self.four,
            "way4",
            |key, words, at| {
                FlowKey::V4(Ct4Key {
                    endpoint: number(words, at, key.endpoint) as u32,
                    remote: number(words, at, key.remote) as u32,
                    local_port: number(words, at, key.local_port) as u16,
                    remote_port: number(words, at, key.remote_port) as u16,
                    protocol: number(words, at, key.protocol) as u32,
                })
            },
            &mut each,
        )?;
        self.ways(
            &self.six,
            "way6",
            |key, words, at| {
                FlowKey::V6(Ct6Key {
                    endpoint: number(words, at, key.endpoint) as u32,
                    remote: bytes(words, at, key.remote),
                    local_port: number(words, at, key.local_port) as u16,
                    remote_port: number(words, at, key.remote_port) as u16,
                    protocol: number(words, at, key.protocol) as u32,
                    reserved: 0,
                })
            },
            &mut each,
        )
    }

    fn ways(
        &self,
        table: &MapWords,
        name: &'static str,
        key: impl Fn(&KeyPlaces, &[AtomicU64], usize) -> FlowKey,
        each: &mut impl FnMut(TrackedFlow),
    ) -> Result<(), OtherLayoutError> {
        let way = self.description.place(name)?;
        let places = KeyPlaces::new(&self.description, name)?;
        let control = ControlPlaces::new(&self.description)?;
        let words = table.all();
        let stride = way.stride();
        for at in (0..words.len() * 8 / stride).map(|index| index * stride) {
            let word = words[(at + way.at) / 8].load(Ordering::Acquire);
            let Some((flags, seen)) = control.read(word) else { continue };
            let key = key(&places, words, at);
            let again = words[(at + way.at) / 8].load(Ordering::Acquire);
            if again == word {
                each(TrackedFlow { key, flags, seen });
            }
        }
        Ok(())
    }
}

impl MapWords {
    fn open(directory: &Path, name: &str) -> Result<Self, OtherLayoutError> {
        let map = pin(directory, name)?;
        let failed = |cause| OtherLayoutError::Pin { path: directory.join(name), cause };
        let info = map.info().map_err(failed)?;
        let stride = u64::from(info.value_size()).next_multiple_of(8);
        let words = u32::try_from(stride / 8 * u64::from(info.max_entries())).unwrap_or(0);
        let array = MappedArray::from_fd(map.fd().as_fd(), words);
        Ok(Self { map: info.id(), array: array.map_err(mapped(directory, name))? })
    }

    fn all(&self) -> &[AtomicU64] {
        self.array.words().unwrap_or_default()
    }
}

/// Places of the key's fields in a way.
struct KeyPlaces {
    endpoint: FieldPosition,
    remote: FieldPosition,
    local_port: FieldPosition,
    remote_port: FieldPosition,
    protocol: FieldPosition,
}

impl KeyPlaces {
    fn new(description: &Description, way: &str) -> Result<Self, MissingName> {
        let place = |field: &str| description.place(&format!("{way}.{field}"));
        Ok(Self {
            endpoint: place("endpoint")?,
            remote: place("remote")?,
            local_port: place("local_port")?,
            remote_port: place("remote_port")?,
            protocol: place("protocol")?,
        })
    }
}

/// Places of the parts of a control word.
struct ControlPlaces {
    seen: u32,
    valid: u64,
    busy: u64,
    /// Bit of the other version, and flag of this one.
    flags: Vec<(u64, u16)>,
}

impl ControlPlaces {
    fn new(description: &Description) -> Result<Self, MissingName> {
        let bit = |name: &str| description.place(name).map(|place| 1 << place.at);
        let [valid, busy] = VALID_FLAGS;
        // Flags that only one of the versions has are left out.
        let flags = FLAGS.iter().filter_map(|(name, flag)| Some((bit(name).ok()?, *flag)));
        let seen = description.place("control.seen")?.at as u32;
        Ok(Self { seen, valid: bit(valid)?, busy: bit(busy)?, flags: flags.collect() })
    }

    /// Flags and stamp of a flow with a comparable key; `None` for any other way.
    fn read(&self, word: u64) -> Option<(u16, u32)> {
        if word & (self.valid | self.busy) != self.valid {
            return None;
        }
        let known = self.flags.iter().filter(|(bit, _)| word & bit != 0);
        let flags = known.fold(0, |flags, (_, flag)| flags | flag);
        Some((flags, (word >> self.seen) as u32))
    }
}

/// Bytes of a field; zero outside the table.
fn bytes<const N: usize>(words: &[AtomicU64], base: usize, place: FieldPosition) -> [u8; N] {
    let mut bytes = [0; N];
    for (offset, byte) in bytes.iter_mut().enumerate().take(place.width) {
        let at = base + place.at + offset;
        let word = words.get(at / 8).map_or(0, |word| word.load(Ordering::Relaxed));
        *byte = (word >> (at % 8 * 8)) as u8;
    }
    bytes
}

/// Value of a field of up to eight bytes; tables are little-endian.
fn number(words: &[AtomicU64], base: usize, place: FieldPosition) -> u64 {
    u64::from_le_bytes(bytes(words, base, place))
}

fn pin(directory: &Path, name: &str) -> Result<MapData, OtherLayoutError> {
    let path = directory.join(name);
    MapData::from_pin(&path).map_err(|cause| OtherLayoutError::Pin { path, cause })
}

fn mapped(directory: &Path, name: &str) -> impl FnOnce(MmapError) -> OtherLayoutError {
    let path = directory.join(name);
    move |cause| OtherLayoutError::Mapped { path, cause }
}

/// A map with this version's description.
pub(super) fn describe() -> io::Result<std::os::fd::OwnedFd> {
    let records = Description::own().to_records();
    let size = size_of::<description::PinnedRecord>() as u32;
    let map = sys::array(size, records.len() as u32, sys::BPF_F_MMAPABLE)?;
    let memory =
        MappedArray::<description::PinnedRecord>::from_fd(map.as_fd(), records.len() as u32)
            .map_err(io::Error::other)?;
    for (index, record) in (0..).zip(&records) {
        memory.write_element(index, record).map_err(io::Error::other)?;
    }
    Ok(map)
}
