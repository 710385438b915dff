"""Renders the chart with Helm itself and holds it against what the kustomizations have to pass: `helm.py KVTAP`."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml

import play
from manifests import (
    EXAMPLES,
    ROOT,
    called,
    config_text,
    containers,
    environment_of,
    example,
    of_kind,
    quantity,
    secrets_of,
    tap,
)
from relay import FLEET

sys.path.insert(0, str(ROOT / "deploy" / "helm"))
import refresh  # noqa: E402

CHART = ROOT / "deploy" / "helm" / "kvtap"
CRDS = ("PodMonitor", "PrometheusRule")
ALL_ON = {
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboard": {"enabled": True},
}


def helm():
    fetched = Path(sys.executable).parent / "helm"
    found = os.environ.get("HELM") or (str(fetched) if fetched.exists() else shutil.which("helm"))
    if not found:
        sys.exit("no helm: `make venv` fetches one")
    return found


def run(*arguments, values=None):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(yaml.safe_dump(values or {}))
        file.flush()
        command = [helm(), *arguments, str(CHART), "--values", file.name]
        return subprocess.run(command, capture_output=True, text=True, timeout=play.PATIENCE)


def render(values=None):
    done = run("template", "kvtap", "--namespace", "default", values=values)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def fleet_values():
    """The fleet of the kustomize example, by its own configuration."""
    return {"config": yaml.safe_load(config_text(example("fleet-vllm"))), **ALL_ON}


def follower_values():
    """The relay's fleet, by the configuration of its kustomize example."""
    return {"config": yaml.safe_load(config_text(FLEET)), "nats": {"secret": "kvtap-nats-follow"}}


MTLS = {"tls": {"secret": "kvtap-tls", "clientCertificates": True}}

SHAPES = {
    "as it comes": {},
    "fleet": fleet_values(),
    "sidecar": {"mode": "sidecar", **ALL_ON},
    "tls": {"tls": {"secret": "kvtap-tls"}},
    "mtls": {**fleet_values(), **MTLS},
    "relay": follower_values(),
    "snapshots": {
        "snapshots": {"size": "1Gi"},
        "config": {"snapshot": {"directory": "/var/lib/kvtap"}},
        "image": {"digest": "sha256:" + 64 * "a"},
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "registry"}],
        "podLabels": {"team": "a"},
        "podAnnotations": {"b": "c"},
        "priorityClassName": "high",
        "affinity": {"nodeAffinity": {}},
    },
}


