//! The public protocol: types, clients and servers generated from `proto/kvtap`, and the descriptor set that
//! reflection serves. What each message means is written in the `.proto` files.

pub mod codec;
mod scan;

use std::fmt;

use crate::worker::Identity;

pub use codec::Codec;
pub use scan::{MAX_BATCH, MAX_EXTRA_KEYS, MAX_NAMES, MAX_STATES};

/// Package `kvtap.v1`.
pub mod v1 {
    #![allow(missing_docs, clippy::all, clippy::pedantic)]
    tonic::include_proto!("kvtap.v1");
}

/// The services of other projects that may be answered.
mod adapted {
    #![allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
    include!(concat!(env!("OUT_DIR"), "/adapted.rs"));
}

/// Package `indexer.v1`: llm-d's question.
pub use adapted::indexer::v1 as indexer;
/// Package `sglang.grpc.scheduler`, as far as SMG's gateway follows its events.
pub use adapted::sglang::grpc::scheduler as sglang;
/// Package `smg.grpc.common`: the events that SMG's gateway follows.
pub use adapted::smg::grpc::common as smg;
/// Package `tokenspeed.grpc.scheduler`, as far as SMG's gateway follows its events.
pub use adapted::tokenspeed::grpc::scheduler as tokenspeed;
/// Package `trtllm`, as far as SMG's gateway follows its events.
pub use adapted::trtllm;
/// Package `vllm.grpc.engine`, as far as SMG's gateway follows its events.
pub use adapted::vllm::grpc::engine as vllm;

/// The encoded `FileDescriptorSet` of llm-d's service.
pub const LLM_D_DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("llm_d");

/// The encoded `FileDescriptorSet` of the services that SMG's gateway asks.
pub const SMG_DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("smg");

/// The encoded `FileDescriptorSet` of the query service and its messages, comments included.
pub const DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("kvtap");

/// The same of the Admin service, which has sockets of its own.
pub const ADMIN_DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("kvtap_admin");

/// Shows whom a request asks about which model; the rest of it is a prompt.
impl fmt::Debug for v1::MatchRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MatchRequest")
            .field("model", &self.model)
            .field("block_size", &self.block_size)
            .field("workers", &self.workers)
            .field("ranks", &self.ranks)
            .field("top_k", &self.top_k)
            .field("min_blocks", &self.min_blocks)
            .finish_non_exhaustive()
    }
}

/// Shows whom a request asks about which model; the rest of it is a prompt.
impl fmt::Debug for indexer::GetPodScoresRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GetPodScoresRequest")
            .field("model_name", &self.model_name)
            .field("pod_identifiers", &self.pod_identifiers)
            .finish_non_exhaustive()
    }
}

/// Shows the form and its length.
impl fmt::Debug for v1::match_request::Prompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TokensLe(raw) => write!(f, "TokensLe({} bytes)", raw.len()),
            Self::Tokens(list) => list.fmt(f),
            Self::ContentHashesLe(raw) => write!(f, "ContentHashesLe({} bytes)", raw.len()),
            Self::ContentHashes(list) => write!(f, "ContentHashes({})", list.hashes.len()),
            Self::PrefixHashesLe(raw) => write!(f, "PrefixHashesLe({} bytes)", raw.len()),
            Self::PrefixHashes(list) => write!(f, "PrefixHashes({})", list.hashes.len()),
        }
    }
}

/// Shows how many there are.
impl fmt::Debug for v1::TokenList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenList({})", self.ids.len())
    }
}

/// Shows how many there are.
impl fmt::Debug for v1::HashList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HashList({})", self.hashes.len())
    }
}

// === impl v1::WorkerRank ===

impl From<&Identity> for v1::WorkerRank {
    /// What a rank is called, in the protocol's words.
    fn from(identity: &Identity) -> Self {
        Self {
            worker: identity.worker.to_string(),
            address: identity.address.to_string(),
            aliases: identity.aliases.to_vec(),
            model: identity.model.to_string(),
            rank: identity.rank,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_prompt_is_printed_with_a_request() {
        let request = v1::MatchRequest {
            model: "m".to_owned(),
            lora_name: "adapter".to_owned(),
            cache_salt: "sesame".to_owned(),
            prompt: Some(v1::match_request::Prompt::Tokens(v1::TokenList { ids: vec![4_242_424] })),
            extra_keys: vec![vec![99; 8].into()],
            ..Default::default()
        };
        let shown = format!("{:?}", v1::MatchStreamRequest { id: 7, request: Some(request) });
        assert!(shown.contains("id: 7") && shown.contains("model: \"m\""), "{shown}");
        for secret in ["adapter", "sesame", "4242424", "99"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
}
