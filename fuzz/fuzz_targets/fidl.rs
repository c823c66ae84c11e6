//! The fuzzer of `strait_fuzz::fidl`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| strait_fuzz::fidl(data));
