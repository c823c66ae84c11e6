//! Shows internals of the library to the micro-benchmarks of the crate `strait-bench`, in this copy of the library
//! alone. Passed to `cargo` in `RUSTFLAGS`, the condition would compile every crate once more.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=strait_benchmarks");
}
