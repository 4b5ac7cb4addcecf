//! bpf(2) calls that aya does not offer.
//!
//! aya attaches by interface name only, which misses a renamed interface and may hit a reused name, and does not
//! report the interface of a link. This module uses indexes.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const BPF_MAP_CREATE: u32 = 0;
const BPF_MAP_UPDATE_ELEM: u32 = 2;
const BPF_PROG_LOAD: u32 = 5;
const BPF_OBJ_PIN: u32 = 6;
const BPF_OBJ_GET: u32 = 7;
const BPF_OBJ_GET_INFO_BY_FD: u32 = 15;
const BPF_PROG_QUERY: u32 = 16;
const BPF_BTF_LOAD: u32 = 18;
const BPF_LINK_CREATE: u32 = 28;
const BPF_LINK_UPDATE: u32 = 29;
const BPF_LINK_DETACH: u32 = 34;

const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_PROG_ARRAY: u32 = 3;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
/// Flag of maps that can be mapped into memory (kernel 5.5).
pub const BPF_F_MMAPABLE: u32 = 1 << 10;

const BPF_LINK_TYPE_TCX: u32 = 11;
/// Flag to attach in front of every other program at the hook.
const BPF_F_BEFORE: u32 = 1 << 3;

/// Program and place of a link, as the kernel reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkAt {
    /// Program identifier.
    pub(crate) program: u32,
    /// Interface index; 0 once the interface no longer exists.
    pub(crate) ifindex: u32,
    /// `BPF_TCX_INGRESS` or `BPF_TCX_EGRESS`; for TCX links only.
    pub(crate) attach_type: u32,
}

#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    prog_fd: u32,
    ifindex: u32,
    attach_type: u32,
    flags: u32,
    relative_fd: u32,
    reserved: u32,
    expected_revision: u64,
}

#[repr(C)]
#[derive(Default)]
struct LinkUpdate {
    link_fd: u32,
    new_prog_fd: u32,
    flags: u32,
    old_prog_fd: u32,
}

#[repr(C)]
#[derive(Default)]
struct LinkDetach {
    link_fd: u32,
}

/// The whole block, since the kernel writes `revision` regardless of the given size.
#[repr(C)]
#[derive(Default)]
struct Query {
    ifindex: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    program_ids: u64,
    count: u32,
    reserved: u32,
    program_flags: u64,
    link_ids: u64,
    link_flags: u64,
    revision: u64,
}

#[repr(C)]
struct MapUpdate {
    map: u32,
    unused: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    kind: u32,
    instructions: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    ifindex: u32,
    attach_type: u32,
}

#[repr(C)]
#[derive(Default)]
struct Obj {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct InfoByFd {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// The first fields of `struct bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
struct ProgInfo {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    compiled_size: u32,
}

/// `struct bpf_link_info` with the `tcx` member of its union; `xdp` has the interface index too.
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    reserved: u32,
    ifindex: u32,
    attach_type: u32,
}

#[repr(C)]
#[derive(Default)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
}

/// Calls bpf(2) with an attribute block; shorter blocks than the kernel's are zero-extended by it.
///
/// # Errors
/// Error of the kernel.
///
/// # Safety
/// `A` is the `repr(C)` attribute block of `command`, and its pointers are valid.
pub unsafe fn bpf<A>(command: u32, attributes: &mut A) -> io::Result<i32> {
    let (attributes, size) = (std::ptr::from_mut(attributes), size_of::<A>());
    // SAFETY: a valid block of that size, the rest is the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size) };
    i32::try_from(result).ok().filter(|&fd| fd >= 0).ok_or_else(io::Error::last_os_error)
}

/// Calls bpf(2) with a command that returns a new descriptor, see [`bpf`].
///
/// # Safety
/// As [`bpf`]; the command's result is a new descriptor.
unsafe fn descriptor<A>(command: u32, attributes: &mut A) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise.
    let fd = unsafe { bpf(command, attributes) }?;
    // SAFETY: a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

/// Creates an array map.
///
/// # Errors
/// Error of the kernel.
pub fn array(value_size: u32, max_entries: u32, flags: u32) -> io::Result<OwnedFd> {
    map(MapCreate { kind: BPF_MAP_TYPE_ARRAY, key_size: 4, value_size, max_entries, flags })
}

/// Creates a ring buffer of this size.
#[cfg(any(test, feature = "test-objects"))]
pub(super) fn ring(bytes: u32) -> io::Result<OwnedFd> {
    const BPF_MAP_TYPE_RINGBUF: u32 = 27;
    map(MapCreate { kind: BPF_MAP_TYPE_RINGBUF, max_entries: bytes, ..MapCreate::default() })
}

