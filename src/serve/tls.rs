//! TLS from files.

use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto};

use super::files::{FileError, Kept};

/// The files of a server's TLS, PEM each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// The server's certificate, and what leads from it to an authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities whose certificates callers must show; without them, callers show none.
    pub client_ca: Option<PathBuf>,
}

/// The TLS in force. Connections keep what was in force when they began.
#[derive(Debug)]
pub(super) struct Tls(Kept<ServerConfig>);

// === impl Tls ===

impl Tls {
    /// Reads the files.
    pub(super) fn load(files: TlsFiles) -> Result<Self, FileError> {
        let paths = [Some(files.cert), Some(files.key), files.client_ca];
        Kept::load(paths.into_iter().flatten().collect(), read).map(Self)
    }

    /// What the next connection is served with.
    pub(super) fn current(&self) -> Arc<ServerConfig> {
        self.0.current()
    }

    /// Looks at the files again: [`Kept::look`].
    pub(super) fn look(&self) -> Option<Result<(), FileError>> {
        self.0.look()
    }
}

/// From the contents of certificate, key, and authorities where there are any.
fn read(files: &[Vec<u8>]) -> Result<ServerConfig, String> {
    let [cert, key, authorities @ ..] = files else { return Err("a certificate and a key are needed".to_owned()) };
    let chain = certificates(cert, "certificate")?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("private key: {error}"))?;
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let config = match authorities.first() {
        None => config.with_no_client_auth(),
        Some(authorities) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(authorities, "client authority")? {
                roots.add(authority).map_err(|error| format!("client authority: {error}"))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            config.with_client_cert_verifier(verifier.map_err(|error| format!("client authority: {error}"))?)
        }
    };
    // A key that is another's is refused here.
    let mut config = config.with_single_cert(chain, key).map_err(|error| error.to_string())?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(format!("{what}: no certificate in it")),
        Err(error) => Err(format!("{what}: {error}")),
    }
}
