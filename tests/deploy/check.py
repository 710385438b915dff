"""Checks the manifests of deploy/ offline: `check.py KVTAP CARGO`, the paths of both programs. tests/deploy.rs runs it.

Every kustomization is built as a user's kubectl would. What comes out is held against the API server's schemas of the
oldest and the newest supported version, the restricted Pod Security Standard, and the binary itself: its configuration,
the ports and paths it serves, the memory it may need. Last, each example is played with processes for its pods.
"""

import re
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import kubernetes_validate
    import yaml
except ImportError as missing:
    sys.exit(f"{missing}: `make venv` installs what tests/deploy/requirements.txt pins")

import play
from discovery import Discovery
from image import Image
from manifests import (
    CUSTOM,
    EXAMPLES,
    FOLDERS,
    KUSTOMIZE,
    OPTIONAL,
    ROOT,
    SIDECARS,
    build,
    called,
    config,
    containers,
    engine,
    environment_of,
    example,
    is_polled,
    kvtap_bytes,
    of_kind,
    port_of,
    publisher,
    quantity,
    ranks,
    tap,
    taps,
    templates,
)
from relay import Relay
from running import Running, TenMinutes, Tls

OLDEST = "1.29"
GRPC, ADMIN = 9400, 9401


def everything():
    """Every object of every example, and of the optional components, with where it came from."""
    for name in FOLDERS:
        for manifest in example(name):
            yield name, manifest
    for folder in OPTIONAL:
        for file in sorted((KUSTOMIZE / folder).glob("*.yaml")):
            if file.name != "kustomization.yaml":
                for manifest in yaml.safe_load_all(file.read_text()):
                    yield folder, manifest