fn map(mut attributes: MapCreate) -> io::Result<OwnedFd> {
    // SAFETY: the block of BPF_MAP_CREATE, without pointers; the result is a new descriptor.
    unsafe { descriptor(BPF_MAP_CREATE, &mut attributes) }
}

/// Loads a hand-made program of a type (`enum bpf_prog_type`), with `BPF_F_*` flags.
pub(crate) fn prog_load(kind: u32, flags: u32, code: &[u64]) -> io::Result<OwnedFd> {
    prog_load_for(0, kind, flags, code)
}

/// Loads a hand-made program for a hook (`enum bpf_attach_type`), see [`prog_load`].
///
/// # Errors
/// Error of the kernel: the verifier rejects the program.
pub fn prog_load_for(hook: u32, kind: u32, flags: u32, code: &[u64]) -> io::Result<OwnedFd> {
    let license = c"GPL";
    let mut attributes = ProgLoad {
        kind,
        instructions: code.len() as u32,
        code: code.as_ptr() as u64,
        license: license.as_ptr() as u64,
        flags,
        attach_type: hook,
        ..ProgLoad::default()
    };
    // SAFETY: the block of BPF_PROG_LOAD; code and license outlive the call; a new descriptor.
    unsafe { descriptor(BPF_PROG_LOAD, &mut attributes) }
}

/// Loads the BTF of one integer.
pub(crate) fn btf_load() -> io::Result<OwnedFd> {
    // struct btf_header (magic, version and flags; lengths of header, types and strings), then struct btf_type of a
    // four-byte int, its encoding, and the strings.
    const HEADER: [u32; 6] = [0x0001_eb9f, 24, 0, 16, 16, 4];
    const TYPES: [u32; 4] = [1, 1 << 24, 4, 32];
    const STRINGS: u32 = u32::from_le_bytes(*b"\0i\0\0");
    let mut blob = [0_u32; 11];
    blob[..6].copy_from_slice(&HEADER);
    blob[6..10].copy_from_slice(&TYPES);
    blob[10] = STRINGS;
    let mut attributes = [blob.as_ptr() as u64, 0, size_of_val(&blob) as u64, 0];
    // SAFETY: the block of BPF_BTF_LOAD; its pointer outlives the call; a new descriptor.
    unsafe { descriptor(BPF_BTF_LOAD, &mut attributes) }
}

/// Whether the kernel compiled a program for this processor; otherwise it is interpreted.
pub(crate) fn is_compiled(program: BorrowedFd<'_>) -> io::Result<bool> {
    program_info(program).map(|info| info.compiled_size != 0)
}

/// The identifier of a program.
pub(crate) fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    program_info(program).map(|info| info.id)
}

fn program_info(program: BorrowedFd<'_>) -> io::Result<ProgInfo> {
    let mut info = ProgInfo::default();
    let mut attributes = InfoByFd {
        bpf_fd: raw(program),
        info_len: size_of::<ProgInfo>() as u32,
        info: std::ptr::from_mut(&mut info) as u64,
    };
    // SAFETY: the block of BPF_OBJ_GET_INFO_BY_FD; the kernel writes at most info_len bytes.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attributes)? };
    Ok(info)
}

/// `struct bpf_insn`: opcode, registers, offset, immediate.
#[must_use]
pub const fn instruction(
    code: u8,
    destination: u8,
    source: u8,
    offset: i16,
    immediate: i32,
) -> u64 {
    let registers = ((source << 4 | destination) as u64) << 8;
    let offset = (offset.cast_unsigned() as u64) << 16;
    code as u64 | registers | offset | (immediate.cast_unsigned() as u64) << 32
}

/// Attaches a program in front of all others at a TCX hook. The kernel detaches the link once its last descriptor and
/// pin are gone.
pub(crate) fn tcx_link_create(
    program: BorrowedFd<'_>,
    ifindex: u32,
    attach_type: u32,
) -> io::Result<OwnedFd> {
    link_create(program, ifindex, attach_type, BPF_F_BEFORE)
}

/// Attaches a program to an interface, at any hook. The kernel detaches it once the link's last descriptor and pin are
/// gone.
///
/// # Errors
/// Error of the kernel.
pub fn link_create(
    program: BorrowedFd<'_>,
    ifindex: u32,
    attach_type: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    let mut attributes =
        LinkCreate { prog_fd: raw(program), ifindex, attach_type, flags, ..LinkCreate::default() };
    // SAFETY: the block of BPF_LINK_CREATE, without pointers; the result is a new descriptor.
    unsafe { descriptor(BPF_LINK_CREATE, &mut attributes) }
}