class Chart(unittest.TestCase):
    def test_helm_s_own_lint_has_nothing_to_say(self):
        for name, values in SHAPES.items():
            with self.subTest(name):
                done = run("lint", "--strict", values=values)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertNotIn("[WARNING]", done.stdout)

    def test_each_object_is_valid_in_the_oldest_and_the_newest_version(self):
        seen = 0
        for name, values in SHAPES.items():
            for manifest in render(values):
                if manifest["kind"] in CRDS:
                    continue  # Schemas of their own; observe.py and check.py look at what is in them.
                for version in ("1.29", kubernetes_validate.latest_version()):
                    with self.subTest(name, kind=manifest["kind"], version=version):
                        kubernetes_validate.validate(manifest, version, strict=True)
                        seen += 1
        self.assertGreater(seen, 30)

    def test_its_copies_are_those_of_the_originals(self):
        for file, text in refresh.wanted().items():
            self.assertEqual(file.read_text(), text, f"{file.name}: `make chart`")

    def test_it_deploys_what_the_kustomization_deploys(self):
        ours, theirs = render(fleet_values()), example("fleet-vllm")
        container, other = tap(ours)[1], tap(theirs)[1]
        for key in ("args", "ports", "startupProbe", "livenessProbe", "readinessProbe", "securityContext", "resources", "image"):
            self.assertEqual(container[key], other[key], key)
        pod, other = (called(one, "Deployment", "kvtap-fleet")["spec"] for one in (ours, theirs))
        for key in ("replicas", "strategy", "minReadySeconds"):
            self.assertEqual(pod[key], other[key], key)
        for key in ("automountServiceAccountToken", "securityContext", "terminationGracePeriodSeconds"):
            self.assertEqual(pod["template"]["spec"][key], other["template"]["spec"][key], key)
        for kind in ("Service", "NetworkPolicy", "PodDisruptionBudget"):
            spec, other = (called(one, kind, "kvtap-fleet")["spec"] for one in (ours, theirs))
            for one in (spec, other):
                for selector in ("selector", "podSelector"):
                    one.pop(selector, None)
            self.assertEqual(spec, other, kind)

    def test_it_mounts_and_sets_what_the_components_do(self):
        for values, other in ((MTLS, example("vllm-mtls")), (follower_values(), FLEET)):
            ours, theirs = tap(render(values)), tap(other)
            self.assertEqual(environment_of(ours[1]), environment_of(theirs[1]))
            self.assertEqual(secrets_of(*ours), secrets_of(*theirs))
        self.assertEqual(tap(render(follower_values()))[1]["resources"], tap(FLEET)[1]["resources"])
        out = called(render(follower_values()), "NetworkPolicy", "kvtap-fleet")["spec"]["egress"][-1]
        self.assertEqual([out], called(FLEET, "NetworkPolicy", "kvtap-relay")["spec"]["egress"])
        for values, protocol in ((SHAPES["tls"], "https"), ({}, "kubernetes.io/h2c")):
            [port] = called(render(values), "Service", "kvtap-fleet")["spec"]["ports"]
            self.assertEqual(port["appProtocol"], protocol)
        self.assertNotIn("KVTAP_GRPC_TLS_CLIENT_CA", environment_of(tap(render(SHAPES["tls"]))[1]))

    def test_selectors_find_the_pods_they_mean(self):
        manifests = render(fleet_values())
        labels = tap(manifests)[0]["metadata"]["labels"]
        for manifest in manifests:
            spec = manifest.get("spec", {})
            selector = spec.get("selector") or spec.get("podSelector") or {}
            selector = selector.get("matchLabels", selector)
            self.assertLessEqual(selector.items(), labels.items(), manifest["kind"])
            for constraint in spec.get("template", {}).get("spec", {}).get("topologySpreadConstraints", []):
                self.assertLessEqual(constraint["labelSelector"]["matchLabels"].items(), labels.items())

    def test_its_configurations_pass_the_binary_s_own_check(self):
        for name, values in SHAPES.items():
            with self.subTest(name):
                manifests = render(values)
                [config] = [one for one in of_kind(manifests, "ConfigMap") if "kvtap.yaml" in one["data"]]
                env = environment_of(tap(manifests)[1]) if of_kind(manifests, "Deployment") else {}
                done = play.check_config(config["data"]["kvtap.yaml"], **env)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_no_token_and_no_privilege(self):
        for name in ("as it comes", "fleet", "snapshots"):
            manifests = render(SHAPES[name])
            template, container = tap(manifests)
            self.assertIs(template["spec"]["automountServiceAccountToken"], False)
            account = called(manifests, "ServiceAccount", template["spec"]["serviceAccountName"])
            self.assertIs(account["automountServiceAccountToken"], False)
            self.assertEqual(container["securityContext"]["capabilities"], {"drop": ["ALL"]})
            self.assertTrue(container["securityContext"]["readOnlyRootFilesystem"])
            self.assertEqual(of_kind(manifests, "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"), [])
            for one in containers(template):
                quantity(one["resources"]["limits"]["memory"])

    def test_values_that_are_wrong_are_refused_before_anything_is_applied(self):
        for values, word in [
            ({"mode": "daemon"}, "mode"),
            ({"replica": 3}, "replica"),
            ({"config": {"feeds": [{"worker": "a", "model": "m", "enpoint": "tcp://a:1"}]}}, "enpoint"),
            ({"config": {"limits": {"blocks_in_all": 0}}}, "blocks_in_all"),
            ({"config": {"log": {"level": "loud"}}}, "level"),
            ({"image": {"digest": "latest"}}, "digest"),
        ]:
            with self.subTest(word):
                done = run("template", "kvtap", values=values)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(word, done.stderr)

    def test_the_notes_hold_the_sidecar_s_container(self):
        done = run("install", "kvtap", "--dry-run=client", "--namespace", "default", values=SHAPES["sidecar"])
        self.assertEqual(done.returncode, 0, done.stderr)
        notes = done.stdout.split("NOTES:\n", 1)[1]
        [container] = yaml.safe_load("- restartPolicy" + notes.split("- restartPolicy", 1)[1].split("\nand these volumes")[0])
        expected = dict(tap(example("vllm"))[1])
        for one in (container, expected):
            del one["resources"]["requests"]
        container.pop("imagePullPolicy")
        self.assertEqual(container, expected)


