//! Writes the code of the gRPC service, as a build script with a `.proto` file does. The service is defined here, so
//! that no `protoc` is needed.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let echo = Method::builder()
        .name("echo")
        .route_name("Echo")
        .input_type("crate::grpc::Request")
        .output_type("crate::grpc::Reply")
        .codec_path("tonic_prost::ProstCodec")
        .build();
    Builder::new().compile(&[Service::builder().name("Echo").package("services").method(echo).build()]);
}
