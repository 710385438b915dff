//! The bearer token that callers must show, from a file.

use std::path::PathBuf;

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;

use super::files::{FileError, Kept};

/// The token in force.
#[derive(Debug)]
pub(super) struct Token(Kept<Secret>);

/// Never shown.
struct Secret(Vec<u8>);

/// The longest token that is read, in bytes.
const LONGEST: usize = 4096;
/// The shortest: what is shorter is guessed.
const SHORTEST: usize = 16;

// === impl Token ===

impl Token {
    /// Reads the token from its file.
    pub(super) fn load(file: PathBuf) -> Result<Self, FileError> {
        Kept::load(vec![file], read).map(Self)
    }

    /// Looks at the file again: [`Kept::look`].
    pub(super) fn look(&self) -> Option<Result<(), FileError>> {
        self.0.look()
    }

    /// Whether these headers carry the token.
    pub(super) fn admits(&self, headers: &HeaderMap) -> bool {
        let shown = headers.get(AUTHORIZATION).map(hyper::header::HeaderValue::as_bytes);
        let token = shown.and_then(|value| {
            let (scheme, token) = value.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
        });
        let secret = self.0.current();
        token.is_some_and(|token| same(token, &secret.0))
    }
}

/// Whether both are equal, in a time that tells nothing but their lengths.
fn same(shown: &[u8], secret: &[u8]) -> bool {
    shown.len() == secret.len() && shown.iter().zip(secret).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

fn read(files: &[Vec<u8>]) -> Result<Secret, String> {
    let token = files.first().map_or(&[][..], Vec::as_slice).trim_ascii();
    if token.len() < SHORTEST || token.len() > LONGEST {
        return Err(format!("a token has {SHORTEST} to {LONGEST} bytes, this one {}", token.len()));
    }
    if !token.iter().all(u8::is_ascii_graphic) {
        return Err("a token is of printable ASCII without spaces".to_owned());
    }
    Ok(Secret(token.to_vec()))
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn only_the_token_itself_is_admitted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
        let token = Token::load(file).unwrap();
        let shows = |value: &str| token.admits(&HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]));
        assert!(shows(&format!("Bearer {TOKEN}")) && shows(&format!("bearer {TOKEN}")));
        for other in [TOKEN, "Bearer ", "Bearer 0123456789abcdef0123456789abcdeX", "Basic 0123456789abcdef", ""] {
            assert!(!shows(other), "{other:?}");
        }
        assert!(!token.admits(&HeaderMap::new()));
        assert!(!format!("{token:?}").contains("0123"));
    }

    #[test]
    fn a_file_that_is_no_token_is_refused() {
        for bad in ["", "short", "with a space 0123456789", "line\nbreak0123456789"] {
            assert!(read(&[bad.as_bytes().to_vec()]).is_err(), "{bad:?}");
        }
    }
}
