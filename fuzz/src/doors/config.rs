//! The configuration.

use kvtap::config::{Config, Env};

/// A file, and after a NUL the variables that override it, one `NAME=VALUE` a line.
pub fn config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (file, variables) = text.split_once('\0').unwrap_or((&text, ""));
    let env: Env = variables.lines().filter_map(|line| line.split_once('=')).collect();
    match Config::parse(file, "fuzz.yaml", &env) {
        Ok((config, warnings)) => {
            assert!(
                warnings.iter().all(|warning| one_line(&warning.to_string())),
                "a warning that is not one plain line"
            );
            for feed in &config.feeds {
                assert!((1..=1024).contains(&feed.ranks), "{} ranks", feed.ranks);
                for rank in feed.rank_numbers() {
                    assert!(feed.link(rank).is_ok(), "a feed that was accepted has no endpoint");
                    assert!(feed.replay(rank).is_ok(), "a feed that was accepted has no replay endpoint");
                }
            }
        }
        Err(faults) => {
            assert!(faults.iter().count() > 0, "refused without a fault");
            assert!(faults.iter().all(|fault| one_line(&fault.to_string())), "a fault that is not one plain line");
        }
    }
}

fn one_line(text: &str) -> bool {
    !text.is_empty() && !text.contains(char::is_control)
}
