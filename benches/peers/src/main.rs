//! peer-bench: see README.md.
mod alloc;
mod peers;
mod phys;
mod verify;

use kvwl::{Exact, Params, Shape, Workload};
use std::time::{Duration, Instant};

#[global_allocator]
static A: alloc::Counting = alloc::Counting;

fn preset(name: &str) -> Params {
    let p = |shape, workers, cap, churn_blocks, queries| Params { shape, workers, cap, churn_blocks, queries, seed: 42, keep_uids: false };
    match name {
        "mc-w1" => p(Shape::Mooncake, 1, 65536, 2_000_000, 3000),
        "mc-w8" => p(Shape::Mooncake, 8, 65536, 3_000_000, 3000),
        "mc-w64" => p(Shape::Mooncake, 64, 16384, 3_000_000, 3000),
        "mc-w256" => p(Shape::Mooncake, 256, 16384, 3_000_000, 3000),
        "agentx" => p(Shape::Agentx, 8, 65536, 2_000_000, 800),
        "wide" => p(Shape::Wide, 256, 4096, 3_000_000, 3000),
        "decode" => p(Shape::Decode, 64, 16384, 2_000_000, 3000),
        // One size, ten times the blocks, ten times the workers: what a match costs then.
        "grow" => p(Shape::Mooncake, 8, 16384, 300_000, 1000),
        "grow-blocks" => p(Shape::Mooncake, 8, 163_840, 3_000_000, 1000),
        "grow-workers" => p(Shape::Mooncake, 80, 16384, 3_000_000, 1000),
        "tiny" => p(Shape::Mooncake, 4, 8192, 60_000, 200),
        "tiny-agentx" => p(Shape::Agentx, 1, 24576, 40_000, 40),
        "tiny-wide" => p(Shape::Wide, 64, 1024, 60_000, 200),
        _ => panic!("unknown preset"),
    }
}

fn pct(v: &mut [u64], q: f64) -> f64 {
    if v.is_empty() {
        return f64::NAN;
    }
    let i = ((v.len() - 1) as f64 * q).round() as usize;
    *v.select_nth_unstable(i).1 as f64 / 1e3
}

fn emit(kv: &[(&str, String)]) {
    let s: Vec<String> = kv
        .iter()
        .map(|(k, v)| if v.parse::<f64>().is_ok() { format!("\"{k}\":{v}") } else { format!("\"{k}\":\"{v}\"") })
        .collect();
    println!("{{{}}}", s.join(","));
}

fn main() {
    let a: Vec<String> = std::env::args().skip(1).collect();
    let a: Vec<&str> = a.iter().map(String::as_str).collect();
    match a.as_slice() {
        ["gen", name, path, rest @ ..] => {
            let mut p = preset(name);
            p.keep_uids = rest.contains(&"--uids");
            let t = Instant::now();
            let wl = kvwl::generate(p);
            wl.save(path).unwrap();
            eprintln!("{name}: generated in {:?}", t.elapsed());
            describe(name, &wl);
        }
        ["info", path] => {
            let wl = Workload::load(path).unwrap();
            describe(path, &wl);
            let e = exact_of(&wl, wl.ops.len());
            let (mut o, mut best, mut any, mut scores, mut len) = (vec![], 0u64, 0, 0, 0);
            for i in 0..wl.queries.len() {
                e.find(wl.query(i), &mut o);
                best += o.iter().map(|x| x.1).max().unwrap_or(0) as u64;
                any += !o.is_empty() as usize;
                scores += o.len();
                len += wl.query(i).len();
            }
            let n = wl.queries.len() as f64;
            println!("queries: mean length {:.0}, mean deepest match {:.0}, with any match {:.3}, mean workers {:.1}", len as f64 / n, best as f64 / n, any as f64 / n, scores as f64 / n);
        }
        ["bench", peer, path] => bench(peer, path),
        ["mt", peer, path] => mt(peer, path),
        ["mixed", peer, path] => mixed(peer, path),
        ["mem", peer, path] => mem(peer, path),
        ["check", peer, path] => check(peer, path),
        ["clear", peer, path] => clear(peer, path),
        ["saturate", peer, path, rate] => saturate(peer, path, rate.parse().unwrap()),
        ["count", peer, path, stage] => count(peer, path, stage.parse().unwrap()),
        ["verify", rest @ ..] => verify::run(rest),
        ["phys"] => phys::run(),
        _ => eprintln!("gen PRESET FILE [--uids] | info FILE | bench|mt|mixed|mem|check|clear PEER FILE | saturate PEER FILE EVENTS_PER_SECOND | count PEER FILE STAGE | verify [PEER..] | phys"),
    }
}

