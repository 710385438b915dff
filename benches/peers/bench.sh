#!/bin/sh
# Builds, makes the workloads, checks that answers agree with the exact ones, and measures in interleaved rounds:
# about ten minutes on two idle cores. usage: sh bench.sh [DIR for workloads and results]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:-$here/target/bench}
target=${CARGO_TARGET_DIR:-$here/target}
mkdir -p "$dir"
cargo build --release --manifest-path "$here/Cargo.toml"
bin=$target/release/peer-bench
workloads=mc-w1,mc-w8,mc-w64,mc-w256,agentx,wide,decode
for name in $(echo $workloads,grow,grow-blocks,grow-workers | tr , ' '); do
    [ -f "$dir/$name.kvwl" ] || "$bin" gen "$name" "$dir/$name.kvwl" >/dev/null
done
out=$dir/results.jsonl
rm -f "$out"
# First whether the answers are right: a wrong one ends the run.
python3 "$here/run.py" "$bin" "$dir" "$out" --rounds 1 --modes check --wl $workloads --peers kvtap,kvtap-scores,kvtap-prefix
if grep -q failed "$out" || grep -v '"wrong_scores":0,' "$out" | grep -q wrong_scores; then
    echo "wrong answers:" && cat "$out" && exit 1
fi
python3 "$here/run.py" "$bin" "$dir" "$out" --rounds 1 --modes mem --wl $workloads --peers kvtap,smg2-chain,dyn-radix
python3 "$here/run.py" "$bin" "$dir" "$out" --rounds 3 --modes bench --wl $workloads \
    --peers kvtap,kvtap-scores,kvtap-prefix,smg2-score,dyn-radix
python3 "$here/run.py" "$bin" "$dir" "$out" --rounds 3 --modes mt,mixed --wl $workloads --peers kvtap,kvtap-scores,smg2-chain
python3 "$here/summarize.py" "$out"
echo "### Growth: the blocks times ten, the workers times ten; clearing one worker in a hundred; saturation"
for peer in kvtap-scores smg2-score; do
    for name in grow grow-blocks grow-workers; do "$bin" bench $peer "$dir/$name.kvwl"; done
done
for peer in kvtap smg2-chain; do
    "$bin" clear $peer "$dir/mc-w256.kvwl"
    for name in agentx mc-w8; do "$bin" saturate $peer "$dir/$name.kvwl" 300000; done
done
