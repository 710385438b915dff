//! `admin_rpc`: where feeds may be changed by call, if at all.

use super::fault::Placed;
use super::read::{Reader, Section};
use super::rule::Address;
use crate::serve::ListenAddr;

/// The sockets of the Admin service; none: there is no such service. `taken` are the sockets of the other servers,
/// with their keys. Calls change what runs, so where nothing tells callers apart (`guarded`: a client certificate or
/// a token is asked for) they must come from this host.
pub(super) fn admin_rpc(
    reader: &mut Reader<'_>,
    root: &mut Section<'_>,
    taken: &[(ListenAddr, &str)],
    guarded: bool,
) -> Vec<ListenAddr> {
    let mut section = root.section(reader, "admin_rpc");
    let listen = section.list(reader, "listen", &Address, "");
    let path = section.path_of("listen");
    section.finish(reader);
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
                 (127.0.0.1, [::1] or unix:///path)"
            );
            reader.fault(place, &path, what);
        }
    }
    listen.into_iter().map(|listen| listen.value).collect()
}

/// Whether only this host can reach it.
fn is_local(listen: &ListenAddr) -> bool {
    match listen {
        ListenAddr::Tcp(address) => address.ip().to_canonical().is_loopback(),
        ListenAddr::Unix(_) => true,
    }
}