fn describe(name: &str, wl: &Workload) {
    let (fs, fr, fd) = wl.blocks_in(0..wl.n_fill);
    let (cs, cr, cd) = wl.blocks_in(wl.n_fill..wl.ops.len());
    let mut ql: Vec<u64> = wl.queries.iter().map(|q| q.1 as u64 * 1000).collect();
    let churn_ev = wl.ops.len() - wl.n_fill;
    emit(&[
        ("workload", name.into()),
        ("workers", wl.n_workers.to_string()),
        ("fill_events", wl.n_fill.to_string()),
        ("fill_stored", fs.to_string()),
        ("fill_removed", fr.to_string()),
        ("churn_events", churn_ev.to_string()),
        ("churn_stored", cs.to_string()),
        ("churn_removed", cr.to_string()),
        ("fill_decode_share", format!("{:.3}", fd as f64 / wl.n_fill as f64)),
        ("churn_decode_share", format!("{:.3}", cd as f64 / churn_ev as f64)),
        ("queries", wl.queries.len().to_string()),
        ("qlen_p10", pct(&mut ql, 0.1).to_string()),
        ("qlen_p50", pct(&mut ql, 0.5).to_string()),
        ("qlen_p90", pct(&mut ql, 0.9).to_string()),
        ("qlen_max", pct(&mut ql, 1.0).to_string()),
    ]);
}

/// Query rounds until at least `min` passed: latencies in ns.
fn query_rounds(wl: &Workload, f: &dyn Fn(&[u64]) -> usize, min: Duration) -> (Vec<u64>, Duration, u64) {
    let mut lat = vec![];
    let (t0, mut hits) = (Instant::now(), 0u64);
    loop {
        for i in 0..wl.queries.len() {
            let q = wl.query(i);
            let t = Instant::now();
            hits += f(q) as u64;
            lat.push(t.elapsed().as_nanos() as u64);
        }
        if t0.elapsed() >= min {
            return (lat, t0.elapsed(), hits);
        }
    }
}

fn rate(n: u64, d: Duration) -> String {
    format!("{:.4}", n as f64 / d.as_secs_f64() / 1e6)
}

fn bench(peer: &str, path: &str) {
    let wl = Workload::load(path).unwrap();
    let mut p = peers::make(peer, wl.n_workers as usize);
    let (fill, churn) = (0..wl.n_fill, wl.n_fill..wl.ops.len());
    let d = p.phases(&wl, &[fill.clone(), churn.clone()], 1).unwrap();
    p.prepare(&wl);
    // one unmeasured round, then the measured ones
    query_rounds(&wl, &|q| p.find_n(q), Duration::ZERO);
    let (mut lat, took, hits) = query_rounds(&wl, &|q| p.find_n(q), Duration::from_millis(1000));
    let ((fs, fr, _), (cs, cr, _)) = (wl.blocks_in(fill.clone()), wl.blocks_in(churn.clone()));
    let qblocks = wl.qdata.len() as f64 * lat.len() as f64 / wl.queries.len() as f64;
    emit(&[
        ("mode", "bench".into()),
        ("peer", peer.into()),
        ("file", stem(path)),
        ("fill_Mblk_s", rate(fs + fr, d[0])),
        ("fill_Mev_s", rate(fill.len() as u64, d[0])),
        ("churn_Mblk_s", rate(cs + cr, d[1])),
        ("churn_Mev_s", rate(churn.len() as u64, d[1])),
        ("q_per_s", format!("{:.0}", lat.len() as f64 / took.as_secs_f64())),
        ("q_Mblk_s", format!("{:.2}", qblocks / took.as_secs_f64() / 1e6)),
        ("q_workers", format!("{:.2}", hits as f64 / lat.len() as f64)),
        ("p50_us", format!("{:.2}", pct(&mut lat, 0.5))),
        ("p99_us", format!("{:.2}", pct(&mut lat, 0.99))),
        ("p999_us", format!("{:.2}", pct(&mut lat, 0.999))),
    ]);
    std::process::exit(0); // skip the drops
}

