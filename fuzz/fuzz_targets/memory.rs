//! The fuzzer of `strait_fuzz::memory`.
#![no_main]
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_target!(|data: &[u8]| strait_fuzz::memory(data));

fuzz_mutator!(|data: &mut [u8], size: usize, most: usize, seed: u32| {
    strait_fuzz::program::mutate(data, size, most, seed, fuzzer_mutate)
});
