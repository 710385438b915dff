//! Compiles `proto/` without a system `protoc`: types, client and server for `kvtap::proto`, and the descriptor set
//! that the reflection service serves.

use std::error::Error;
use std::path::PathBuf;

/// The files that carry services, and those whose messages travel elsewhere too; what they import comes along.
const FILES: [&str; 4] = [
    "proto/kvtap/v1/query_service.proto",
    "proto/kvtap/v1/watch_service.proto",
    "proto/kvtap/v1/explain_service.proto",
    "proto/kvtap/v1/events.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=build.rs");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_source_info(true).include_imports(true).open_files(FILES)?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("kvtap.bin"), compiler.encode_file_descriptor_set())?;
    tonic_prost_build::configure()
        // Maps in key order, so that equal answers are equal bytes.
        .btree_map(".kvtap")
        // Raw tokens and hashes are read where the transport put them.
        .bytes(".kvtap")
        // Whatever prints a request must not print a prompt: `kvtap::proto` says what it prints instead.
        .skip_debug([".kvtap.v1.MatchRequest", ".kvtap.v1.TokenList", ".kvtap.v1.HashList"])
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
