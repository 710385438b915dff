"""The example over NATS: its servers, who may do what there, and all of it at work with processes."""

import base64
import binascii
import os
import re
import subprocess
import sys
import tempfile
import unittest
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

import play
from manifests import (
    ROOT,
    called,
    config,
    containers,
    environment_of,
    example,
    kvtap_bytes,
    port_of,
    secrets_of,
    tap,
    taps,
    templates,
)

NAME = "relay-vllm"


def without(name):
    """The example without one workload, so that one kvtap is left to look at."""
    return [one for one in example(NAME) if (one["kind"], one["metadata"]["name"]) not in (("Deployment", name), ("StatefulSet", "kvtap-nats"))]


SIDECAR, FLEET = without("kvtap-fleet"), without("vllm")


def key_pair():
    """A user's seed and public key, in the form that NATS gives them: a kind, the bytes, a checksum, in base 32."""
    user, seed = 20 << 3, 18 << 3
    key = Ed25519PrivateKey.generate()

    def text(raw):
        return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).rstrip(b"=").decode()

    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return text(bytes([seed | user >> 5, (user & 31) << 3]) + key.private_bytes_raw()), text(bytes([user]) + public)


@contextmanager
def servers(keys, lot):
    """The three servers as the manifest starts them, each at an address of its own; gives a way to end one."""
    container = nats()[1]
    text = called(example(NAME), "ConfigMap", config_map())["data"]["nats.conf"]
    binary = Path(sys.executable).parent / "nats-server"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        text = re.sub(r"kvtap-nats-(\d)\.kvtap-nats", lambda found: f"{lot}.{50 + int(found[1])}", text)
        running, [tls] = [], [path for path, secret in secrets_of(*nats()).items() if secret == "kvtap-nats-tls"]
        play.write(f"{folder}/tls", play.certificate(*(f"{lot}.{50 + number}" for number in range(3))))
        text = text.replace(tls, f"{folder}/tls")
        for number in range(3):
            data, file = Path(folder) / f"data-{number}", Path(folder) / f"nats-{number}.conf"
            data.mkdir()
            file.write_text(text.replace("0.0.0.0", f"{lot}.{50 + number}").replace("/data", str(data)))
            env = {**os.environ, "POD_NAME": f"kvtap-nats-{number}", "TAP_KEY": keys["tap"][1], "FOLLOW_KEY": keys["follow"][1]}
            command = [str(binary), *(str(file) if one == "/etc/nats/nats.conf" else one for one in container["args"])]
            log = stack.enter_context(open(Path(folder) / f"log-{number}", "w"))
            running.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
            stack.callback(running[-1].wait)
            stack.callback(running[-1].kill)
        for number in range(3):
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                asked = container[probe]["httpGet"]
                healthy = lambda: (play.get(f"{lot}.{50 + number}", asked["port"], asked["path"]) or (0,))[0] == 200
                play.eventually(f"server {number}: {probe}", healthy)
        yield running


def user(key):
    """The files of a kvtap's Secret."""
    return {"user.nk": key[0].encode(), "ca.crt": play.AUTHORITY.cert_pem.bytes()}


def nats():
    """The servers' pod template and container."""
    template = called(example(NAME), "StatefulSet", "kvtap-nats")["spec"]["template"]
    return template, containers(template)[0]


def config_map():
    [volume] = [one for one in nats()[0]["spec"]["volumes"] if one["name"] == "config"]
    return volume["configMap"]["name"]


