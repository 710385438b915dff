//! A request body to the query service.
#![no_main]

libfuzzer_sys::fuzz_target!(init: kvtap_fuzz::sow("query"), |bytes: &[u8]| kvtap_fuzz::doors::query::query(bytes));
