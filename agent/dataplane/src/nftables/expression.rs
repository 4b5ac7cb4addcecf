//! Expressions of rules. Each works on one register of 32 bits, and ends its rule if it does not match.

use std::ffi::CStr;

use super::{NFTA_DATA_VALUE, NFTA_LIST_ELEM, name};
use crate::netlink::{NLA_F_NESTED, attribute, attributes};

const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_COUNTER_PACKETS: u16 = 2;
/// `NFT_REG_VERDICT` and `NFT_REG_1`.
const VERDICT: u32 = 0;
const REGISTER: u32 = 1;

/// Comparison of the register with a constant (`NFT_CMP_*`).
#[derive(Clone, Copy, Debug)]
pub(crate) enum RegisterComparison {
    Equal = 0,
    NotEqual = 1,
}

/// Field of a packet outside its bytes (`NFT_META_*`).
#[derive(Clone, Copy, Debug)]
pub(crate) enum MetaField {
    Mark = 3,
    IncomingInterface = 4,
}

/// Loads up to four bytes at an offset of the network header.
pub(crate) fn network_header(offset: u32, length: u32) -> Vec<u8> {
    const NETWORK_HEADER: u32 = 1;
    expression(
        c"payload",
        &[number(1, REGISTER), number(2, NETWORK_HEADER), number(3, offset), number(4, length)],
    )
}

/// Loads one byte: 1 if the IPv6 packet has an extension header of this type, else 0.
pub(crate) fn has_extension(header: u8) -> Vec<u8> {
    const PRESENT: u32 = 1;
    let kind = attribute(2, &[header]);
    expression(
        c"exthdr",
        &[number(1, REGISTER), kind, number(3, 0), number(4, 1), number(5, PRESENT)],
    )
}

/// Loads a field.
pub(crate) fn meta(field: MetaField) -> Vec<u8> {
    expression(c"meta", &[number(1, REGISTER), number(2, field as u32)])
}

/// Keeps the bits of a mask.
pub(crate) fn and(mask: [u8; 4]) -> Vec<u8> {
    let (mask, xor) = (data(4, &mask), data(5, &[0; 4]));
    expression(c"bitwise", &[number(1, REGISTER), number(2, REGISTER), number(3, 4), mask, xor])
}

/// Compares the first bytes of the register.
pub(crate) fn compare(comparison: RegisterComparison, bytes: &[u8]) -> Vec<u8> {
    let operation = number(2, comparison as u32);
    expression(c"cmp", &[number(1, REGISTER), operation, data(3, bytes)])
}

/// Matches if a set of the same table lacks the register's value.
pub(crate) fn not_in(set: &CStr) -> Vec<u8> {
    const INVERTED: u32 = 1;
    expression(c"lookup", &[name(1, set), number(2, REGISTER), number(5, INVERTED)])
}

/// Counts the packet.
pub(crate) fn counter() -> Vec<u8> {
    expression(c"counter", &[])
}

/// Ends the packet's way with a verdict (`NF_*`).
pub(crate) fn verdict(code: u32) -> Vec<u8> {
    let code = attribute(2 | NLA_F_NESTED, &number(1, code));
    expression(c"immediate", &[number(1, VERDICT), attribute(2 | NLA_F_NESTED, &code)])
}

/// Packets that the counters in a rule's list of expressions have counted.
pub(crate) fn counted(expressions: &[u8]) -> u64 {
    let value = |bytes, wanted| attributes(bytes).find(|(kind, _)| *kind == wanted);
    let packets = attributes(expressions).filter_map(|(_, expression)| {
        let (_, called) = value(expression, NFTA_EXPR_NAME)?;
        let (_, counter) = value(expression, NFTA_EXPR_DATA).filter(|_| called == b"counter\0")?;
        let (_, packets) = value(counter, NFTA_COUNTER_PACKETS)?;
        packets.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
    });
    packets.sum()
}

fn expression(called: &CStr, parts: &[Vec<u8>]) -> Vec<u8> {
    let data = attribute(NFTA_EXPR_DATA | NLA_F_NESTED, &parts.concat());
    attribute(NFTA_LIST_ELEM | NLA_F_NESTED, &[name(NFTA_EXPR_NAME, called), data].concat())
}

fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

fn data(kind: u16, value: &[u8]) -> Vec<u8> {
    attribute(kind | NLA_F_NESTED, &attribute(NFTA_DATA_VALUE, value))
}
