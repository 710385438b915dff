//! The public protocol: types, clients and servers generated from `proto/kvtap`, and the descriptor set that
//! reflection serves. What each message means is written in the `.proto` files.

/// Package `kvtap.v1`.
pub mod v1 {
    #![allow(missing_docs, clippy::all, clippy::pedantic)]
    tonic::include_proto!("kvtap.v1");
}

/// The encoded `FileDescriptorSet` of every message and service of this protocol, comments included.
pub const DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("kvtap");