class Manifests(unittest.TestCase):
    def test_there_is_a_complete_example_of_each_shape_and_engine(self):
        sidecars = ["sglang", "trtllm", "vllm", "vllm-lws", "vllm-mtls", "vllm-multi-rank", "vllm-plain"]
        self.assertEqual(FOLDERS, ["fleet-vllm", "relay-vllm", *sidecars])
        for name in EXAMPLES:
            with self.subTest(name):
                tap(example(name))
                engine(example(name))

    def test_each_object_is_valid_in_the_oldest_and_the_newest_version(self):
        newest = kubernetes_validate.latest_version()
        seen = 0
        for origin, manifest in everything():
            if manifest["kind"] in CUSTOM:
                continue  # Tests of their own look at these, observe.py at the rules.
            for version in (OLDEST, newest):
                with self.subTest(origin, kind=manifest["kind"], version=version):
                    used = kubernetes_validate.validate(manifest, version, strict=True)
                    self.assertTrue(version.startswith(used), f"checked against {used}, not {version}")
                    seen += 1
        self.assertGreater(seen, 40)

    def test_a_leader_worker_set_has_the_fields_it_may_have_and_valid_pods(self):
        [group] = of_kind(example("vllm-lws"), "LeaderWorkerSet")
        self.assertEqual(group["apiVersion"], "leaderworkerset.x-k8s.io/v1")
        self.assertLessEqual(group["spec"].keys(), {"replicas", "leaderWorkerTemplate", "rolloutStrategy", "startupPolicy", "networkConfig"})
        template = group["spec"]["leaderWorkerTemplate"]
        self.assertLessEqual(template.keys(), {"leaderTemplate", "workerTemplate", "size", "restartPolicy", "subGroupPolicy"})
        self.assertIn(template["restartPolicy"], ("RecreateGroupOnPodRestart", "None"))
        for part in ("leaderTemplate", "workerTemplate"):
            pods = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": part}, "template": template[part]}
            for version in (OLDEST, kubernetes_validate.latest_version()):
                with self.subTest(part, version=version):
                    kubernetes_validate.validate(pods, version, strict=True)
        with self.assertRaises(kubernetes_validate.ValidationError):
            wrong = {**template["workerTemplate"], "spec": {**template["workerTemplate"]["spec"], "container": []}}
            kubernetes_validate.validate({**pods, "template": wrong}, OLDEST, strict=True)

    def test_both_nodes_of_a_group_are_told_the_same(self):
        [group] = of_kind(example("vllm-lws"), "LeaderWorkerSet")
        leader, worker = templates([group])
        told = [set(pod["spec"]["containers"][0]["args"]) for pod in (leader, worker)]
        self.assertEqual(told[1] - told[0], {"--headless"})
        self.assertEqual(group["spec"]["leaderWorkerTemplate"]["size"], 2)
        [size] = [int(arg.partition("=")[2]) for arg in told[0] if arg.startswith("--tensor-parallel-size=")]
        gpus = [int(pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]) for pod in (leader, worker)]
        self.assertEqual(size, sum(gpus))
        # kvtap is where the events are.
        self.assertEqual([name for name in ("kvtap",) if name in worker["metadata"]["labels"]], [])
        self.assertEqual(leader["metadata"]["labels"]["kvtap"], "sidecar")

    def test_the_checks_refuse_what_the_api_server_would_refuse(self):
        manifest = yaml.safe_load((KUSTOMIZE / "fleet" / "deployment.yaml").read_text())
        manifest["spec"]["template"]["spec"]["containers"][0]["imagePulPolicy"] = "Always"
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(manifest, OLDEST, strict=True)
        for text in ("12Mib", "1,5Gi", "Mi", "100 m", "-1"):
            with self.assertRaises(AssertionError, msg=text):
                quantity(text)

    def test_the_optional_components_go_with_the_examples(self):
        # As a user would switch them on: the commented lines without their comment sign.
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "kustomize"
            shutil.copytree(KUSTOMIZE, copy)
            for name in FOLDERS:
                with self.subTest(name):
                    file = copy / "examples" / name / "kustomization.yaml"
                    lines = file.read_text().splitlines()
                    for i, line in enumerate(lines):
                        if line.strip() == "# components:" or line.strip("# ").startswith("- ../../components/"):
                            lines[i] = line.replace("# ", "", 1)
                    file.write_text("\n".join(lines) + "\n")
                    kinds = {manifest["kind"] for manifest in build(file.parent)}
                    self.assertLessEqual({"PodMonitor", "PrometheusRule", "NetworkPolicy"}, kinds)
                    dashboard = called(build(file.parent), "ConfigMap", "kvtap-dashboard")
                    self.assertIn("kvtap.json", dashboard["data"])

    def test_quantities_are_quantities(self):
        seen = 0
        for name in FOLDERS:
            for template in templates(example(name)):
                for container in containers(template):
                    resources = container["resources"]
                    for name, text in resources["requests"].items():
                        limit = resources["limits"].get(name)
                        if limit is not None:
                            self.assertLessEqual(quantity(text), quantity(limit), name)
                    for text in (*resources["requests"].values(), *resources["limits"].values()):
                        quantity(text)
                        seen += 1
                for volume in template["spec"]["volumes"]:
                    quantity(volume.get("emptyDir", {}).get("sizeLimit", "1"))
        self.assertGreater(seen, 20)

    def test_every_image_names_a_version(self):
        cargo = (ROOT / "Cargo.toml").read_text()
        version = cargo.split('\nversion = "', 1)[1].split('"', 1)[0]
        written = [re.findall(r"image: (kvtap\S*)", file.read_text()) for file in KUSTOMIZE.rglob("*.yaml")]
        self.assertEqual(sum(written, []), 4 * [f"kvtap:{version}"])
        for name in FOLDERS:
            self.assertEqual({one["image"] for _, one in taps(example(name))}, {f"kvtap:{version}"})
            for template in templates(example(name)):
                for container in containers(template):
                    tag = container["image"].rsplit("/", 1)[-1].partition(":")[2]
                    self.assertNotIn(tag, ("", "latest", "main", "nightly"), container["image"])


