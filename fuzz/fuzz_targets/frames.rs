//! The frames of one message.
#![no_main]

libfuzzer_sys::fuzz_target!(init: kvtap_fuzz::sow("frames"), |bytes: &[u8]| kvtap_fuzz::doors::frames::frames(bytes));
