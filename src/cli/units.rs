//! Sizes and times as people write them, the same as in the configuration.

use std::time::Duration;

/// A number of bytes: `65536`, `64KiB`, `16MiB`, `1GiB`.
///
/// # Errors
/// What was expected.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let factor = match unit {
        "" => Some(1u64),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1 << 30),
        _ => None,
    };
    let bytes = factor.zip(number.parse().ok()).and_then(|(factor, number)| factor.checked_mul(number));
    bytes.ok_or_else(|| "expected a number of bytes, or one with KiB, MiB or GiB".to_owned())
}

/// A time: `500ms`, `2s`, `5m`, `1h`.
///
/// # Errors
/// What was expected.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let millis = match unit {
        "ms" => Some(1u64),
        "s" => Some(1000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let time = millis.zip(number.parse().ok()).and_then(|(millis, number)| millis.checked_mul(number));
    time.map(Duration::from_millis).ok_or_else(|| "expected a number with ms, s, m or h".to_owned())
}

fn split(text: &str) -> (&str, &str) {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_and_a_time_have_their_units() {
        assert_eq!([bytes("7"), bytes("2KiB"), bytes("1GiB")], [Ok(7), Ok(2048), Ok(1 << 30)]);
        assert_eq!([time("500ms"), time("2m")], [Ok(Duration::from_millis(500)), Ok(Duration::from_secs(120))]);
        for text in ["", "KiB", "1kb", "-1", "99999999999GiB"] {
            bytes(text).expect_err(text);
        }
        for text in ["", "10", "s", "1.5s"] {
            time(text).expect_err(text);
        }
    }
}
