//! netpold: Kubernetes NetworkPolicy enforced in eBPF at every pod's veth.

fn main() -> std::process::ExitCode {
    netpold::main()
}
