//! A configuration file and the variables over it.
#![no_main]

libfuzzer_sys::fuzz_target!(init: kvtap_fuzz::sow("config"), |bytes: &[u8]| kvtap_fuzz::doors::config::config(bytes));
