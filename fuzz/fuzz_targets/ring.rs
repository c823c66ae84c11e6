//! The fuzzer of `strait_fuzz::ring`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strait_fuzz::ring(data));
