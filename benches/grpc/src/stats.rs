//! Rounds, medians, and the table of them.

use std::time::Duration;

/// One contestant's rounds.
pub struct Row {
    name: String,
    p50: Vec<f64>,
    p99: Vec<f64>,
    rates: Vec<f64>,
}

impl Row {
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), p50: Vec::new(), p99: Vec::new(), rates: Vec::new() }
    }

    /// The latencies of one round.
    pub fn round(&mut self, mut times: Vec<Duration>) {
        self.p50.push(quantile(&mut times, 0.5));
        self.p99.push(quantile(&mut times, 0.99));
    }

    /// The requests a second of one round.
    pub fn rate(&mut self, rate: f64) {
        self.rates.push(rate);
    }
}

/// In microseconds.
pub fn quantile(times: &mut [Duration], q: f64) -> f64 {
    assert!(!times.is_empty(), "nothing was measured");
    let at = ((times.len() - 1) as f64 * q) as usize;
    times.select_nth_unstable(at).1.as_secs_f64() * 1e6
}

pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Prints medians, and each first row's ratio to the others, round by round.
pub fn table(title: &str, rows: &[Row]) {
    println!("\n{title}");
    let ratio = |ours: &[f64], theirs: &[f64]| {
        let rounds: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
        median(&rounds)
    };
    for row in rows {
        let first = &rows[0];
        if row.rates.is_empty() {
            println!(
                "  {:<40} p50 {:>8.1} us ({:.2})  p99 {:>8.1} us ({:.2})",
                row.name,
                median(&row.p50),
                ratio(&first.p50, &row.p50),
                median(&row.p99),
                ratio(&first.p99, &row.p99)
            );
        } else {
            println!(
                "  {:<40} {:>9.0} a second ({:.2})",
                row.name,
                median(&row.rates),
                ratio(&first.rates, &row.rates)
            );
        }
    }
}
