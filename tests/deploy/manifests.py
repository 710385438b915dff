"""The manifests as the API server would be sent them, and ways to look at them."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
KUSTOMIZE = ROOT / "deploy" / "kustomize"
FOLDERS = sorted(path.parent.name for path in KUSTOMIZE.glob("examples/*/kustomization.yaml"))
# Those that have one kind of kvtap; relay.py looks at the one that has two.
EXAMPLES = [name for name in FOLDERS if not name.startswith("relay")]
SIDECARS = [name for name in EXAMPLES if not name.startswith("fleet")]
# Those are switched off in the examples, being somebody's choice or wanting CRDs; here all is switched on.
OPTIONAL = [
    "components/sidecar-network-policy",
    "components/pod-monitor",
    "components/prometheus-rule",
    "components/grafana-dashboard",
    "components/group-network-policy",
]
# Kinds whose schemas are not the API server's.
CUSTOM = ["PodMonitor", "PrometheusRule", "LeaderWorkerSet"]
# What each component is applied to when it is built apart from the examples.
WORKLOAD_KINDS = ["Deployment", "StatefulSet"]


def kubectl():
    """The one named in KUBECTL, the one `make venv` fetched, or the machine's."""
    fetched = Path(sys.executable).parent / "kubectl"
    found = os.environ.get("KUBECTL") or (str(fetched) if fetched.exists() else shutil.which("kubectl"))
    if not found:
        sys.exit("no kubectl: `make venv` fetches one")
    return found


@cache
def build(folder):
    """What `kubectl apply -k FOLDER` would send, as a list of objects."""
    command = [kubectl(), "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise AssertionError(f"{folder} does not build: {done.stderr}")
    if done.stderr:
        raise AssertionError(f"{folder} builds with warnings: {done.stderr}")
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def example(name):
    return build(KUSTOMIZE / "examples" / name)


def of_kind(manifests, *kinds):
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def called(manifests, kind, name):
    [found] = [manifest for manifest in of_kind(manifests, kind) if manifest["metadata"]["name"] == name]
    return found


def templates(manifests):
    """The pod templates of all workloads."""
    plain = [manifest["spec"]["template"] for manifest in of_kind(manifests, *WORKLOAD_KINDS)]
    groups = [manifest["spec"]["leaderWorkerTemplate"] for manifest in of_kind(manifests, "LeaderWorkerSet")]
    return plain + [group[part] for group in groups for part in ("leaderTemplate", "workerTemplate")]


def containers(template):
    """All containers of a pod template, init containers included."""
    return template["spec"].get("initContainers", []) + template["spec"]["containers"]


def taps(manifests):
    """Every kvtap container with its pod template."""
    return [
        (template, one) for template in templates(manifests) for one in containers(template) if one["name"] == "kvtap"
    ]


def tap(manifests):
    """The only kvtap container, with its pod template."""
    [found] = taps(manifests)
    return found


def config_text(manifests):
    """The configuration that the kvtap container reads, found as the kubelet finds it: argument, mount, volume, key."""
    template, container = tap(manifests)
    path = Path(container["args"][container["args"].index("--config") + 1])
    [mount] = [mount for mount in container["volumeMounts"] if Path(mount["mountPath"]) == path.parent]
    [volume] = [volume for volume in template["spec"]["volumes"] if volume["name"] == mount["name"]]
    return called(manifests, "ConfigMap", volume["configMap"]["name"])["data"][path.name]


def config(manifests):
    return yaml.safe_load(config_text(manifests))


def port_of(listen):
    return int(listen.rsplit(":", 1)[1])


def environment_of(container):
    """What its variables are, as far as the manifest itself says it."""
    return {one["name"]: one["value"] for one in container.get("env", []) if "value" in one}


def secrets_of(template, container):
    """Where the container finds which Secret."""
    names = {one["name"]: one["secret"]["secretName"] for one in template["spec"]["volumes"] if "secret" in one}
    return {one["mountPath"]: names[one["name"]] for one in container["volumeMounts"] if one["name"] in names}


def engine_pod(manifests):
    """The template whose engine publishes: kvtap's own, or the only other one."""
    others = lambda template: [one for one in containers(template) if one["name"] != "kvtap"]
    beside = [template for template, _ in taps(manifests) if others(template)]
    [found] = beside or [template for template in templates(manifests) if others(template)]
    return found


def engine(manifests):
    """The engine's container."""
    [found] = [one for one in containers(engine_pod(manifests)) if one["name"] != "kvtap"]
    return found


def is_polled(manifests):
    """Whether the engine is asked for its events over HTTP, and publishes nothing."""
    return all(feed["endpoint"].startswith("http://") for feed in config(manifests)["feeds"])


def publisher(manifests):
    """What the engine is told about its events; of one that is polled, the options of its event buffer."""
    arguments = engine(manifests)["args"]
    if is_polled(manifests):
        return yaml.safe_load(file_of(manifests, "--extra_llm_api_options"))["kv_cache_config"]
    return json.loads(arguments[arguments.index("--kv-events-config") + 1])


def file_of(manifests, flag):
    """The file that the engine's argument names, found as the kubelet finds it."""
    [path] = [Path(arg.partition("=")[2]) for arg in engine(manifests)["args"] if arg.startswith(f"{flag}=")]
    [mount] = [mount for mount in engine(manifests)["volumeMounts"] if Path(mount["mountPath"]) == path.parent]
    [volume] = [volume for volume in engine_pod(manifests)["spec"]["volumes"] if volume["name"] == mount["name"]]
    return called(manifests, "ConfigMap", volume["configMap"]["name"])["data"][path.name]


def ranks(config):
    return sum(feed.get("ranks", 1) for feed in config["feeds"])


SUFFIXES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}


def quantity(text):
    """A Kubernetes quantity as a number; the schemas take any text for one."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(m|k|[KMGTPE]i|[MGTPE]|)", str(text))
    if not found:
        raise AssertionError(f"{text!r} is no quantity")
    number, suffix = found.groups()
    return float(number) / 1000 if suffix == "m" else float(number) * SUFFIXES[suffix]


def kvtap_bytes(text):
    """A number of bytes as kvtap's configuration writes it."""
    number, unit = re.fullmatch(r"([0-9]+)(KiB|MiB|GiB|)", str(text)).groups()
    return int(number) * {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]