class Security(unittest.TestCase):
    def test_kvtap_meets_the_restricted_pod_security_standard(self):
        for name, (template, container) in ((name, one) for name in FOLDERS for one in taps(example(name))):
            with self.subTest(name):
                self.restricted(container)
                self.assertTrue(container["securityContext"]["readOnlyRootFilesystem"])
                self.assertEqual(container["securityContext"]["runAsUser"], 65532)
                # What the standard wants of the pod as a whole.
                for key in ("hostNetwork", "hostPID", "hostIPC"):
                    self.assertNotIn(key, template["spec"])
                for volume in template["spec"]["volumes"]:
                    [kind] = volume.keys() - {"name"}
                    self.assertIn(
                        kind, ("configMap", "emptyDir", "projected", "secret", "downwardAPI", "persistentVolumeClaim")
                    )

    def test_the_fleet_s_pod_is_restricted_as_a_whole(self):
        template, _ = tap(example("fleet-vllm"))
        context = template["spec"]["securityContext"]
        self.assertTrue(context["runAsNonRoot"])
        self.assertEqual(context["seccompProfile"]["type"], "RuntimeDefault")
        for container in containers(template):
            self.restricted(container)

    def restricted(self, container):
        context = container["securityContext"]
        self.assertIs(context["allowPrivilegeEscalation"], False)
        self.assertEqual(context["capabilities"], {"drop": ["ALL"]})
        self.assertIs(context["runAsNonRoot"], True)
        self.assertGreater(context["runAsUser"], 0)
        self.assertIn(context["seccompProfile"]["type"], ("RuntimeDefault", "Localhost"))
        self.assertNotIn("privileged", context)
        self.assertNotIn("procMount", context)
        for port in container["ports"]:
            self.assertNotIn("hostPort", port)

    def test_no_pod_has_a_token_for_the_api_server(self):
        for name in FOLDERS:
            manifests = example(name)
            for template in templates(manifests):
                with self.subTest(name):
                    self.assertIs(template["spec"]["automountServiceAccountToken"], False)
                    account = called(manifests, "ServiceAccount", template["spec"]["serviceAccountName"])
                    self.assertIs(account["automountServiceAccountToken"], False)
            self.assertEqual(of_kind(manifests, "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"), [])


class Shapes(unittest.TestCase):
    def test_a_native_sidecar_comes_first_and_stays(self):
        for name in SIDECARS:
            with self.subTest(name):
                template, container = tap(example(name))
                native = name != "vllm-plain"
                self.assertEqual(container.get("restartPolicy"), "Always" if native else None)
                place = template["spec"]["initContainers"][0] if native else template["spec"]["containers"][-1]
                self.assertIs(place, container)

    def test_a_leader_s_sidecar_is_the_native_one(self):
        self.assertEqual(tap(example("vllm-lws"))[1], tap(example("vllm"))[1])

    def test_the_sidecars_differ_in_nothing_but_their_place(self):
        native, plain = (dict(tap(example(name))[1]) for name in ("vllm", "vllm-plain"))
        del native["restartPolicy"]
        self.assertEqual(native, plain)

    def test_a_pod_s_name_is_its_worker_s(self):
        for name in SIDECARS:
            with self.subTest(name):
                manifests = example(name)
                fields = {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in tap(manifests)[1]["env"] if "valueFrom" in one}
                self.assertEqual(fields, {"POD_NAME": "metadata.name", "POD_IP": "status.podIP"})
                self.assertEqual([feed["worker"] for feed in config(manifests)["feeds"]], ["${POD_NAME}"])

    def test_selectors_find_the_pods_they_mean(self):
        for name in FOLDERS:
            manifests = example(name)
            labels = [template["metadata"]["labels"] for template in templates(manifests)]
            wanted = [
                workload["spec"]["selector"]["matchLabels"]
                for workload in of_kind(manifests, "Deployment", "StatefulSet")
            ]
            wanted += [service["spec"]["selector"] for service in of_kind(manifests, "Service")]
            wanted += [policy["spec"]["podSelector"]["matchLabels"] for policy in of_kind(manifests, "NetworkPolicy")]
            wanted += [one["spec"]["selector"]["matchLabels"] for one in of_kind(manifests, "PodDisruptionBudget")]
            for selector in wanted:
                with self.subTest(name, selector=selector):
                    self.assertEqual(sum(selector.items() <= one.items() for one in labels), 1)

    def test_the_fleet_survives_a_node_and_an_upgrade(self):
        manifests = example("fleet-vllm")
        fleet = called(manifests, "Deployment", "kvtap-fleet")["spec"]
        self.assertGreaterEqual(fleet["replicas"], 2)
        self.assertEqual(fleet["strategy"]["rollingUpdate"]["maxUnavailable"], 0)
        spread = {one["topologyKey"] for one in fleet["template"]["spec"]["topologySpreadConstraints"]}
        self.assertEqual(spread, {"kubernetes.io/hostname", "topology.kubernetes.io/zone"})
        self.assertEqual(called(manifests, "PodDisruptionBudget", "kvtap-fleet")["spec"]["maxUnavailable"], 1)


