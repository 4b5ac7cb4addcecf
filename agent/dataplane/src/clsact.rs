//! Attachment for kernels without TCX: direct-action filters below the clsact qdisc.
//!
//! A second, temporary filter of netpold may be in front: while netpold's filter moves to the front, and before the
//! first programs are loaded (`gate.rs`, also with TCX).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{
    TcAttribute, TcBpfFlags, TcFilterBpfOption, TcHandle, TcMessage, TcOption,
};
use netpold_core::model::Direction;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};

use super::hook::{Attached, Hook};
use crate::netlink::{MessageBody, NetlinkConnection, attributes, word};

/// Priority before all filters with a default priority.
const PRIORITY: u16 = 1;
/// Handle of netpold's filter, among the bpf filters of its priority: "npol" in ASCII.
const HANDLE: u32 = u32::from_be_bytes(*b"npol");
/// Handle of netpold's temporary filter.
const TEMPORARY: u32 = u32::from_be_bytes(*b"nptm");
const NAME: &str = "netpold";

const TC_HEADER: usize = 20;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_CHAIN: u16 = 11;
const TCA_BPF_ID: u16 = 11;

/// Netlink connection that manages filters.
#[derive(Debug)]
pub(super) struct Clsact(NetlinkConnection);

impl Clsact {
    pub(super) fn open() -> io::Result<Self> {
        NetlinkConnection::open().map(Self)
    }

    /// Adds or replaces netpold's filter. Without `NLM_F_EXCL`, the kernel replaces a filter with the same handle in
    /// place, while packets under way finish in the old filter; it puts a new filter before the others of the priority.
    pub(super) fn attach(&mut self, program: BorrowedFd<'_>, hook: Hook) -> io::Result<()> {
        self.put_filter(program, hook, HANDLE).map(drop)
    }

    /// Adds or replaces the temporary filter; returns whether a qdisc was created.
    pub(super) fn attach_temporary(
        &mut self,
        program: BorrowedFd<'_>,
        hook: Hook,
    ) -> io::Result<bool> {
        self.put_filter(program, hook, TEMPORARY)
    }

    /// Moves netpold's filter in front of filters that were added to its priority later. A filter of netpold is
    /// attached throughout.
    pub(super) fn put_first(&mut self, program: BorrowedFd<'_>, hook: Hook) -> io::Result<()> {
        self.put_filter(program, hook, TEMPORARY)?;
        self.remove(hook, HANDLE)?;
        self.put_filter(program, hook, HANDLE)?;
        self.remove(hook, TEMPORARY).map(drop)
    }

