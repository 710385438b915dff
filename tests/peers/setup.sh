#!/usr/bin/env bash
# Makes .venv with what the requirements of tests/peers and tests/deploy pin, and finds the programs that the latter runs.
# Does nothing where that is done already.
# PYTHON names the interpreter to make it with (default: python3).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

python=${PYTHON:-python3}
tests/deploy/tools.sh

pins=(tests/peers/requirements.txt tests/deploy/requirements.txt)
done_with=.venv/requirements.txt

if cat "${pins[@]}" | cmp -s - "$done_with" &&
    .venv/bin/python -c 'import grpc, grpc_tools, kubernetes_validate, pyte, smg_grpc_proto, trustme, zmq' 2>/dev/null &&
    .venv/bin/nats-server --version >/dev/null 2>&1; then
    exec tests/deploy/kubernetes.sh .venv/bin/python
fi

fail() {
    printf 'setup: %s\n' "$1" >&2
    exit 1
}

# Debian ships Python without the two modules that a virtual environment is made with.
can_make_one() { "$python" -c 'import venv, ensurepip' 2>/dev/null; }
if [ -z "${PYTHON:-}" ] && ! can_make_one && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "setup: installing python3-venv" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3 python3-venv >/dev/null
    can_make_one || python=/usr/bin/python3
fi
command -v "$python" >/dev/null || fail "no $python: install Python 3.11 or newer, or name one with PYTHON=..."
can_make_one || fail "$python cannot make a virtual environment: install python3-venv (Debian, Ubuntu: apt-get install python3-venv)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$python is older than 3.11: name a newer one with PYTHON=..."

echo "setup: making .venv for the Python side of the tests" >&2
"$python" -m venv --clear .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check "${pins[@]/#/--requirement=}"
tests/deploy/kubernetes.sh .venv/bin/python
cat "${pins[@]}" > "$done_with"
