//! The fuzzer of `strait_fuzz::packet`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strait_fuzz::packet(data));
