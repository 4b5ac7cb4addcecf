//! The programs in this machine's kernel, by BPF_PROG_TEST_RUN. Needs root.

use aya::{EbpfLoader, programs::SchedClassifier};

#[test]
fn programs_pass_the_verifier() {
    let object = netpold::object::object().expect("the eBPF object");
    let mut bpf = EbpfLoader::new().load(object).expect("maps");
    for name in ["netpold_ingress", "netpold_egress", "netpold_clock", "netpold_empty"] {
        let program: &mut SchedClassifier =
            bpf.program_mut(name).expect(name).try_into().expect(name);
        program.load().unwrap_or_else(|error| panic!("{name}: {error:?}"));
        let info = program.info().expect("program info");
        println!(
            "{name}: {:?} verified, {:?}",
            info.verified_instruction_count(),
            info.size_translated()
        );
    }
}
