//! The messages of a rank's life.
#![no_main]

libfuzzer_sys::fuzz_target!(init: kvtap_fuzz::sow("pipeline"), |bytes: &[u8]| kvtap_fuzz::doors::pipeline::pipeline(bytes));
