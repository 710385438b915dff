//! Compiles the echo's protocol and kvtap's without a system `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=../../proto");
    for (folder, file) in [("proto", "echo.proto"), ("../../proto", "kvtap/v1/query_service.proto")] {
        let files = protox::compile([file], [folder])?;
        // Bytes are passed on where the transport put them: the floor is as low as it can be.
        tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    }
    Ok(())
}