fn mt(peer: &str, path: &str) {
    let wl = Workload::load(path).unwrap();
    let mut p = peers::make(peer, wl.n_workers as usize);
    let (fill, churn) = (0..wl.n_fill, wl.n_fill..wl.ops.len());
    let Some(d) = p.phases(&wl, &[fill.clone(), churn.clone()], 2) else { return };
    let ((fs, fr, _), (cs, cr, _)) = (wl.blocks_in(fill.clone()), wl.blocks_in(churn.clone()));
    emit(&[
        ("mode", "mt".into()),
        ("peer", peer.into()),
        ("file", stem(path)),
        ("mt_fill_Mblk_s", rate(fs + fr, d[0])),
        ("mt_churn_Mblk_s", rate(cs + cr, d[1])),
        ("mt_churn_Mev_s", rate(churn.len() as u64, d[1])),
    ]);
    std::process::exit(0);
}

fn mixed(peer: &str, path: &str) {
    let wl = Workload::load(path).unwrap();
    let mut p = peers::make(peer, wl.n_workers as usize);
    let churn = wl.n_fill..wl.ops.len();
    let (mut lat, mut i) = (Vec::with_capacity(1 << 20), 0);
    let took = p.mixed(&wl, 0..wl.n_fill, churn.clone(), &mut |f| {
        // a batch between two looks at the done flag
        for _ in 0..4 {
            let q = wl.query(i % wl.queries.len());
            i += 1;
            let t = Instant::now();
            f(q);
            lat.push(t.elapsed().as_nanos() as u64);
        }
    });
    let Some(took) = took else { return };
    let (cs, cr, _) = wl.blocks_in(churn.clone());
    emit(&[
        ("mode", "mixed".into()),
        ("peer", peer.into()),
        ("file", stem(path)),
        ("mix_Mblk_s", rate(cs + cr, took)),
        ("mix_Mev_s", rate(churn.len() as u64, took)),
        ("mix_q_per_s", format!("{:.0}", lat.len() as f64 / took.as_secs_f64())),
        ("mix_p50_us", format!("{:.2}", pct(&mut lat, 0.5))),
        ("mix_p99_us", format!("{:.2}", pct(&mut lat, 0.99))),
        ("mix_p999_us", format!("{:.2}", pct(&mut lat, 0.999))),
    ]);
    std::process::exit(0);
}

/// What it costs to clear one worker in a hundred, as a share of what all of them cost.
fn clear(peer: &str, path: &str) {
    let wl = Workload::load(path).unwrap();
    let mut p = peers::make(peer, wl.n_workers as usize);
    p.apply(&wl, 0..wl.ops.len());
    let some = (wl.n_workers as usize).div_ceil(100);
    let Some(first) = p.clear(0..some) else { return };
    let Some(rest) = p.clear(some..wl.n_workers as usize) else { return };
    let all = first + rest;
    emit(&[
        ("mode", "clear".into()),
        ("peer", peer.into()),
        ("file", stem(path)),
        ("percent_of_workers", format!("{:.2}", some as f64 * 100.0 / wl.n_workers as f64)),
        ("percent_of_time", format!("{:.2}", first.as_secs_f64() * 100.0 / all.as_secs_f64())),
        ("all_ms", format!("{:.2}", all.as_secs_f64() * 1e3)),
    ]);
    std::process::exit(0);
}

