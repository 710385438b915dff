"""The examples at work, with processes for their pods."""

import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import kubernetes_validate
import yaml

import play
from manifests import (
    EXAMPLES,
    KUSTOMIZE,
    ROOT,
    SIDECARS,
    build,
    called,
    config,
    config_text,
    environment_of,
    example,
    ranks,
    secrets_of,
    tap,
)


# Every form that events, replies and names come in over ZMQ; TensorRT-LLM's, over HTTP, has its own example.
WIRES = [
    (),
    ("--encoding", "map-0.33", "--hashes", "bytes"),
    ("--encoding", "map-0.24"),
    ("--encoding", "array", "--hashes", "bytes"),
    ("--encoding", "array-0.19"),
]


class TenMinutes(unittest.TestCase):
    """What a new user does in the first ten minutes, on every wire: each step gives what deploy/README.md says."""

    def play(self, pod, *wire):
        prompt = range(1, 65)
        with play.ExitStack() as stack:
            # Applied: Ready while the model still loads, and an answer that says "nothing yet".
            kvtap = stack.enter_context(play.ExitStack())
            kvtap.enter_context(pod.kvtap())
            self.assertEqual(pod.probes(), [200, 200, 200])
            [nothing] = pod.ask(prompt)
            self.assertEqual((nothing["state"], nothing["matched_blocks"]), ("connecting", 0))

            # The engine serves prompts, and is followed.
            engine = stack.enter_context(play.ExitStack())
            engine.enter_context(pod.engines(*wire))
            [first] = play.eventually("the engine is followed", pod.all_live)
            self.assertEqual((first["epoch"], first["missed"], sum(first["dropped"].values())), (1, 0, 0), first)
            self.assertEqual(pod.ask(prompt)[0]["state"], "live")

            # kvtap is killed and comes back: the same blocks, the engine undisturbed.
            kvtap.close()
            kvtap.enter_context(pod.kvtap())

            def as_before():
                now = pod.all_live()
                return now and now[0]["last_seq"] >= first["last_seq"] and now

            [again] = play.eventually("it knows again what it knew", as_before)
            self.assertEqual(again["missed"], 0)
            if again["last_seq"] == first["last_seq"]:
                self.assertEqual(again["blocks"], first["blocks"])

            # The engine is killed: said at once, kvtap stays ready, and the next life is another.
            engine.close()
            play.eventually("the engine is away", lambda: pod.workers()[0]["state"] != "live")
            self.assertEqual(pod.probes(), [200, 200, 200])
            life = pod.workers()[0]["epoch"]
            with pod.engines(*wire, "--seed", "7"):

                def next_life():
                    now = pod.all_live()
                    return now and now[0]["epoch"] > life and now

                [second] = play.eventually("its next life is followed", next_life)
                self.assertEqual(second["missed"], 0)

    def test_the_first_ten_minutes_go_well_on_every_wire(self):
        for wire in WIRES:
            with self.subTest(wire=wire):
                self.play(play.Pod(example("vllm")), *wire)

    def test_the_first_ten_minutes_go_well_with_sglang_s_manifest(self):
        self.play(play.Pod(example("sglang")), "--encoding", "array", "--block-size", "64")


    def test_the_first_ten_minutes_go_as_the_page_says_with_an_engine_that_is_polled(self):
        pod = play.Pod(example("trtllm"))
        prompt = range(64)
        with play.ExitStack() as stack:
            # Applied: Ready while the model still loads, and an answer that says "nothing yet".
            kvtap = stack.enter_context(play.ExitStack())
            kvtap.enter_context(pod.kvtap())
            self.assertEqual(pod.probes(), [200, 200, 200])
            [nothing] = pod.ask(prompt)
            self.assertEqual((nothing["state"], nothing["matched_blocks"]), ("connecting", 0))

            # The engine serves prompts, and is followed: from its first event on, so all of it is known.
            engine = stack.enter_context(play.ExitStack())
            tell = engine.enter_context(pod.engines())
            [first] = play.eventually("the engine is followed", pod.all_live)
            self.assertEqual((first["epoch"], first["missed"], sum(first["dropped"].values())), (1, 0, 0), first)
            [match] = pod.ask(prompt)
            self.assertEqual((match["state"], match["matched_blocks"], match["matched_tokens"]), ("live", 6, 24))

            # kvtap is killed and comes back. What was polled is gone, nobody can give it again, and the answers say so,
            # beginning with the next event; none of it is overstated.
            kvtap.close()
            kvtap.enter_context(pod.kvtap())
            self.assertEqual(pod.ask(prompt)[0]["matched_blocks"], 0)
            self.assertEqual(tell("store - 2"), "done")
            incomplete = lambda: [one for one in pod.workers() if one["state"] == "incomplete"]
            [again] = play.eventually("it says that it does not know all", incomplete)
            self.assertEqual((again["missed"], pod.ask(prompt)[0]["matched_blocks"]), (6, 0), again)

            # The engine is killed: said at once, kvtap stays ready.
            engine.close()
            play.eventually("the engine is away", lambda: pod.workers()[0]["state"] == "connecting")
            self.assertEqual(pod.probes(), [200, 200, 200])
            # Its next life is another, and whole from its first event on.
            life = pod.workers()[0]["epoch"]
            with pod.engines():
                whole = lambda: [one for one in pod.all_live() or [] if one["epoch"] > life]
                [second] = play.eventually("its next life is followed", whole)
                self.assertEqual((second["blocks"], pod.ask(prompt)[0]["matched_blocks"]), (6, 6))


