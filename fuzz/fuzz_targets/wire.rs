//! A payload in every dialect.
#![no_main]

libfuzzer_sys::fuzz_target!(init: kvtap_fuzz::sow("wire"), |bytes: &[u8]| kvtap_fuzz::doors::wire::batch(bytes));