/// The churn as a queue: events arrive at a steady rate, and are applied as fast as they can be. The clock is the
/// time that the index was busy, so building events costs nobody anything. The backlog is counted when the last
/// event has arrived.
fn saturate(peer: &str, path: &str, rate: f64) {
    let wl = Workload::load(path).unwrap();
    let mut p = peers::make(peer, wl.n_workers as usize);
    p.apply(&wl, 0..wl.n_fill);
    let (end, events) = (wl.ops.len(), wl.ops.len() - wl.n_fill);
    let (mut next, mut clock, mut busy) = (wl.n_fill, 0.0, 0.0);
    let (mut most, mut last) = (0, None);
    while next < end {
        let arrived = (wl.n_fill + (clock * rate) as usize + 1).min(end);
        if arrived == next {
            // Nothing to do until the next one comes.
            clock = ((next - wl.n_fill) as f64 + 0.5) / rate;
            continue;
        }
        most = most.max(arrived - next);
        if arrived == end && last.is_none() {
            last = Some(end - next);
        }
        let to = arrived.min(next + 64);
        let took = p.apply(&wl, next..to).as_secs_f64();
        (clock, busy, next) = (clock + took, busy + took, to);
    }
    emit(&[
        ("mode", "saturate".into()),
        ("peer", peer.into()),
        ("file", stem(path)),
        ("offered_kev_s", format!("{:.1}", rate / 1e3)),
        ("flat_out_kev_s", format!("{:.1}", events as f64 / busy / 1e3)),
        ("ns_per_event", format!("{:.0}", busy * 1e9 / events as f64)),
        ("backlog_percent", format!("{:.2}", last.unwrap_or(0) as f64 * 100.0 / events as f64)),
        ("most_waiting", most.to_string()),
    ]);
    std::process::exit(0);
}

fn exact_of(wl: &Workload, n: usize) -> Exact {
    let mut e = Exact::default();
    for o in &wl.ops[..n] {
        e.apply(wl, o);
    }
    e
}

fn mem(peer: &str, path: &str) {
    let wl = Workload::load(path).unwrap();
    let (e1, e2) = (exact_of(&wl, wl.n_fill).entries(), exact_of(&wl, wl.ops.len()).entries());
    alloc::COUNT.store(true, std::sync::atomic::Ordering::SeqCst);
    let b0 = alloc::live();
    let mut p = peers::make(peer, wl.n_workers as usize);
    let mut m = vec![];
    for r in [0..wl.n_fill, wl.n_fill..wl.ops.len()] {
        for s in (r.start..r.end).step_by(4096) {
            p.apply(&wl, s..(s + 4096).min(r.end));
        }
        let b = alloc::live();
        m.push((b.0 - b0.0, b.1 - b0.1));
    }
    let peak = alloc::live().2 - b0.0;
    if std::env::var_os("SHAPE").is_some() {
        eprintln!("{:?}", p.shape());
    }
    let sweep = p.maintain();
    let after = alloc::live().0 - b0.0;
    let removing = p.remove_all();
    let left = alloc::live().0 - b0.0;
    let per = |b: isize, n: usize| format!("{:.1}", b as f64 / n as f64);
    emit(&[
        ("mode", "mem".into()),
        ("peer", peer.into()),
        ("file", stem(path)),
        ("fill_entries", e1.0.to_string()),
        ("fill_distinct", e1.1.to_string()),
        ("churn_entries", e2.0.to_string()),
        ("churn_distinct", e2.1.to_string()),
        ("fill_B_per_entry", per(m[0].0, e1.0)),
        ("churn_B_per_entry", per(m[1].0, e2.0)),
        ("churn_usable_B_per_entry", per(m[1].1, e2.0)),
        ("peak_B_per_entry", per(peak, e2.0)),
        ("swept_B_per_entry", per(after, e2.0)),
        ("sweep_ms", sweep.map_or("none".into(), |d| format!("{:.1}", d.as_secs_f64() * 1e3))),
        ("remove_all_ms", removing.map_or("none".into(), |d| format!("{:.1}", d.as_secs_f64() * 1e3))),
        ("left_percent_of_peak", removing.map_or("none".into(), |_| format!("{:.2}", left as f64 * 100.0 / peak as f64))),
        ("churn_MiB", format!("{:.1}", m[1].1 as f64 / 1048576.0)),
    ]);
    std::process::exit(0);
}

