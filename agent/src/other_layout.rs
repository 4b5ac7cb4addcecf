//! Agent with a different table layout, for the upgrade test in both directions.

fn main() -> std::process::ExitCode {
    netpold::main()
}