class Schema(unittest.TestCase):
    """The configuration's schema takes what kvtap takes, and refuses what it refuses."""

    def setUp(self):
        self.schema = json.loads((ROOT / "deploy" / "kvtap.schema.json").read_text())
        jsonschema.Draft202012Validator.check_schema(self.schema)
        self.validator = jsonschema.Draft202012Validator(self.schema)

    def texts(self):
        for name in EXAMPLES:
            yield name, config_text(example(name))
        for page in ("docs/config.md", "README.md"):
            for block in (ROOT / page).read_text().split("```yaml\n")[1:]:
                if "\nfeeds:" in f"\n{block.split('```')[0]}":
                    yield page, block.split("```")[0]

    def test_every_configuration_that_is_shown_is_valid(self):
        seen = 0
        for place, text in self.texts():
            with self.subTest(place):
                errors = [f"{list(one.path)}: {one.message}" for one in self.validator.iter_errors(yaml.safe_load(text))]
                self.assertEqual(errors, [], text)
                seen += 1
        self.assertGreaterEqual(seen, 8)

    def test_what_kvtap_refuses_by_itself_is_not_valid(self):
        feed = {"worker": "a", "model": "m", "endpoint": "tcp://127.0.0.1:5557"}
        for settings in [
            {"grcp": {}},
            {"feeds": [{"worker": "a"}]},
            {"feeds": [{**feed, "ranks": 0}]},
            {"feeds": [{**feed, "model": 1.1}]},
            {"feeds": [{**feed, "bind": "maybe"}]},
            {"feeds": [{**feed, "engine": "lama"}]},
            {"feeds": [{**feed, "replay_timeout": "5 s"}]},
            {"defaults": {"queue_bytes": "64MB"}},
            {"grpc": {"listen": "127.0.0.1:9400"}},
            {"grpc": {"listen": []}},
        ]:
            with self.subTest(settings):
                self.assertFalse(self.validator.is_valid(settings))
                done = play.check_config(json.dumps(settings))
                self.assertEqual(done.returncode, 64, done.stderr)

    def test_what_kvtap_takes_is_valid(self):
        feed = {"worker": "${POD_NAME}", "model": "m", "endpoint": "tcp://127.0.0.1:5557", "replay": None}
        for settings in [
            {},
            {"grpc": None, "feeds": [feed]},
            {"feeds": [{**feed, "ranks": "${RANKS:-2}", "bind": "true", "block_size": "16"}]},
            {"defaults": {"queue_bytes": 67108864, "disconnect_grace": "0s"}},
        ]:
            with self.subTest(settings):
                self.assertTrue(self.validator.is_valid(settings))
                done = play.check_config(json.dumps(settings))
                self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    play.KVTAP = sys.argv[1]
    unittest.main(argv=["helm.py", "--verbose", *sys.argv[2:]])
