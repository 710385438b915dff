#!/usr/bin/env bash
# Fuzzes every door in turn, or the ones named: fuzz/run.sh SECONDS [DOOR..]
#
# Needs a C++ compiler and the stable Rust toolchain, nothing else: coverage comes from LLVM's own pass, and libFuzzer is
# compiled from the crate. `cargo fuzz run DOOR` works in this folder too, where that and a nightly toolchain are at hand.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

seconds=${1:?usage: run.sh SECONDS [DOOR..]}
shift
doors=("$@")
if ((${#doors[@]} == 0)); then
    doors=(wire trtllm dynamo frames zmtp config query pipeline relay snapshot)
fi

# Giving --target keeps build scripts and macros out of it.
host=$(rustc -vV | sed -n 's/^host: //p')
coverage=(
    -Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares
)
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/fuzzing
RUSTFLAGS="${coverage[*]} --cfg fuzzing" cargo build --locked --release --target "$host"
bin=$CARGO_TARGET_DIR/$host/release

for door in "${doors[@]}"; do
    mkdir -p "corpus/$door" "artifacts/$door"
    printf '\n=== %s: %s seconds ===\n' "$door" "$seconds"
    # A finding stops everything: its input is left in artifacts/, and `BIN INPUT` runs it once more.
    "$bin/$door" "corpus/$door" -artifact_prefix="artifacts/$door/" -max_total_time="$seconds" \
        -max_len=8192 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1
done
