//! The reference of the configuration, docs/config.md, is what the program reads.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::path::Path;

use kvtap::config::{Config, Env, keys};

fn page(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// The rows of the page's tables of settings: `| key | meaning | allowed | default | variable |`.
fn documented() -> BTreeMap<String, Vec<String>> {
    let page = page("docs/config.md");
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.map(|row| row.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>());
    cells.filter(|cells| cells.len() == 7).map(|cells| (cells[1].trim_matches('`').to_owned(), cells)).collect()
}

#[test]
fn the_reference_lists_every_setting_as_it_is_read() {
    let documented = documented();
    let mut known = Vec::new();
    for key in keys() {
        let code = |text: &str| {
            if ["required", "none"].contains(&text) { text.to_owned() } else { format!("`{}`", text.trim_matches('`')) }
        };
        let env = key.env.map_or("none".to_owned(), |env| format!("`{env}`"));
        let row = documented.get(&key.path).unwrap_or_else(|| panic!("docs/config.md does not list `{}`", key.path));
        assert!(row[2].len() > 10, "docs/config.md does not say what `{}` means", key.path);
        let (allowed, default) = (key.allowed, code(&key.default));
        assert_eq!((&row[3], &row[4], &row[5]), (&allowed, &default, &env), "docs/config.md on `{}`", key.path);
        known.push(key.path);
    }
    let stale: Vec<_> = documented.keys().filter(|path| !known.contains(path)).collect();
    assert_eq!(stale, Vec::<&String>::new(), "docs/config.md lists what is no setting");
}

#[test]
fn every_configuration_shown_to_readers_is_accepted() {
    let mut seen = 0;
    for name in ["docs/config.md", "README.md"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let text = std::fs::read_to_string(&path).unwrap();
        // Blocks of YAML that configure kvtap; manifests for other programs have no `feeds:` of their own.
        let blocks = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
        for block in blocks.filter(|block| block.lines().any(|line| line.starts_with("feeds:"))) {
            let env: Env = [("POD_NAME", "pod-a"), ("POD_IP", "10.0.0.7")].into_iter().collect();
            if let Err(faults) = Config::parse(block, name, &env) {
                panic!("{faults}\nin:\n{block}");
            }
            seen += 1;
        }
    }
    assert!(seen >= 3, "only {seen} configurations found");
}
