"""Plays a pod with real processes: kvtap as the manifest configures it, simulated engines as the manifest starts them.

The ports are the manifest's own; a loopback address drawn by lot stands for the pod's, so that many can play at once.
"""

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager

import trustme

import manifests as look

sys.path.insert(0, str(look.ROOT / "tests" / "support"))
from ports import free_port  # noqa: E402

KVTAP = "kvtap"
PATIENCE = 60
POD = {"POD_NAME": "pod-a", "POD_IP": "10.0.0.7"}


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KVTAP_")}
    return {**kept, **POD, **more}


def check_config(text, **more):
    with file_of(text) as path:
        command = [KVTAP, "serve", "--config", path, "--check-config"]
        return subprocess.run(command, env=environment(**more), capture_output=True, text=True, timeout=PATIENCE)


@contextmanager
def file_of(text):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        yield file.name


@contextmanager
def running(*arguments, env=None, exits=None):
    """A process that is ended by SIGTERM, as the kubelet ends it, and then exits with `exits`, if that is given."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([KVTAP, *arguments], env=env or environment(), stdout=log, stderr=log)
        try:
            yield process
            process.terminate()
            code = process.wait(PATIENCE)
            if exits not in (None, code):
                raise AssertionError(f"exit code {code}")
        except BaseException:
            log.seek(0)
            print(f"kvtap {' '.join(arguments)}:\n{log.read()[-4000:]}")
            raise
        finally:
            process.kill()
            process.wait()


def eventually(what, found):
    """What `found` gives once it gives something."""
    deadline = time.monotonic() + PATIENCE
    while True:
        result = found()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"in vain for {PATIENCE} s: {what}")
        time.sleep(0.05)


def get(address, port, path):
    """Status and body, or None while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://{address}:{port}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return None


@contextmanager
def polled_engine(port):
    """TensorRT-LLM's event endpoint, with six blocks stored (of the tokens 0, 1, 2, ..); gives a way to tell it more."""
    script = look.ROOT / "tests" / "peers" / "trtllm_http.py"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-B", str(script), str(port)], **pipes) as engine:

        def tell(command):
            engine.stdin.write(f"{command}\n")
            engine.stdin.flush()
            return engine.stdout.readline().strip()

        try:
            assert engine.stdout.readline().strip() == str(port)
            assert tell("store - 6") == "done"
            yield tell
        finally:
            engine.kill()


AUTHORITY = trustme.CA()
# What routers call the sidecars, and so what their certificate says.
TLS_NAME = "kvtap.default.svc"


def certificate(*names):
    """A certificate of our authority for these names, as the files of a Secret."""
    signed = AUTHORITY.issue_cert(*names)
    chain = b"".join(blob.bytes() for blob in signed.cert_chain_pems)
    return {"tls.crt": chain, "tls.key": signed.private_key_pem.bytes(), "ca.crt": AUTHORITY.cert_pem.bytes()}


# What the user puts into the cluster beforehand, as deploy/README.md says.
SECRETS = {"kvtap-tls": lambda: certificate(TLS_NAME)}


def write(folder, files):
    os.makedirs(folder, exist_ok=True)
    for name, content in files.items():
        with open(f"{folder}/{name}", "wb") as out:
            out.write(content)


@contextmanager
def mounted(template, container, secrets):
    """The container's variables, with folders of this machine for the paths of its Secrets."""
    with tempfile.TemporaryDirectory() as folder:
        variables = look.environment_of(container)
        for number, (path, name) in enumerate(look.secrets_of(template, container).items()):
            here = f"{folder}/{number}"
            write(here, secrets[name]())
            variables = {key: value.replace(f"{path}/", f"{here}/") for key, value in variables.items()}
        yield variables


