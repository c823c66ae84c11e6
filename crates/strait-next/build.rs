//! Sets the version of the protocol that the sources of the library are compiled for in this crate.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=strait_protocol=\"3\"");
}
