//! Attachment for kernels without TCX: direct-action filters below the clsact qdisc.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{
    TcAttribute, TcBpfFlags, TcFilterBpfOption, TcHandle, TcMessage, TcOption,
};
use netpold_core::model::Direction;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};

use super::attach::{Attached, Hook};
use crate::netlink::{Connection, Message, attributes, word};

/// In front of all filters that have a priority of their own.
const PRIORITY: u16 = 1;
/// Of all bpf filters with our priority, the one that is ours: "npol" in ASCII.
const HANDLE: u32 = u32::from_be_bytes(*b"npol");
const NAME: &str = "netpold";

const TC_HEADER: usize = 20;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_ID: u16 = 11;

/// The netlink connection that filters are managed by.
#[derive(Debug)]
pub(super) struct Clsact(Connection);

impl Clsact {
    pub(super) fn open() -> io::Result<Self> {
        Connection::open().map(Self)
    }

    /// Adds or replaces our filter. Without NLM_F_EXCL the kernel exchanges a filter of the same
    /// handle in place, while the old one serves packets that are under way.
    pub(super) fn attach(&mut self, program: BorrowedFd<'_>, hook: Hook) -> io::Result<()> {
        let added = self.request(
            RouteNetlinkMessage::NewQueueDiscipline(qdisc(hook.ifindex)?),
            NLM_F_CREATE | NLM_F_EXCL,
        );
        match added.map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) => {}
            Err((Some(libc::EEXIST), _)) => self.check_qdisc(hook)?,
            Err((_, error)) => return Err(error),
        }
        let mut filter = filter(hook)?;
        filter.attributes.push(TcAttribute::Options(vec![
            TcOption::Bpf(TcFilterBpfOption::ProgFd(program.as_raw_fd().cast_unsigned())),
            TcOption::Bpf(TcFilterBpfOption::ProgName(NAME.into())),
            TcOption::Bpf(TcFilterBpfOption::Flags(TcBpfFlags::DirectAction)),
        ]));
        self.request(RouteNetlinkMessage::NewTrafficFilter(filter), NLM_F_CREATE)
    }

    /// Whether the qdisc that is there has a place for filters of this hook. The kind `ingress` is in
    /// the place of clsact, and takes filters for what goes out without a word, but applies them to
    /// what comes in.
    fn check_qdisc(&mut self, hook: Hook) -> io::Result<()> {
        if hook.direction == Direction::Egress {
            return Ok(());
        }
        let asked = self.request(RouteNetlinkMessage::GetQueueDiscipline(qdisc(hook.ifindex)?), 0);
        asked.map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => io::Error::other(
                "a qdisc of the kind ingress is there, which has no place for filters of what goes \
                 out; replace it by clsact, which has both",
            ),
            _ => error,
        })
    }

    /// Removes our filter, and the qdisc if it holds no filter then.
    pub(super) fn detach(&mut self, hook: Hook) -> io::Result<()> {
        let removed = self.request(RouteNetlinkMessage::DelTrafficFilter(filter(hook)?), 0);
        match removed.map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) => {}
            // No filter; no qdisc to have filters (EINVAL); no interface.
            Err((Some(libc::ENOENT | libc::EINVAL | libc::ENODEV), _)) => return Ok(()),
            Err((_, error)) => return Err(error),
        }
        for direction in Direction::BOTH {
            if !self.filters(Hook { direction, ..hook }, |_| Some(()))?.is_empty() {
                return Ok(());
            }
        }
        self.request(RouteNetlinkMessage::DelQueueDiscipline(qdisc(hook.ifindex)?), 0)
    }

    /// Our filters on every interface of the namespace.
    pub(super) fn attached(&mut self) -> io::Result<Vec<Attached>> {
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
                let programs = self.filters(hook, ours)?;
                found.extend(programs.into_iter().map(|program| Attached { hook, program }));
            }
        }
        Ok(found)
    }

    fn filters<T>(
        &mut self,
        hook: Hook,
        each: impl Fn(Message<'_>) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let mut message = filter(hook)?;
        message.header.handle = TcHandle::UNSPEC;
        message.header.info = 0;
        message.attributes.clear();
        let request = RouteNetlinkMessage::GetTrafficFilter(message);
        // Per priority the kernel lists a head without handle before the filters.
        self.0.dump(&request, |message| {
            message.word(8).filter(|&handle| handle != 0).and_then(|_| each(message))
        })
    }

    fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.0.request(message, flags, |_| ())
    }
}

/// Identifier of the program if the filter is ours.
fn ours(message: Message<'_>) -> Option<u32> {
    let priority = message.word(16)? >> 16;
    if message.word(8)? != HANDLE || priority != u32::from(PRIORITY) {
        return None;
    }
    let options = message.attributes(TC_HEADER).find(|(kind, _)| *kind == TCA_OPTIONS)?.1;
    attributes(options).find(|(kind, _)| *kind == TCA_BPF_ID).and_then(|(_, id)| word(id))
}

fn qdisc(ifindex: u32) -> io::Result<TcMessage> {
    let mut message = TcMessage::with_index(index(ifindex)?);
    message.header.parent = TcHandle::CLSACT;
    message.header.handle = TcHandle { major: TcHandle::CLSACT.major, minor: 0 };
    message.attributes.push(TcAttribute::Kind("clsact".into()));
    Ok(message)
}

fn filter(hook: Hook) -> io::Result<TcMessage> {
    let mut message = TcMessage::with_index(index(hook.ifindex)?);
    let minor = match hook.direction {
        Direction::Egress => TcHandle::MIN_INGRESS,
        Direction::Ingress => TcHandle::MIN_EGRESS,
    };
    message.header.parent = TcHandle { major: TcHandle::CLSACT.major, minor };
    message.header.handle = HANDLE.into();
    let every_protocol = (libc::ETH_P_ALL as u16).to_be();
    message.header.info = u32::from(PRIORITY) << 16 | u32::from(every_protocol);
    message.attributes.push(TcAttribute::Kind("bpf".into()));
    Ok(message)
}

fn index(ifindex: u32) -> io::Result<i32> {
    i32::try_from(ifindex).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))
}
