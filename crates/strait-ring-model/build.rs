//! Gives this copy of the ring the words of the model checker. No feature of `strait-ring` does, so that no dependency
//! of a user's program can.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=strait_model");
}
