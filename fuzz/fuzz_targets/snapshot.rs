//! A snapshot's file.
#![no_main]

libfuzzer_sys::fuzz_target!(init: kvtap_fuzz::sow("snapshot"), |bytes: &[u8]| kvtap_fuzz::doors::snapshot::snapshot(bytes));
