//! What the fuzz targets share: each knocks at one of kvtap's [`doors`].

use std::fs;
use std::path::Path;

pub mod doors;

/// Puts what real peers send where a fuzzer of this door starts from: `corpus/<door>`. It is made from the fixtures at
/// each start, so that no bytes are kept twice.
///
/// # Panics
/// Where there is no such door, or the folder cannot be written.
pub fn sow(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    fs::create_dir_all(&folder).expect("a folder for the corpus");
    for (i, seed) in (doors::door(name).seeds)().iter().enumerate() {
        fs::write(folder.join(format!("seed-{i:04}")), seed).expect("a file of the corpus");
    }
}
