"""The processes of a run, and how they are spoken to: the engine, kvtap, a router, and a witness of what was published."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import zmq

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
from ports import free_port  # noqa: E402

HERE = Path(__file__).resolve().parent
MODEL, WORKER = "tiny", "pod-a"

# An engine on a busy machine may need minutes to start.
START, PATIENCE = 900, 60
# An engine that has published nothing for so long after its answer has published all that belongs to it.
QUIET = 0.25


def eventually(what, found, patience=PATIENCE):
    """What `found` gives once it gives something."""
    deadline = time.monotonic() + patience
    while not (result := found()):
        if time.monotonic() > deadline:
            raise SystemExit(f"in vain for {patience} s: {what}")
        time.sleep(0.02)
    return result


class Child:
    """A process that is asked in lines of JSON, with whatever processes it starts."""

    def __init__(self, command, log, **more):
        self.log = open(log, "a")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.log, "text": True}
        self.process = subprocess.Popen(command, start_new_session=True, **pipes, **more)

    def line(self, patience=PATIENCE):
        ready, _, _ = select.select([self.process.stdout], [], [], patience)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            raise SystemExit(f"no answer; {self.log.name} says why")
        return json.loads(line)

    def ask(self, order, patience=PATIENCE):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self.line(patience)

    def kill(self):
        """Ends it and everything that it started at once, as a crash would."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.log.close()


class Engine:
    """vLLM, in lives that follow each other on the same sockets."""

    def __init__(self, settings, folder):
        self.events, self.replay, self.folder = free_port(), free_port(), folder
        published = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": "", "buffer_steps": 10000}
        sockets = {"endpoint": f"tcp://*:{self.events}", "replay_endpoint": f"tcp://*:{self.replay}"}
        self.settings = {**settings, "kv_events_config": {**published, **sockets}}
        self.lives = 0

    def start(self):
        # Whatever a machine has beside its processor is none of this engine's business, and neither is a model hub.
        alone = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
        command = [sys.executable, "-B", str(HERE / "engine.py"), json.dumps(self.settings)]
        self.child = Child(command, self.folder / "engine.log", env={**os.environ, **alone})
        ready = self.child.line(START)
        self.lives += 1
        return ready["version"]

    def generate(self, prompts):
        return self.child.ask({"prompts": prompts}, START)["requests"]

    def reset(self):
        return self.child.ask({"reset": True})["done"]

    def kill(self):
        self.child.kill()


class Witness:
    """Another subscriber, which says what number the last message had."""

    def __init__(self, port):
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self.socket.subscribe(b"")
        self.socket.connect(f"tcp://127.0.0.1:{port}")
        self.last, self.messages = None, 0

    def hear(self):
        """Listens until nothing has come for a moment; what the last number is then."""
        while self.socket.poll(1000 * QUIET):
            self.last = int.from_bytes(self.socket.recv_multipart()[-2], "big")
            self.messages += 1
        return self.last

    def forget(self):
        """The engine's next life counts from 0 again."""
        self.hear()
        self.last = None


class Tap:
    """`kvtap serve` and a router that asks it over gRPC, through as many lives."""

    def __init__(self, kvtap, engine, folder):
        self.kvtap, self.folder, self.lives = kvtap, folder, 0
        self.grpc = f"127.0.0.1:{free_port()}"
        self.file = folder / "kvtap.yaml"
        self.file.write_text(
            f'grpc: {{ listen: ["{self.grpc}"] }}\n'
            'admin: { listen: "127.0.0.1:0" }\n'
            f"snapshot: {{ directory: {folder / 'snapshots'}, interval: 5s }}\n"
            "feeds:\n"
            f"  - {{ worker: {WORKER}, model: {MODEL}, engine: vllm,\n"
            f'      endpoint: "tcp://127.0.0.1:{engine.events}", replay: "tcp://127.0.0.1:{engine.replay}" }}\n'
        )

    def start(self):
        log = open(self.folder / "kvtap.log", "a")
        variables = {name: value for name, value in os.environ.items() if not name.startswith("KVTAP_")}
        command = [self.kvtap, "serve", "--config", str(self.file)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables)
        router = [sys.executable, "-B", str(ROOT / "tests" / "peers" / "grpc_router.py"), "--server", self.grpc]
        self.router = Child(router, self.folder / "router.log")
        self.lives += 1
        eventually("kvtap answers", lambda: "error" not in self.router.ask({"list": True}))

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.router.kill()

    def report(self):
        [rank] = self.router.ask({"list": True})["workers"]
        return rank

    def match(self, prompt):
        """What kvtap says of a prompt: without its last token, which an engine computes anew in any case."""
        query = {"model": MODEL, "tokens": prompt["tokens"][:-1], "salt": prompt.get("salt")}
        answer = self.router.ask({**query, "lora": "tuned" if prompt.get("tuned") else None})
        if "error" in answer:
            raise SystemExit(f"kvtap refuses: {answer}")
        [worker] = answer["workers"]
        return worker
