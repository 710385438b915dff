//! How a collector is reached over TLS: the files that the standard variables name.
//!
//! The SDK knows the variables of endpoints, headers and timeouts, but not these; they are the specification's:
//!
//! | variable (`OTEL_EXPORTER_OTLP_TRACES_..` before `OTEL_EXPORTER_OTLP_..`) | a file, in PEM |
//! |---|---|
//! | `CERTIFICATE` | who must have signed the collector's certificate; without it, whoever the system trusts |
//! | `CLIENT_CERTIFICATE`, `CLIENT_KEY` | what is shown to a collector that asks |
//!
//! They are read once, at the start, so that what is wrong with them is said then. They mean nothing to `http://`.

use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::traces::{ENDPOINTS, TracesError};

const AUTHORITY: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"];
const SHOWN: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"];
const KEY: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "OTEL_EXPORTER_OTLP_CLIENT_KEY"];

/// What a collector is reached with, `None` where its endpoint is plain text.
///
/// # Errors
/// [`TracesError`], where a file cannot be used, or half of a pair is missing.
pub(super) fn asked(variable: impl Fn(&str) -> Option<String>) -> Result<Option<ClientTlsConfig>, TracesError> {
    let set = |names: [&'static str; 2]| names.into_iter().find_map(|name| Some((name, variable(name)?)));
    // One without a scheme is `https` to the SDK, unless another variable says otherwise.
    if set(ENDPOINTS).is_none_or(|(_, endpoint)| endpoint.starts_with("http://")) {
        return Ok(None);
    }
    let mut tls = ClientTlsConfig::new();
    tls = match set(AUTHORITY) {
        Some(file) => tls.ca_certificate(Certificate::from_pem(read(&file, "CERTIFICATE-----")?)),
        None => tls.with_native_roots(),
    };
    match (set(SHOWN), set(KEY)) {
        (Some(shown), Some(key)) => {
            tls = tls.identity(Identity::from_pem(read(&shown, "CERTIFICATE-----")?, read(&key, "PRIVATE KEY-----")?));
        }
        (Some((variable, _)), None) => return Err(TracesError::Half { variable, missing: KEY[1] }),
        (None, Some((variable, _))) => return Err(TracesError::Half { variable, missing: SHOWN[1] }),
        (None, None) => {}
    }
    Ok(Some(tls))
}

/// The file that a variable names, which must hold PEM of this kind.
fn read((variable, path): &(&'static str, String), kind: &str) -> Result<String, TracesError> {
    let failed = |why: String| TracesError::File { variable, path: path.clone(), why };
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    match text.contains(kind) {
        true => Ok(text),
        false => Err(failed(format!("it holds no `{kind}` in PEM"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(variables: &[(&str, &str)]) -> Result<bool, String> {
        let variable =
            |name: &str| variables.iter().find(|(have, _)| *have == name).map(|(_, value)| (*value).to_owned());
        asked(variable).map(|tls| tls.is_some()).map_err(|error| error.to_string())
    }

    const SECURE: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4317");

    #[test]
    fn only_an_endpoint_that_is_not_plain_text_asks_for_tls() {
        assert_eq!(answer(&[]), Ok(false));
        assert_eq!(
            answer(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317"), (AUTHORITY[1], "/none")]),
            Ok(false)
        );
        assert_eq!(answer(&[SECURE]), Ok(true));
        // The variable for traces counts more.
        assert_eq!(answer(&[SECURE, (ENDPOINTS[0], "http://traces:4317")]), Ok(false));
    }

    #[test]
    fn a_file_that_is_not_there_and_half_a_pair_are_said_by_the_variables_name() {
        let missing = answer(&[SECURE, (AUTHORITY[0], "/no/such/ca.pem")]).unwrap_err();
        assert!(missing.starts_with("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE: /no/such/ca.pem: "), "{missing}");
        let not_pem = answer(&[SECURE, (AUTHORITY[1], "Cargo.toml")]).unwrap_err();
        assert!(not_pem.contains("holds no `CERTIFICATE-----`"), "{not_pem}");
        let half = answer(&[SECURE, (KEY[0], "/none")]).unwrap_err();
        assert_eq!(
            half,
            "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY: it needs OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE beside it"
        );
    }
}