/// Replaces a link's program atomically: every packet runs one of the two.
pub(crate) fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attributes =
        LinkUpdate { link_fd: raw(link), new_prog_fd: raw(program), ..LinkUpdate::default() };
    // SAFETY: the block of BPF_LINK_UPDATE, without pointers.
    unsafe { bpf(BPF_LINK_UPDATE, &mut attributes).map(drop) }
}

/// Detaches a link from its hook at once; succeeds if its interface no longer exists.
pub(crate) fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    let mut attributes = LinkDetach { link_fd: raw(link) };
    // SAFETY: the block of BPF_LINK_DETACH, without pointers.
    match unsafe { bpf(BPF_LINK_DETACH, &mut attributes) } {
        Err(error) if error.raw_os_error() != Some(libc::ENOLINK) => Err(error),
        _ => Ok(()),
    }
}

/// Identifiers of the programs at a TCX hook of an interface, in the order in which they run. EINVAL if the kernel has
/// no such hook, ENODEV if there is no such interface.
pub(crate) fn programs(ifindex: u32, attach_type: u32) -> io::Result<Vec<u32>> {
    /// `BPF_MPROG_MAX`, the capacity of a hook.
    const MOST: usize = 64;
    let mut ids = [0_u32; MOST];
    let mut attributes = Query {
        ifindex,
        attach_type,
        program_ids: ids.as_mut_ptr() as u64,
        count: MOST as u32,
        ..Query::default()
    };
    // SAFETY: the block of BPF_PROG_QUERY; the kernel writes at most `count` identifiers.
    unsafe { bpf(BPF_PROG_QUERY, &mut attributes)? };
    Ok(ids.into_iter().take(attributes.count as usize).collect())
}

/// Loads a classifier.
pub(crate) fn classifier(code: &[u64]) -> io::Result<OwnedFd> {
    prog_load(BPF_PROG_TYPE_SCHED_CLS, 0, code)
}

/// Creates a map for tail calls, with one program at index 0. The kernel empties it when its last descriptor is
/// closed.
///
/// # Errors
/// Error of the kernel, for instance for a program that cannot be tail called.
pub fn program_array(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let array = map(MapCreate {
        kind: BPF_MAP_TYPE_PROG_ARRAY,
        key_size: 4,
        value_size: 4,
        max_entries: 1,
        flags: 0,
    })?;
    let (key, value) = (0_u32, raw(program));
    let mut attributes = MapUpdate {
        map: raw(array.as_fd()),
        unused: 0,
        key: (&raw const key) as u64,
        value: (&raw const value) as u64,
        flags: 0,
    };
    // SAFETY: the block of BPF_MAP_UPDATE_ELEM; key and value have the map's sizes and outlive the call.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut attributes)? };
    Ok(array)
}

/// Pins an object at a path on bpffs.
pub(crate) fn obj_pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes =
        Obj { pathname: path.as_ptr() as u64, bpf_fd: raw(object), ..Obj::default() };
    // SAFETY: the block of BPF_OBJ_PIN; the path outlives the call.
    unsafe { bpf(BPF_OBJ_PIN, &mut attributes).map(drop) }
}

/// Opens a pinned object.
pub(crate) fn obj_get(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = Obj { pathname: path.as_ptr() as u64, ..Obj::default() };
    // SAFETY: the block of BPF_OBJ_GET; the path outlives the call; the result is a new descriptor.
    unsafe { descriptor(BPF_OBJ_GET, &mut attributes) }
}

/// Program and place of a TCX link; an error of kind `InvalidData` for any other link.
pub(crate) fn tcx_info(link: BorrowedFd<'_>) -> io::Result<LinkAt> {
    link_info(link, BPF_LINK_TYPE_TCX)
}

/// Program and place of a link; an error of kind `InvalidData` if it is not of this kind (`enum bpf_link_type`).
pub(crate) fn link_info(link: BorrowedFd<'_>, kind: u32) -> io::Result<LinkAt> {
    let mut info = LinkInfo::default();
    let mut attributes = InfoByFd {
        bpf_fd: raw(link),
        info_len: size_of::<LinkInfo>() as u32,
        info: std::ptr::from_mut(&mut info) as u64,
    };
    // SAFETY: the block of BPF_OBJ_GET_INFO_BY_FD; the kernel writes at most info_len bytes.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attributes)? };
    if info.kind != kind {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a link of another kind"));
    }
    Ok(LinkAt { program: info.program, ifindex: info.ifindex, attach_type: info.attach_type })
}
