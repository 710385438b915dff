//! A payload of a TensorRT-LLM feed.
#![no_main]

libfuzzer_sys::fuzz_target!(init: kvtap_fuzz::sow("trtllm"), |bytes: &[u8]| kvtap_fuzz::doors::wire::trtllm(bytes));