class Relay(unittest.TestCase):
    def test_each_kvtap_shows_the_key_of_what_it_does(self):
        for manifests, secret in ((SIDECAR, "kvtap-nats-tap"), (FLEET, "kvtap-nats-follow")):
            template, container = tap(manifests)
            self.assertEqual(secrets_of(template, container), {"/etc/kvtap-nats": secret})
            self.assertEqual(environment_of(container), {
                "KVTAP_NATS_NKEY": "/etc/kvtap-nats/user.nk",
                "KVTAP_NATS_CA": "/etc/kvtap-nats/ca.crt",
            })

    def test_each_configuration_passes_the_binary_s_own_check(self):
        for manifests, follows in ((SIDECAR, ["none"]), (FLEET, None)):
            settings = config(manifests)["relay"]
            self.assertEqual((settings.get("follow"), settings.get("publish", True)), (follows, follows is not None))
            # As many copies as there are servers.
            self.assertEqual(settings["stream_replicas"], called(example(NAME), "StatefulSet", "kvtap-nats")["spec"]["replicas"])
            done = play.check_config(play.look.config_text(manifests), **environment_of(tap(manifests)[1]))
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_the_servers_are_found_and_reached_at_the_ports_they_serve(self):
        template, container = nats()
        declared = {port["containerPort"] for port in container["ports"]}
        text = called(example(NAME), "ConfigMap", config_map())["data"]["nats.conf"]
        listened = {int(port) for port in re.findall(r'"0\.0\.0\.0:(\d+)"', text)}
        self.assertEqual(listened, declared)
        service = called(example(NAME), "Service", "kvtap-nats")["spec"]
        self.assertLessEqual({port["port"] for port in service["ports"]}, declared)
        self.assertEqual(service["selector"], {"kvtap": template["metadata"]["labels"]["kvtap"]})
        routes = re.findall(r'"nats://(\S+)-(\d)\.(\S+):(\d+)"', text)
        names = {(name, service, port) for name, _, service, port in routes}
        self.assertEqual((names, len(routes)), ({("kvtap-nats", "kvtap-nats", "6222")}, 3))
        for manifests in (SIDECAR, FLEET):
            self.assertEqual(config(manifests)["relay"]["servers"], "tls://kvtap-nats:4222")

    def test_the_fleet_is_let_out_to_the_servers_which_let_kvtaps_in_alone(self):
        out = called(example(NAME), "NetworkPolicy", "kvtap-relay")["spec"]
        self.assertEqual(out["podSelector"]["matchLabels"], {"kvtap": "fleet"})
        [rule] = out["egress"]
        self.assertEqual(rule["to"], [{"podSelector": {"matchLabels": nats_label()}}])
        self.assertEqual([port["port"] for port in rule["ports"]], [port_of(config(FLEET)["relay"]["servers"])])
        policy = called(example(NAME), "NetworkPolicy", "kvtap-nats")["spec"]
        self.assertEqual(policy["podSelector"]["matchLabels"], nats_label())
        clients, cluster = policy["ingress"]
        [selected] = clients["from"][0]["podSelector"]["matchExpressions"]
        labels = {template["metadata"]["labels"]["kvtap"] for template, _ in taps(example(NAME))}
        self.assertEqual((selected["key"], set(selected["values"])), ("kvtap", labels))
        self.assertEqual([port["port"] for port in clients["ports"]], [4222])
        self.assertEqual((cluster["from"], cluster["ports"][0]["port"]), ([{"podSelector": {"matchLabels": nats_label()}}], 6222))

    def test_the_servers_meet_the_restricted_standard_and_outlive_a_node(self):
        template, container = nats()
        context = container["securityContext"]
        self.assertEqual(context["capabilities"], {"drop": ["ALL"]})
        self.assertTrue(context["readOnlyRootFilesystem"] and context["runAsNonRoot"] and context["runAsUser"] > 0)
        self.assertIs(context["allowPrivilegeEscalation"], False)
        self.assertIs(template["spec"]["automountServiceAccountToken"], False)
        self.assertEqual(called(example(NAME), "PodDisruptionBudget", "kvtap-nats")["spec"]["maxUnavailable"], 1)

    def test_each_limit_follows_from_the_configured_caps(self):
        sizing = yaml.safe_load((ROOT / "deploy" / "sizing.yaml").read_text())
        page = (ROOT / "deploy" / "README.md").read_text()
        # One that follows fetches so many snapshots at a time; each may take what a rank's replay does.
        for row, manifests, ranks in (("sidecar", SIDECAR, 1), ("fleet", FLEET, 4)):
            settings = config(manifests)
            index = -(-settings["limits"]["blocks_in_all"] * sizing["bytes_per_block"] // 2**20)
            queue = kvtap_bytes(settings["defaults"]["queue_bytes"]) // 2**20
            need = sizing["base_mib"] + index + ranks * (queue + sizing["rank_mib"]) + sizing["replay_mib"]
            limit = f"{-(-need // sizing['round_mib']) * sizing['round_mib']}Mi"
            self.assertEqual(tap(manifests)[1]["resources"]["limits"]["memory"], limit)
            self.assertIn(f"| `{NAME}`, {row} | ", page)
            self.assertIn(f"+ {sizing['replay_mib']} = {need} | `{limit}` |", page)

    def test_users_may_do_what_the_page_lists_and_the_follower_cannot_publish(self):
        text = called(example(NAME), "ConfigMap", config_map())["data"]["nats.conf"]
        tap_user, follower = text.split("nkey: ")[1:]
        page = (ROOT / "docs" / "relay.md").read_text().split("```text\nusers: [", 1)[1].split("```", 1)[0]
        subjects = lambda part: set(re.findall(r'"([$_A-Za-z][^"]*)"', part)) - {"2m"}
        anybody = {subject.replace(".W.", ".*.") for subject in subjects(page)}
        # Answers to whoever asks for a snapshot of any of them.
        anybody = anybody - {"kvtap.v1.snapshot.*.*.*"}
        self.assertEqual(subjects(tap_user), anybody)
        publish = follower.split("subscribe:")[0]
        self.assertFalse(any(word in publish for word in ("kvtap.v1.events", "kvtap.v1.owners", "kvtap.v1.kept")))
        self.assertNotIn("allow_responses", follower)

    def test_the_first_ten_minutes_go_well_over_nats(self):
        keys = {"tap": key_pair(), "follow": key_pair()}
        secrets = {f"kvtap-nats-{name}": lambda name=name: user(keys[name]) for name in keys}
        sidecar, fleet = play.Pod(SIDECAR, secrets), play.Pod(FLEET, secrets)
        lot = sidecar.address.rsplit(".", 1)[0]
        for pod in (sidecar, fleet):
            pod.config = pod.config.replace("kvtap-nats:4222", ",tls://".join(f"{lot}.{50 + one}:4222" for one in range(3)))
        with servers(keys, lot) as running, fleet.kvtap():
            self.assertEqual(fleet.workers(), [])
            with sidecar.kvtap(), sidecar.engines():
                play.eventually("the sidecar follows its engine", sidecar.all_live)

                def followed():
                    # The engine may still be answering its requests: both are asked again until they have heard the same.
                    pair = (sidecar.all_live() or []) + (fleet.all_live() or [])
                    return pair if len(pair) == 2 and pair[0]["last_seq"] == pair[1]["last_seq"] else None

                own, told = play.eventually("the fleet follows the sidecar", followed)
                self.assertEqual((told["worker"], told["model"], told["blocks"]), (own["worker"], own["model"], own["blocks"]))
                # A server goes, as a node does: the fleet answers on, and is sure again within seconds.
                running[0].kill()
                running[0].wait()
                own, after = play.eventually("the fleet is sure again", followed)
                self.assertEqual((after["blocks"], fleet.probes(), sidecar.probes()), (own["blocks"], 3 * [200], 3 * [200]))
            gone = lambda: all(one["state"] != "live" for one in fleet.workers())
            play.eventually("the fleet knows that the sidecar is gone", gone)

    def test_the_certificate_that_the_page_makes_is_for_the_names_of_the_servers(self):
        page = (ROOT / "deploy" / "README.md").read_text().split("\n## A fleet over NATS\n", 1)[1].split("\n## ", 1)[0]
        commands = [line.strip().removeprefix("$ ") for line in page.splitlines() if "$ openssl" in line]
        with tempfile.TemporaryDirectory() as folder:
            script = ["bash", "-euc", "\n".join(commands)]
            done = subprocess.run(script, cwd=folder, capture_output=True, text=True, timeout=play.PATIENCE)
            self.assertEqual(done.returncode, 0, done.stderr)
            made, ca = (x509.load_pem_x509_certificate((Path(folder) / f"{name}.crt").read_bytes()) for name in ("tls", "ca"))
        made.verify_directly_issued_by(ca)
        names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
        self.assertEqual(names, ["kvtap-nats", "*.kvtap-nats"])

    def test_a_follower_that_speaks_for_a_worker_is_refused_by_the_servers(self):
        keys = {"tap": key_pair(), "follow": key_pair()}
        # The sidecar shows the follower's key.
        secrets = {"kvtap-nats-tap": lambda: user(keys["follow"])}
        secrets["kvtap-nats-follow"] = secrets["kvtap-nats-tap"]
        sidecar, fleet = play.Pod(SIDECAR, secrets), play.Pod(FLEET, secrets)
        lot = sidecar.address.rsplit(".", 1)[0]
        for pod in (sidecar, fleet):
            pod.config = pod.config.replace("kvtap-nats:4222", f"{lot}.50:4222")
        with servers(keys, lot), fleet.kvtap(), sidecar.kvtap(), sidecar.engines():
            play.eventually("the sidecar follows its engine", sidecar.all_live)
            refused = lambda: "Permissions Violation for Publish" in sidecar.get("/status", sidecar.admin)[1]
            play.eventually("the servers refuse what it says", refused)
            self.assertEqual(fleet.workers(), [])


def nats_label():
    return {"kvtap": nats()[0]["metadata"]["labels"]["kvtap"]}
