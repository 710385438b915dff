//! The Python interpreter that runs the peers in `tests/peers`.

use std::path::{Path, PathBuf};

/// `$KVTAP_PYTHON`, else the virtual environment that `make` creates. Its packages are those of
/// `tests/peers/requirements.txt`.
pub fn interpreter() -> PathBuf {
    let python = std::env::var_os("KVTAP_PYTHON").map_or_else(|| root().join(".venv/bin/python"), PathBuf::from);
    assert!(
        python.exists(),
        "{} does not exist: create it (python3 -m venv .venv && .venv/bin/pip install -r tests/peers/requirements.txt) \
         or name another interpreter in KVTAP_PYTHON",
        python.display()
    );
    python
}

/// One of the scripts in `tests/peers`.
pub fn script(name: &str) -> PathBuf {
    root().join("tests/peers").join(name)
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
