//! The environment: `${NAME}` in values, and `KVTAP_<SECTION>_<KEY>` in place of values.

use std::collections::BTreeMap;

/// What the names of overriding variables begin with.
pub(super) const PREFIX: &str = "KVTAP_";

/// Names that begin like a setting and are none: where the project's tests find their Python.
const NOT_SETTINGS: [&str; 1] = ["KVTAP_PYTHON"];

/// Environment variables: the process's own, or any map of names to values.
#[derive(Clone, Debug, Default)]
pub struct Env(BTreeMap<String, String>);

// === impl Env ===

impl Env {
    /// The process's variables. Those that are not UTF-8 have their odd bytes replaced.
    pub fn process() -> Self {
        std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
            .collect()
    }

    /// One variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The names that claim to be settings.
    pub(super) fn settings(&self) -> impl Iterator<Item = &str> {
        let claims = self.0.iter().filter(|(name, value)| {
            name.starts_with(PREFIX) && !NOT_SETTINGS.contains(&name.as_str()) && !is_service_link(name, value)
        });
        claims.map(|(name, _)| name.as_str())
    }

    /// Replaces `${NAME}` and `${NAME:-default}` (the default where the variable is unset or empty);
    /// `$${` stands for `${`, and any other `$` for itself. What is put in is not expanded again.
    ///
    /// # Errors
    /// One line that says which variable is unset, or what is no name.
    pub(super) fn expand(&self, text: &str) -> Result<String, String> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            let (before, found) = rest.split_at(at);
            let inside = found.strip_prefix("${").unwrap_or_default();
            if let Some(before) = before.strip_suffix('$') {
                out.push_str(before);
                out.push_str("${");
                rest = inside;
                continue;
            }
            out.push_str(before);
            let Some((reference, after)) = inside.split_once('}') else {
                return Err("`${` has no `}` (write `$${` for a plain `${`)".to_owned());
            };
            out.push_str(self.lookup(reference)?);
            rest = after;
        }
        out.push_str(rest);
        Ok(out)
    }

    fn lookup<'a>(&'a self, reference: &'a str) -> Result<&'a str, String> {
        let (name, default) = match reference.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (reference, None),
        };
        let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !starts_well || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(format!("`${{{reference}}}` does not name an environment variable"));
        }
        match (self.get(name), default) {
            (Some(""), Some(default)) | (None, Some(default)) => Ok(default),
            (Some(value), _) => Ok(value),
            (None, None) => {
                Err(format!("the environment variable {name} is not set (write ${{{name}:-...}} to give a default)"))
            }
        }
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Env {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// Whether Kubernetes set this variable: it tells every pod of a namespace about each Service in it, and a
/// Service called `kvtap` becomes `KVTAP_SERVICE_HOST`, `KVTAP_PORT_9400_TCP_ADDR` and the like.
fn is_service_link(name: &str, value: &str) -> bool {
    let of_a_port = || {
        let (_, port) = name.rsplit_once("_PORT_")?;
        let (number, protocol) = port.split_once('_')?;
        let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
        let protocol = protocol.split('_').next()?;
        Some(digits && ["TCP", "UDP", "SCTP"].contains(&protocol))
    };
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || (name.ends_with("_PORT") && ["tcp://", "udp://", "sctp://"].iter().any(|start| value.starts_with(start)))
        || of_a_port() == Some(true)
}