class Running(unittest.TestCase):
    def test_each_configuration_passes_the_binary_s_own_check(self):
        for name in EXAMPLES:
            with self.subTest(name):
                done = play.check_config(config_text(example(name)), **environment_of(tap(example(name))[1]))
                self.assertEqual(done.returncode, 0, done.stderr)
                # One warning a feed is right where events cross the network, and none where they do not.
                expected = 0 if name in SIDECARS else 2 * len(config(example(name))["feeds"])
                self.assertEqual(len(done.stderr.splitlines()), expected, done.stderr)

    def test_each_example_answers_before_its_engine_is_there_and_then_follows_it(self):
        for name in EXAMPLES:
            with self.subTest(name):
                pod = play.Pod(example(name))
                with pod.kvtap():
                    self.assertEqual(pod.probes(), [200, 200, 200])
                    self.assertIn("kvtap_build_info", pod.metrics())
                    before = pod.workers()
                    self.assertEqual(len(before), ranks(pod.settings))
                    self.assertEqual({(one["state"], one["blocks"]) for one in before}, {("connecting", 0)})
                    with pod.engines():
                        after = play.eventually("every rank is live", pod.all_live)
                names = {feed["worker"].replace("${POD_NAME}", play.POD["POD_NAME"]) for feed in pod.settings["feeds"]}
                self.assertEqual({one["worker"] for one in after}, names)

    def test_a_sidecar_that_is_restarted_alone_gets_back_what_it_knew(self):
        pod = play.Pod(example("vllm-multi-rank"))
        with pod.engines():
            with pod.kvtap():
                known = {one["rank"]: one for one in play.eventually("every rank is live", pod.all_live)}

            def as_before():
                now = pod.all_live() or []
                # An engine may have gone on meanwhile; where it has not, it is the same blocks.
                return now and all(
                    one["last_seq"] > known[one["rank"]]["last_seq"]
                    or (one["last_seq"], one["blocks"])
                    == (known[one["rank"]]["last_seq"], known[one["rank"]]["blocks"])
                    for one in now
                )

            with pod.kvtap():
                play.eventually("every rank is as it was", as_before)
                self.assertEqual({one["missed"] for one in pod.workers()}, {0})

    def test_an_engine_that_is_killed_is_said_to_be_away_while_kvtap_stays_ready(self):
        pod = play.Pod(example("vllm"))
        with pod.kvtap():
            with pod.engines():
                play.eventually("the engine is followed", pod.all_live)
            play.eventually("the engine is away", lambda: {one["state"] for one in pod.workers()} == {"connecting"})
            self.assertEqual(pod.probes(), [200, 200, 200])

            def next_life():
                now = pod.all_live()
                return now and now[0]["epoch"] > 1

            with pod.engines():
                play.eventually("its next life is followed", next_life)