/// Every query of the workload against the exact answer, after the whole stream.
fn check(peer: &str, path: &str) {
    let wl = Workload::load(path).unwrap();
    let e = exact_of(&wl, wl.ops.len());
    let mut p = peers::make(peer, wl.n_workers as usize);
    p.phases(&wl, &[0..wl.ops.len()], 1).unwrap();
    let (mut a, mut b) = (vec![], vec![]);
    let (mut bad_q, mut bad_w, mut n_w, mut over, mut under, mut err) = (0, 0, 0, 0u64, 0u64, 0u64);
    for i in 0..wl.queries.len() {
        e.find(wl.query(i), &mut a);
        p.find(wl.query(i), &mut b);
        let x: std::collections::BTreeMap<_, _> = a.iter().copied().collect();
        let y: std::collections::BTreeMap<_, _> = b.iter().copied().collect();
        n_w += x.len();
        let mut bad = false;
        for w in x.keys().chain(y.keys()).collect::<std::collections::BTreeSet<_>>() {
            let (s, t) = (x.get(w).copied().unwrap_or(0), y.get(w).copied().unwrap_or(0));
            if s != t {
                bad = true;
                bad_w += 1;
                err += s.abs_diff(t) as u64;
                if t > s { over += 1 } else { under += 1 }
            }
        }
        bad_q += bad as u32;
    }
    emit(&[
        ("mode", "check".into()),
        ("peer", peer.into()),
        ("file", stem(path)),
        ("queries", wl.queries.len().to_string()),
        ("wrong_queries", bad_q.to_string()),
        ("scores", n_w.to_string()),
        ("wrong_scores", bad_w.to_string()),
        ("too_high", over.to_string()),
        ("too_low", under.to_string()),
        ("mean_abs_err", format!("{:.1}", err as f64 / (bad_w.max(1)) as f64)),
    ]);
    std::process::exit(0);
}

/// For instruction counting under valgrind: 9 only loads, 8 applies the fill phase only, 0 builds the events only, 1 applies all,
/// 2 applies and queries once, 3 queries twice.
fn count(peer: &str, path: &str, stage: u32) {
    let wl = Workload::load(path).unwrap();
    let mut p = peers::make(peer, wl.n_workers as usize);
    if stage == 9 {
        std::process::exit(0);
    }
    if stage == 8 {
        p.phases(&wl, &[0..wl.n_fill], 1).unwrap();
        std::process::exit(0);
    }
    if stage == 0 {
        for (i, o) in wl.ops.iter().enumerate() {
            std::hint::black_box(peers::event(&wl, o, i as u64));
        }
    } else {
        p.phases(&wl, &[0..wl.ops.len()], 1).unwrap();
    }
    for _ in 1..stage {
        for i in 0..wl.queries.len() {
            std::hint::black_box(p.find_n(wl.query(i)));
        }
    }
    std::process::exit(0);
}

fn stem(p: &str) -> String {
    std::path::Path::new(p).file_stem().unwrap().to_string_lossy().into()
}
