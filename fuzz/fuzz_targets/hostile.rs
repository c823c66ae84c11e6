//! The fuzzer of `strait_fuzz::hostile`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strait_fuzz::hostile(data));