class Pod:
    """An example's kvtap and its engines, which come and go separately."""

    PROBES = ("startupProbe", "livenessProbe", "readinessProbe")

    def __init__(self, manifests, secrets=SECRETS):
        lot = f"127.{random.randint(1, 254)}.{random.randint(0, 255)}"
        self.address = f"{lot}.1"
        self.template, self.container = look.tap(manifests)
        self.secrets, self.settings = secrets, look.config(manifests)
        # What a router's pod has mounted.
        self.caller = lambda: certificate("router.default")
        self.is_tls = "KVTAP_GRPC_TLS_CERT" in look.environment_of(self.container)
        self.grpc, self.admin = (port["containerPort"] for port in self.container["ports"])
        text = look.config_text(manifests).replace("tcp://127.0.0.1:", f"tcp://{self.address}:")
        # The fleet's engines are pods of their own: vllm-2.vllm-pods becomes the address that ends in .12.
        self.config = re.sub(r"tcp://\w+-(\d+)\.[\w-]+:", lambda found: f"tcp://{lot}.{10 + int(found[1])}:", text)
        # One that only follows others has no engine.
        self.told = look.publisher(manifests) if self.settings["feeds"] else None
        self.polled = bool(self.told) and look.is_polled(manifests)
        if self.polled:
            # Engine and kvtap share the pod's loopback; here it is the machine's, on a port that nobody else has.
            self.http = free_port()
            self.config = text.replace("http://127.0.0.1:8000/", f"http://127.0.0.1:{self.http}/")
        self.hosts = [
            self.address if feed.get("bind") else f"{lot}.{10 + i}" for i, feed in enumerate(self.settings["feeds"])
        ]

    @contextmanager
    def kvtap(self):
        """kvtap as the manifest starts it, up to where the kubelet calls it started."""
        listen = {"KVTAP_GRPC_LISTEN": f"{self.address}:{self.grpc}", "KVTAP_ADMIN_LISTEN": f"{self.address}:{self.admin}"}
        with file_of(self.config) as file, mounted(self.template, self.container, self.secrets) as variables:
            env = environment(**listen, **variables)
            arguments = [file if argument.endswith("/kvtap.yaml") else argument for argument in self.container["args"]]
            with running(*arguments, env=env, exits=0):
                eventually("startupProbe", lambda: self.probe("startupProbe") == 200)
                yield

    @contextmanager
    def engines(self, *wire):
        """The engines, with the endpoints that the manifest gives them. They serve a few requests and idle.

        `wire` says how they encode, in the arguments of `kvtap sim`.
        """
        if self.polled:
            with polled_engine(self.http) as tell:
                yield tell
            return
        with ExitStack() as stack:
            for host, feed in zip(self.hosts, self.settings["feeds"], strict=True):
                sim = ["sim", "--ranks", str(feed.get("ranks", 1)), "--requests", "4", "--linger", "600"]
                for flag, key in (("--endpoint", "endpoint"), ("--replay", "replay_endpoint")):
                    sim += [flag, re.sub(r"//[^:]+:", f"//{host}:", self.told[key])]
                # As vLLM does where its endpoint has no `*`.
                sim += [] if "*" in self.told["endpoint"] else ["--connect"]
                stack.enter_context(running(*sim, *wire))
            yield

    def probe(self, name):
        asked = self.container[name]["httpGet"]
        return (self.get(asked["path"], asked["port"]) or (None,))[0]

    def probes(self):
        return [self.probe(name) for name in self.PROBES]

    def metrics(self):
        return self.get("/metrics", self.admin)[1]

    def get(self, path, port):
        return get(self.address, port, path)

    def run(self, *arguments, shown=True):
        """What `kvtap ... --json` of a router's pod says; a failure is an AssertionError with what it said."""
        with tempfile.TemporaryDirectory() as folder:
            command = [KVTAP, *arguments, "--json", "--server"]
            command += [f"https://{self.address}:{self.grpc}" if self.is_tls else f"{self.address}:{self.grpc}"]
            if self.is_tls:
                command += ["--tls-ca", f"{folder}/ca.crt", "--tls-name", TLS_NAME]
                command += ["--tls-cert", f"{folder}/tls.crt", "--tls-key", f"{folder}/tls.key"] if shown else []
                write(folder, self.caller())
            done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return json.loads(done.stdout)["workers"]

    def workers(self):
        """What `kubectl exec ... -- kvtap workers --json` would say."""
        return self.run("workers")

    def ask(self, tokens):
        """What `kubectl exec ... -- kvtap match --json` would say of a prompt, by worker."""
        return self.run("match", "--model", self.settings["feeds"][0]["model"], "--tokens", ",".join(map(str, tokens)))

    def all_live(self):
        """The workers, once each rank is followed and holds something."""
        now = self.workers()
        return now if all(one["state"] == "live" and one["blocks"] > 0 for one in now) else None
