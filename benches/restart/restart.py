#!/usr/bin/env python3
"""How long a sidecar that is started again takes until its first exact answer, and how long its feed waits while a snapshot is taken.

    restart.py KVTAP [--blocks N] [--rounds N] [--block-size TOKENS] [--json]

Everything is a process of its own: `kvtap sim` is the engine, over TCP sockets, with its replay; `kvtap serve` taps it and keeps
snapshots; `kvtap match` asks. Needs nothing but Python and the program. README.md says what is measured.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

MODEL = "bench"
HELD = 2  # Whole blocks of the prompt that `kvtap sim` holds for as long as it lives.
PATIENCE = 600.0


class Program:
    """A process whose lines are read, and which ends with this one."""

    def __init__(self, arguments, stream):
        self.begun = time.monotonic()
        pipes = {stream: subprocess.PIPE, {"stdout": "stderr", "stderr": "stdout"}[stream]: subprocess.DEVNULL}
        self.process = subprocess.Popen([str(argument) for argument in arguments], text=True, **pipes)
        self.lines = []
        self.came = threading.Condition()
        threading.Thread(target=self._read, args=(getattr(self.process, stream),), daemon=True).start()

    def _read(self, pipe):
        for line in pipe:
            with self.came:
                self.lines.append((time.monotonic() - self.begun, line.rstrip()))
                self.came.notify_all()

    def wait_for(self, pattern):
        """The first line that has it: when it came, and what was found."""
        found = re.compile(pattern)
        deadline = time.monotonic() + PATIENCE
        with self.came:
            at = 0
            while True:
                for when, line in self.lines[at:]:
                    if match := found.search(line):
                        return when, match
                at = len(self.lines)
                if self.process.poll() is not None or not self.came.wait(max(0.0, deadline - time.monotonic())):
                    said = "\n".join(line for _, line in self.lines[-20:])
                    raise SystemExit(f"no line with `{pattern}`:\n{said}")

    def end(self):
        """SIGTERM, and how long it then takes."""
        begun = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=PATIENCE)
        return time.monotonic() - begun


def serve(kvtap, folder):
    return Program([kvtap, "serve", "--config", folder / "kvtap.yaml"], "stderr")


def asked(kvtap, command, server, *more):
    done = subprocess.run(
        [kvtap, command, "--server", server, "--json", *more], capture_output=True, text=True, check=False
    )
    return json.loads(done.stdout)["workers"] if done.returncode == 0 else []


def exact(kvtap, server, block_size):
    tokens = ",".join(str(token) for token in range(1, HELD * block_size + 1))
    workers = asked(kvtap, "match", server, "--model", MODEL, "--tokens", tokens)
    return any(worker["state"] == "live" and worker["matched_blocks"] == HELD for worker in workers)


def row(kvtap, server):
    rows = asked(kvtap, "workers", server)
    return rows[0] if rows else {"blocks": 0, "state": "", "last_seq": None}


def settled(kvtap, server, last_sequence):
    """Until everything that the engine published is applied."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        now = row(kvtap, server)
        if now["state"] == "live" and now["last_seq"] == last_sequence:
            return now
        time.sleep(0.2)
    raise SystemExit(f"kvtap never came as far as its engine: {now}")


def waits(program):
    """How long the feed waited for snapshots, in milliseconds, as its log says."""
    said = (re.search(r"waited_ms=([0-9.]+)", line) for _, line in program.lines)
    return [float(match[1]) for match in said if match]


def measure(kvtap, arguments, folder):
    engine = Program(
        [
            kvtap, "sim", "--json", "--model", MODEL, "--blocks", arguments.blocks + 4096,
            "--block-size", arguments.block_size, "--buffer-steps", 1 << 24, "--linger", 100_000,
            "--requests", arguments.blocks * arguments.block_size // 112 + 1, "--seed", 7,
        ],
        "stdout",
    )  # fmt: skip
    _, sockets = engine.wait_for(r'"publishing_on":"([^"]+)","rank":0,"replay_on":"([^"]+)"')
    (folder / "kvtap.yaml").write_text(
        f"""grpc: {{ listen: ["127.0.0.1:0"] }}
admin: {{ listen: "127.0.0.1:0" }}
log: {{ level: debug }}
limits: {{ blocks_per_rank: {2 * arguments.blocks} }}
snapshot: {{ directory: {folder}/snapshots, interval: 5s }}
feeds:
  - {{ worker: pod, model: {MODEL}, engine: vllm, endpoint: "{sockets[1]}", replay: "{sockets[2]}" }}
"""
    )
    first = serve(kvtap, folder)
    address = first.wait_for(r"grpc listening on (\S+)")[1][1]
    _, done = engine.wait_for(r'"next_sequence":(\d+)')
    before = settled(kvtap, address, int(done[1]) - 1)
    ending = [first.end()]
    stalls = waits(first)
    rounds = []
    for _ in range(arguments.rounds):
        again = serve(kvtap, folder)
        address = again.wait_for(r"grpc listening on (\S+)")[1][1]
        listening = time.monotonic() - again.begun
        while not exact(kvtap, address, arguments.block_size):
            if time.monotonic() - again.begun > PATIENCE:
                raise SystemExit("no exact answer")
        answered = time.monotonic() - again.begun
        now = row(kvtap, address)
        if now["blocks"] != before["blocks"]:
            raise SystemExit(f"{now['blocks']} blocks after the restart, {before['blocks']} before: no figure is worth anything")
        restored, _ = again.wait_for("A snapshot was restored")
        rounds.append({"listening_s": listening, "restored_s": restored, "first_exact_answer_s": answered})
        ending.append(again.end())
    size = sum(file.stat().st_size for file in (folder / "snapshots").iterdir())
    engine.end()
    return {
        "blocks": before["blocks"],
        "messages": int(done[1]),
        "file_bytes_per_block": size / before["blocks"],
        "feed_waited_ms": stalls,
        "ended_after_s": ending,
        "rounds": rounds,
    }


def main():
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("kvtap", type=Path, help="the release binary")
    reader.add_argument("--blocks", type=int, default=1_000_000, help="blocks that the engine holds, about")
    reader.add_argument("--block-size", type=int, default=16, help="tokens a block")
    reader.add_argument("--rounds", type=int, default=5)
    reader.add_argument("--json", action="store_true")
    arguments = reader.parse_args()
    arguments.kvtap = arguments.kvtap.resolve()
    with tempfile.TemporaryDirectory() as folder:
        report = measure(arguments.kvtap, arguments, Path(folder))
    if arguments.json:
        print(json.dumps(report))
        return
    median = {name: statistics.median(one[name] for one in report["rounds"]) for name in report["rounds"][0]}
    print(f"{report['blocks']} blocks held, told by {report['messages']} messages; {report['file_bytes_per_block']:.1f} bytes a block on disk")
    print(f"from the start of the process, median of {arguments.rounds} rounds:")
    print(f"  listening after {median['listening_s']:.3f} s, snapshot restored after {median['restored_s']:.3f} s")
    print(f"  first exact answer after {median['first_exact_answer_s']:.3f} s")
    print(f"the feed waited for {len(report['feed_waited_ms'])} snapshots, at most {max(report['feed_waited_ms'], default=0.0):.0f} ms")
    print(f"ended within {max(report['ended_after_s']):.2f} s of SIGTERM")


if __name__ == "__main__":
    sys.exit(main())
