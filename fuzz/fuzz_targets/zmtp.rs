//! A peer's half of a ZMTP connection.
#![no_main]

libfuzzer_sys::fuzz_target!(init: kvtap_fuzz::sow("zmtp"), |bytes: &[u8]| kvtap_fuzz::doors::frames::zmtp(bytes));
