//! Verdict on a packet at a pod's hook, the same in the kernel and on the host.

use crate::{
    direction::PodDirection,
    judge::{
        evaluator::{PacketEvaluator, Visitor},
        hook::PacketHook,
    },
    packet::{bytes::Bytes, parsed::ParsedPacket},
    tables::{TableFamily, Tables},
    verdict::PacketVerdict,
};

/// Judges one packet.
#[inline(always)]
pub fn decide<D: PodDirection, B: Bytes, T: Tables>(
    bytes: &B,
    tables: &T,
    hook: PacketHook,
) -> PacketVerdict {
    let judge = match PacketEvaluator::<D, T>::new(tables, hook) {
        Ok(judge) => judge,
        Err(verdict) => return verdict,
    };
    judge.parse(bytes, &JudgeNow)
}

/// Judges the packet in the same program.
struct JudgeNow;

impl Visitor for JudgeNow {
    type Output = PacketVerdict;

    #[inline(always)]
    fn visit<F: TableFamily, D: PodDirection, T: Tables>(
        &self,
        judge: &PacketEvaluator<'_, D, T>,
        parsed: &ParsedPacket<F>,
    ) -> PacketVerdict {
        judge.judge(parsed)
    }
}
