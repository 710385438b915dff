//! One file per command: its arguments, what it does, what it prints, its exit code.

pub mod sim;
