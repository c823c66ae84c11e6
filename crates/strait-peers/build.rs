//! Generates the code of services for the libraries that need such code, and compiles the C++ of peer-boost and
//! peer-boost-spsc.

fn main() {
    #[cfg(feature = "boost")]
    cc::Build::new()
        .cpp(true)
        .std("c++14")
        .opt_level(3)
        .files(["src/bin/boost.cpp", "src/bin/boost_spsc.cpp"])
        .compile("peer_boost");
    #[cfg(feature = "capnp")]
    capnpc::CompilerCommand::new()
        .src_prefix("schema")
        .file("schema/echo.capnp")
        .run()
        .expect("the program `capnp` (Debian: capnproto)");
    #[cfg(feature = "tonic")]
    {
        use tonic_build::manual::{Builder, Method, Service};
        let method = |name: &str, route: &str| {
            Method::builder()
                .name(name)
                .route_name(route)
                .input_type("crate::Bytes")
                .output_type("crate::Bytes")
                .codec_path("tonic_prost::ProstCodec")
        };
        let echo = Service::builder()
            .name("Echo")
            .package("peers")
            .method(method("call", "Call").build())
            .method(method("talk", "Talk").client_streaming().server_streaming().build())
            .build();
        Builder::new().compile(&[echo]);
    }
    println!("cargo:rerun-if-changed=src/bin/boost.cpp");
    println!("cargo:rerun-if-changed=src/bin/boost_spsc.cpp");
    println!("cargo:rerun-if-changed=schema/echo.capnp");
}
