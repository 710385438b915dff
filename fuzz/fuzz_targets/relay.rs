//! What a follower is told.
#![no_main]

libfuzzer_sys::fuzz_target!(init: kvtap_fuzz::sow("relay"), |bytes: &[u8]| kvtap_fuzz::doors::relay::relay(bytes));
