//! `admin_rpc`: where feeds may be changed by call, if at all.

use super::fault::Placed;
use super::read::{Reader, Section};
use super::rule::Address;
use super::sections::{FILE, tls};
use crate::serve::{Guards, ListenAddr, TlsFiles};

/// The Admin service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdminRpc {
    /// Where it listens, one socket each; without any there is no such service.
    pub listen: Vec<ListenAddr>,
    /// What tells its callers apart.
    pub guards: Guards,
}

/// Reads the Admin service. `taken` are the sockets of the other servers, with their keys. Calls change what runs, so
/// where nothing tells callers apart (a client certificate or a token) they must come from this host.
pub(super) fn admin_rpc(
    reader: &mut Reader<'_>,
    root: &mut Section<'_>,
    taken: &[(ListenAddr, &str)],
) -> Option<AdminRpc> {
    let mut section = root.section(reader, "admin_rpc");
    let listen = section.list(reader, "listen", &Address, "");
    let token_file = section.optional(reader, "token_file", &FILE);
    let tls = tls(reader, &mut section);
    let path = section.path_of("listen");
    section.finish(reader);
    let is_secret = matches!(tls, Some(Some(_)));
    // What is faulty is told already.
    let guarded = token_file.is_some() || tls.as_ref().is_none_or(|tls| has_authorities(tls.as_ref()));
    if listen.is_empty() && (token_file.is_some() || is_secret) {
        reader.warn(&root.place, &path, "nobody listens there, so what guards it is of no use");
    }
    for (i, Placed { value, place }) in listen.iter().enumerate() {
        let any_port = matches!(value, ListenAddr::Tcp(address) if address.port() == 0);
        if !any_port && listen.iter().take(i).any(|earlier| earlier.value == *value) {
            reader.fault(place, &path, format!("names {value} twice"));
        }
        if let Some((_, key)) = taken.iter().find(|(taken, _)| !any_port && taken == value) {
            reader.fault(place, &path, format!("{value} is in {key} too"));
        }
        if !guarded && !is_local(value) {
            let what = format!(
                "{value} is not local: nothing tells the callers of Admin apart, so they must come from this host \
                 (127.0.0.1, [::1] or unix:///path); other hosts need tls.client_ca or token_file"
            );
            reader.fault(place, &path, what);
        } else if token_file.is_some() && !is_secret && !is_local(value) {
            let what = format!("{value} is not local and not TLS: whoever is between can read the token");
            reader.warn(place, &path, &what);
        }
    }
    let guards = Guards { tls: tls?, token_file: token_file.map(|file| file.value.into()) };
    Some(AdminRpc { listen: listen.into_iter().map(|listen| listen.value).collect(), guards })
}

fn has_authorities(tls: Option<&TlsFiles>) -> bool {
    tls.is_some_and(|tls| tls.client_ca.is_some())
}

/// Whether only this host can reach it.
fn is_local(listen: &ListenAddr) -> bool {
    match listen {
        ListenAddr::Tcp(address) => address.ip().to_canonical().is_loopback(),
        ListenAddr::Unix(_) => true,
    }
}
