//! The fuzzer of `strait_fuzz::table`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strait_fuzz::table(data));
