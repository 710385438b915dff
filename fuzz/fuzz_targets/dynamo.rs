//! A message of Dynamo's event plane.
#![no_main]

libfuzzer_sys::fuzz_target!(init: kvtap_fuzz::sow("dynamo"), |bytes: &[u8]| kvtap_fuzz::doors::wire::dynamo(bytes));
