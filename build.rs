//! Compiles `proto/` without a system `protoc`: types, client and server for `kvtap::proto`, and the descriptor set
//! that the reflection service serves.

use std::error::Error;
use std::path::PathBuf;

/// What the descriptors of a socket's services are called, and their files: those that carry the services, and those
/// whose messages travel elsewhere too. What they import comes along.
const SETS: [(&str, &[&str]); 2] = [
    (
        "kvtap.bin",
        &[
            "proto/kvtap/v1/query_service.proto",
            "proto/kvtap/v1/watch_service.proto",
            "proto/kvtap/v1/explain_service.proto",
            "proto/kvtap/v1/events.proto",
        ],
    ),
    ("kvtap_admin.bin", &["proto/kvtap/v1/admin.proto"]),
];

/// Messages that travel over NATS: no socket answers them.
const RELAYED: &str = "proto/kvtap/v1/relay.proto";

/// Services of other projects, which are answered where the configuration says so. One set each.
const ADAPTED: [(&str, &[&str]); 2] = [
    ("llm_d.bin", &["proto/indexer/v1/indexer.proto"]),
    (
        "smg.bin",
        &[
            "proto/smg/vllm.proto",
            "proto/smg/sglang.proto",
            "proto/smg/trtllm.proto",
            "proto/smg/tokenspeed.proto",
            "proto/smg/common.proto",
        ],
    ),
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let mut all = protox::Compiler::new(["proto"])?;
    all.include_source_info(true).include_imports(true);
    for (descriptors, files) in SETS {
        // One set each: reflection tells of the services that answer on its socket, and of no others.
        let mut one = protox::Compiler::new(["proto"])?;
        one.include_source_info(true).include_imports(true).open_files(files)?;
        std::fs::write(out.join(descriptors), one.encode_file_descriptor_set())?;
        all.open_files(files)?;
    }
    all.open_file(RELAYED)?;
    tonic_prost_build::configure()
        // Maps in key order, so that equal answers are equal bytes.
        .btree_map(".kvtap")
        // Raw tokens and hashes are read where the transport put them.
        .bytes(".kvtap")
        // Reading a message must not cost more than its bytes are worth.
        .codec_path("crate::proto::Codec")
        // Whatever prints a request must not print a prompt: `kvtap::proto` says what it prints instead.
        .skip_debug([".kvtap.v1.MatchRequest", ".kvtap.v1.TokenList", ".kvtap.v1.HashList"])
        .compile_fds(all.file_descriptor_set())?;
    let mut adapted = protox::Compiler::new(["proto"])?;
    adapted.include_source_info(true).include_imports(true);
    for (descriptors, files) in ADAPTED {
        let mut one = protox::Compiler::new(["proto"])?;
        one.include_source_info(true).include_imports(true).open_files(files)?;
        std::fs::write(out.join(descriptors), one.encode_file_descriptor_set())?;
        adapted.open_files(files)?;
    }
    tonic_prost_build::configure()
        .codec_path("crate::proto::Codec")
        .skip_debug([".indexer.v1.GetPodScoresRequest"])
        // Packages of several depths that name each other.
        .include_file("adapted.rs")
        .compile_fds(adapted.file_descriptor_set())?;
    Ok(())
}
