//! The `kvtap` binary: parse, run, exit code.

fn main() {}