class Tls(unittest.TestCase):
    """The example with certificates, and what differs from the one it is made of."""

    def test_tls_is_all_that_the_components_add(self):
        (template, container), (_, before) = (tap(example(name)) for name in ("vllm-mtls", "vllm"))
        added = {key for key in container if container[key] != before[key]}
        self.assertEqual(added, {"env", "volumeMounts"})
        files = {"CERT": "tls.crt", "KEY": "tls.key", "CLIENT_CA": "ca.crt"}
        wanted = {f"KVTAP_GRPC_TLS_{name}": f"/etc/kvtap-tls/{file}" for name, file in files.items()}
        self.assertEqual(environment_of(container), wanted)
        self.assertEqual(secrets_of(template, container), {"/etc/kvtap-tls": "kvtap-tls"})
        [mount] = [one for one in container["volumeMounts"] if one["mountPath"] == "/etc/kvtap-tls"]
        # Mounted as a folder: a file by `subPath` would never be rotated.
        self.assertEqual((mount["readOnly"], mount.get("subPath")), (True, None))

    def test_a_service_says_how_it_is_spoken_to(self):
        for name, protocol in (("vllm", "kubernetes.io/h2c"), ("vllm-mtls", "https")):
            [port] = called(example(name), "Service", "kvtap")["spec"]["ports"]
            self.assertEqual(port["appProtocol"], protocol)

    def test_who_shows_no_certificate_is_not_answered_while_probes_need_none(self):
        pod = play.Pod(example("vllm-mtls"))
        with pod.kvtap():
            self.assertEqual(len(pod.workers()), 1)
            # The alert, or an end of the connection that was faster than it.
            with self.assertRaisesRegex(AssertionError, "is this the gRPC port of a kvtap"):
                pod.run("workers", shown=False)
            self.assertEqual(pod.probes(), [200, 200, 200])

    def test_the_certificates_that_the_page_makes_are_taken(self):
        page = (ROOT / "deploy" / "README.md").read_text().split("\n## TLS\n", 1)[1].split("\n## ", 1)[0]
        commands = [line.strip().removeprefix("$ ") for line in page.splitlines() if "openssl" in line]
        with tempfile.TemporaryDirectory() as folder:
            script = ["bash", "-euc", "\n".join(commands)]
            done = subprocess.run(script, cwd=folder, capture_output=True, text=True, timeout=play.PATIENCE)
            self.assertEqual(done.returncode, 0, done.stderr)
            made = {file.name: file.read_bytes() for file in Path(folder).iterdir()}
        pod = play.Pod(example("vllm-mtls"), {"kvtap-tls": lambda: {name: made[name] for name in ("tls.crt", "tls.key", "ca.crt")}})
        pod.caller = lambda: {"tls.crt": made["client.crt"], "tls.key": made["client.key"], "ca.crt": made["ca.crt"]}
        with pod.kvtap():
            self.assertEqual(len(pod.workers()), 1)

    def test_the_first_ten_minutes_go_well_over_tls(self):
        TenMinutes.play(self, play.Pod(example("vllm-mtls")))

    def test_the_components_secure_a_fleet_too(self):
        for component, names in (("tls", {"CERT", "KEY"}), ("mtls", {"CERT", "KEY", "CLIENT_CA"})):
            with tempfile.TemporaryDirectory() as folder:
                copy = Path(folder) / "kustomize"
                shutil.copytree(KUSTOMIZE, copy)
                overlay = copy / "examples" / "secured"
                overlay.mkdir()
                use = {"resources": ["../fleet-vllm"], "components": [f"../../components/{component}"]}
                (overlay / "kustomization.yaml").write_text(yaml.safe_dump(use))
                manifests = build(overlay)
            with self.subTest(component):
                template, container = tap(manifests)
                self.assertEqual(set(environment_of(container)), {f"KVTAP_GRPC_TLS_{name}" for name in names})
                self.assertEqual(secrets_of(template, container), {"/etc/kvtap-tls": "kvtap-tls"})
                [port] = called(manifests, "Service", "kvtap-fleet")["spec"]["ports"]
                self.assertEqual(port["appProtocol"], "https")
                for version in ("1.29", kubernetes_validate.latest_version()):
                    for manifest in manifests:
                        kubernetes_validate.validate(manifest, version, strict=True)
