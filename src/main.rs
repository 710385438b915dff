//! The `kvtap` binary: parse, run, exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    kvtap::cli::main()
}