class Ports(unittest.TestCase):
    def test_the_configuration_and_the_container_name_the_same_ports(self):
        for name in EXAMPLES:
            with self.subTest(name):
                manifests = example(name)
                container, settings = tap(manifests)[1], config(manifests)
                declared = {port["name"]: port["containerPort"] for port in container["ports"]}
                listened = {
                    "kvtap-grpc": port_of(settings["grpc"]["listen"][0]),
                    "kvtap-admin": port_of(settings["admin"]["listen"]),
                }
                self.assertEqual(declared, {"kvtap-grpc": GRPC, "kvtap-admin": ADMIN})
                self.assertEqual(listened, declared)
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    self.assertEqual(container[probe]["httpGet"]["port"], ADMIN)

    def test_services_and_policies_use_numbers(self):
        for origin, manifest in everything():
            with self.subTest(origin, name=manifest["metadata"]["name"]):
                if manifest["kind"] == "Service":
                    for port in manifest["spec"]["ports"]:
                        self.assertEqual(port["targetPort"], port["port"])
                        self.assertIsInstance(port["targetPort"], int)
                if manifest["kind"] == "NetworkPolicy":
                    rules = manifest["spec"].get("ingress", []) + manifest["spec"].get("egress", [])
                    for port in (port for rule in rules for port in rule.get("ports", [])):
                        self.assertIsInstance(port["port"], int)

    def test_routers_find_every_kvtap_behind_a_headless_service(self):
        for name in EXAMPLES:
            with self.subTest(name):
                manifests = example(name)
                labels = tap(manifests)[0]["metadata"]["labels"]
                found = [
                    one["spec"]
                    for one in of_kind(manifests, "Service")
                    if one["spec"]["selector"].items() <= labels.items()
                ]
                found = [spec for spec in found if GRPC in [port["port"] for port in spec["ports"]]]
                self.assertEqual([spec["clusterIP"] for spec in found], ["None"])

    def test_policies_let_in_what_is_served_and_let_out_what_is_followed(self):
        def pairs(rules):
            return sorted(port["port"] for rule in rules for port in rule["ports"])

        fleet = example("fleet-vllm")
        feeds = config(fleet)["feeds"]
        followed = {port_of(feed[key]) for feed in feeds for key in ("endpoint", "replay")}
        policy = called(fleet, "NetworkPolicy", "kvtap-fleet")["spec"]
        self.assertEqual(pairs(policy["ingress"]), [GRPC, ADMIN])
        self.assertEqual(pairs(policy["egress"]), [53, 53, *sorted(followed)])
        engines = called(fleet, "NetworkPolicy", "kvtap-engine")["spec"]
        self.assertEqual(pairs(engines["ingress"]), [*sorted(followed), 8000])
        [sidecar] = [one for origin, one in everything() if origin == OPTIONAL[0]]
        self.assertEqual(pairs(sidecar["spec"]["ingress"]), [8000, GRPC, ADMIN])

    def test_the_pod_monitor_finds_both_shapes_and_their_port(self):
        [monitor] = [one for origin, one in everything() if origin == OPTIONAL[1]]
        self.assertEqual((monitor["apiVersion"], monitor["kind"]), ("monitoring.coreos.com/v1", "PodMonitor"))
        [scrape] = monitor["spec"]["podMetricsEndpoints"]
        [rule] = monitor["spec"]["selector"]["matchExpressions"]
        for name in EXAMPLES:
            template, container = tap(example(name))
            self.assertIn(template["metadata"]["labels"][rule["key"]], rule["values"])
            self.assertIn(scrape["port"], [port["name"] for port in container["ports"]])

    def test_an_engine_that_is_polled_keeps_events_where_kvtap_asks_for_them(self):
        manifests = example("trtllm")
        [feed] = config(manifests)["feeds"]
        arguments = engine(manifests)["args"]
        self.assertEqual(feed["endpoint"], "http://127.0.0.1:8000/kv_cache_events")
        self.assertIn("--port=8000", arguments)
        self.assertEqual((feed["model"], feed["engine"]), (arguments[0], "trtllm"))
        self.assertGreater(publisher(manifests)["event_buffer_max_size"], 0)
        self.assertIs(publisher(manifests)["enable_block_reuse"], True)

    def test_engine_and_kvtap_mean_the_same_sockets(self):
        for name in EXAMPLES:
            manifests = example(name)
            if is_polled(manifests):
                continue
            told = publisher(manifests)
            # vLLM binds where its endpoint has a `*`, and connects otherwise; then it is kvtap that binds.
            engine_binds = "*" in told["endpoint"]
            for feed in config(manifests)["feeds"]:
                with self.subTest(name, worker=feed["worker"]):
                    self.assertEqual(port_of(feed["endpoint"]), port_of(told["endpoint"]))
                    self.assertEqual(port_of(feed["replay"]), port_of(told["replay_endpoint"]))
                    self.assertEqual(feed.get("bind", False), not engine_binds)
                    if name in SIDECARS:
                        hosts = {feed["endpoint"], feed["replay"], told["endpoint"], told["replay_endpoint"]}
                        self.assertTrue(all(host.startswith("tcp://127.0.0.1:") for host in hosts), hosts)
                    self.assertEqual(feed["address"].rsplit(":", 1)[1], "8000")
            parallel = [arg for arg in engine(manifests)["args"] if arg.startswith("--data-parallel-size=")]
            size = int(parallel[0].partition("=")[2]) if parallel else 1
            self.assertEqual({feed.get("ranks", 1) for feed in config(manifests)["feeds"]}, {size})
            model = [
                arg.partition("=")[2]
                for arg in engine(manifests)["args"]
                if arg.startswith(("--model=", "--model-path="))
            ]
            self.assertEqual({feed["model"] for feed in config(manifests)["feeds"]}, set(model))


