//! An agent whose tables are laid out differently: what the upgrade test goes to and back from.

fn main() -> std::process::ExitCode {
    netpold::main()
}
