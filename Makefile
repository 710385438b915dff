# `make demo` shows what kvtap does; `make test` installs what the tests need and runs them all.

CARGO ?= cargo
KVTAP_PYTHON ?= $(CURDIR)/.venv/bin/python
export KVTAP_PYTHON

.PHONY: demo test venv fmt lint doc clean-venv bench

demo:
	$(CARGO) run --locked -- demo

test: venv
	$(CARGO) test --locked

# The Python that tests talk to: pyzmq and grpcio, pinned, in .venv.
venv:
	@tests/peers/setup.sh

fmt:
	$(CARGO) fmt

lint:
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps

clean-venv:
	rm -rf .venv

# kvtap's index beside its peers: about ten minutes on two idle cores.
bench:
	sh benches/peers/bench.sh