class Memory(unittest.TestCase):
    """limit = base + index + ranks x (queue + what a rank may hold besides) + one replay, rounded up."""

    def test_each_limit_follows_from_the_configured_caps(self):
        sizing = yaml.safe_load((ROOT / "deploy" / "sizing.yaml").read_text())
        page = (ROOT / "deploy" / "README.md").read_text()
        for name in EXAMPLES:
            with self.subTest(name):
                settings = config(example(name))
                index = -(-settings["limits"]["blocks_in_all"] * sizing["bytes_per_block"] // 2**20)
                queue = kvtap_bytes(settings["defaults"]["queue_bytes"]) // 2**20
                count = ranks(settings)
                need = sizing["base_mib"] + index + count * (queue + sizing["rank_mib"]) + sizing["replay_mib"]
                limit = -(-need // sizing["round_mib"]) * sizing["round_mib"]
                self.assertEqual(
                    tap(example(name))[1]["resources"]["limits"]["memory"], f"{limit}Mi", f"{need} MiB are needed"
                )
                ranks_part = f"{count} × ({queue} + {sizing['rank_mib']})"
                row = f"{sizing['base_mib']} + {index} + {ranks_part} + {sizing['replay_mib']} = {need}"
                self.assertIn(f"| `{name}` | {row} | `{limit}Mi` |", page, "deploy/README.md, Memory")


__all__ = ["Discovery", "Image", "Relay", "Running", "TenMinutes", "Tls"]

if __name__ == "__main__":
    play.KVTAP, Image.CARGO = sys.argv[1:3]
    unittest.main(argv=["check.py", "--verbose", *sys.argv[3:]])