    fn put_filter(&mut self, program: BorrowedFd<'_>, hook: Hook, handle: u32) -> io::Result<bool> {
        let added = self.request(
            RouteNetlinkMessage::NewQueueDiscipline(qdisc(hook.ifindex)?),
            NLM_F_CREATE | NLM_F_EXCL,
        );
        let made = match added.map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) => true,
            Err((Some(libc::EEXIST), _)) => self.check_qdisc(hook).map(|()| false)?,
            Err((_, error)) => return Err(error),
        };
        let mut filter = filter(hook, handle)?;
        filter.attributes.push(TcAttribute::Options(vec![
            TcOption::Bpf(TcFilterBpfOption::ProgFd(program.as_raw_fd().cast_unsigned())),
            TcOption::Bpf(TcFilterBpfOption::ProgName(NAME.into())),
            TcOption::Bpf(TcFilterBpfOption::Flags(TcBpfFlags::DirectAction)),
        ]));
        let put = self.request(RouteNetlinkMessage::NewTrafficFilter(filter), NLM_F_CREATE);
        put.map(|()| made).map_err(|error| match error.raw_os_error() {
            // A filter of another kind or protocol has this priority.
            Some(libc::EINVAL | libc::ENOSPC) => io::Error::other(format!(
                "priority {PRIORITY} is taken by another tool's filter; give that filter another one (`tc filter \
                 show`): {error}"
            )),
            _ => error,
        })
    }

    /// Checks that the existing qdisc takes filters of this hook. The kind `ingress` has the same handle as clsact and
    /// silently accepts filters for outgoing packets, but applies them to incoming ones.
    fn check_qdisc(&mut self, hook: Hook) -> io::Result<()> {
        if hook.direction == Direction::Egress {
            return Ok(());
        }
        let asked = self.request(RouteNetlinkMessage::GetQueueDiscipline(qdisc(hook.ifindex)?), 0);
        asked.map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => io::Error::other(
                "the interface has an ingress qdisc, which takes no egress filters; replace it with clsact, which \
                 takes both",
            ),
            _ => error,
        })
    }

    /// Removes netpold's filter, and the qdisc if it has no other filter.
    pub(super) fn detach(&mut self, hook: Hook) -> io::Result<()> {
        if self.remove(hook, HANDLE)? { self.tidy(hook.ifindex) } else { Ok(()) }
    }

    /// Removes the temporary filter; with `qdisc` also the qdisc if it has no other filter.
    pub(super) fn detach_temporary(&mut self, hook: Hook, qdisc: bool) -> io::Result<()> {
        if self.remove(hook, TEMPORARY)? && qdisc { self.tidy(hook.ifindex) } else { Ok(()) }
    }

    /// Removes a filter; returns whether it existed.
    fn remove(&mut self, hook: Hook, handle: u32) -> io::Result<bool> {
        let removed = self.request(RouteNetlinkMessage::DelTrafficFilter(filter(hook, handle)?), 0);
        match removed.map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) => Ok(true),
            // No filter; no qdisc for filters (EINVAL); no interface.
            Err((Some(libc::ENOENT | libc::EINVAL | libc::ENODEV), _)) => Ok(false),
            Err((_, error)) => Err(error),
        }
    }

    fn tidy(&mut self, ifindex: u32) -> io::Result<()> {
        for direction in Direction::BOTH {
            if !self.filters(Hook { ifindex, direction }, |_| Some(()))?.is_empty() {
                return Ok(());
            }
        }
        self.request(RouteNetlinkMessage::DelQueueDiscipline(qdisc(ifindex)?), 0)
    }

    /// Whether netpold's filter is attached at a hook.
    pub(super) fn is_attached(&mut self, hook: Hook) -> io::Result<bool> {
        match self.filters(hook, ClsactFilter::read) {
            // No qdisc for filters.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            filters => filters.map(|filters| filters.iter().any(|filter| filter.is(HANDLE))),
        }
    }

    /// Our filters on every interface of the namespace.
    pub(super) fn attached(&mut self) -> io::Result<Vec<Attached>> {
        self.found(|hook, filters| {
            let ours = filters.iter().position(|filter| filter.is(HANDLE))?;
            let ahead = filters[..ours].iter().map(|filter| filter.program).collect();
            Some(Attached { hook, program: filters[ours].program, ahead })
        })
    }

    /// Hooks with a temporary filter of netpold.
    pub(super) fn temporaries(&mut self) -> io::Result<Vec<Hook>> {
        self.found(|hook, filters| filters.iter().any(|f| f.is(TEMPORARY)).then_some(hook))
    }

    /// Results of `each` for all hooks below a clsact qdisc, with their filters.
    fn found<T>(
        &mut self,
        each: impl Fn(Hook, &[ClsactFilter]) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let all = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default());
        let interfaces = self.0.dump(&all, |message| {
            let clsact = message
                .attributes(TC_HEADER)
                .any(|(kind, value)| kind == TCA_KIND && value == b"clsact\0");
            clsact.then(|| message.word(4)).flatten()
        })?;
        let mut found = Vec::new();
        for ifindex in interfaces {
            for direction in Direction::BOTH {
                let hook = Hook { ifindex, direction };
                found.extend(each(hook, &self.filters(hook, ClsactFilter::read)?));
            }
        }
        Ok(found)
    }

    fn filters<T>(
        &mut self,
        hook: Hook,
        each: impl Fn(MessageBody<'_>) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let mut message = filter(hook, 0)?;
        message.header.handle = TcHandle::UNSPEC;
        message.header.info = 0;
        message.attributes.clear();
        let request = RouteNetlinkMessage::GetTrafficFilter(message);
        // For each priority, the kernel lists a head without handle before the filters.
        self.0.dump(&request, |message| {
            message.word(8).filter(|&handle| handle != 0).and_then(|_| each(message))
        })
    }

    fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.0.request(message, flags, |_| ())
    }
}

/// A filter of the first chain, which every packet passes, in the order of the list.
struct ClsactFilter {
    handle: u32,
    priority: u32,
    /// Identifier of its program; 0: none.
    program: u32,
}

impl ClsactFilter {
    /// Parses a filter; `None` in a chain other than the first, which packets reach by another filter only.
    fn read(message: MessageBody<'_>) -> Option<Self> {
        let attribute = |wanted| {
            message.attributes(TC_HEADER).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
        };
        if attribute(TCA_CHAIN).and_then(word).is_some_and(|chain| chain != 0) {
            return None;
        }
        let options = attribute(TCA_OPTIONS).unwrap_or_default();
        let id = attributes(options).find(|(kind, _)| *kind == TCA_BPF_ID);
        Some(Self {
            handle: message.word(8)?,
            priority: message.word(16)? >> 16,
            program: id.and_then(|(_, id)| word(id)).unwrap_or(0),
        })
    }

    fn is(&self, handle: u32) -> bool {
        (self.handle, self.priority) == (handle, u32::from(PRIORITY))
    }
}

fn qdisc(ifindex: u32) -> io::Result<TcMessage> {
    let mut message = TcMessage::with_index(index(ifindex)?);
    message.header.parent = TcHandle::CLSACT;
    message.header.handle = TcHandle { major: TcHandle::CLSACT.major, minor: 0 };
    message.attributes.push(TcAttribute::Kind("clsact".into()));
    Ok(message)
}

fn filter(hook: Hook, handle: u32) -> io::Result<TcMessage> {
    let mut message = TcMessage::with_index(index(hook.ifindex)?);
    let minor = match hook.direction {
        Direction::Egress => TcHandle::MIN_INGRESS,
        Direction::Ingress => TcHandle::MIN_EGRESS,
    };
    message.header.parent = TcHandle { major: TcHandle::CLSACT.major, minor };
    message.header.handle = handle.into();
    let every_protocol = (libc::ETH_P_ALL as u16).to_be();
    message.header.info = u32::from(PRIORITY) << 16 | u32::from(every_protocol);
    message.attributes.push(TcAttribute::Kind("bpf".into()));
    Ok(message)
}

fn index(ifindex: u32) -> io::Result<i32> {
    i32::try_from(ifindex).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))
}
