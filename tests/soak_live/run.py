#!/usr/bin/env python3
"""kvtap under a moderate load for hours, and what it takes of the machine meanwhile.

    run.py --kvtap BINARY --work FOLDER [--minutes N] [--every SECONDS] [--rate R]

Eight simulated engines publish over real sockets, each with a few requests a second; routers ask over gRPC, and somebody watches. Twice
a minute something happens: an engine is killed and comes back empty, one is frozen until its connection is given up, one stays away longer
than its grace, a worker of a new name comes and goes by way of the configuration file, a crowd connects and leaves. Messages are lost,
doubled and late besides.

Each engine holds one prompt for as long as it lives, so an answer that says `live` and does not hold it is wrong, and is counted.
Every ten seconds a line goes to FOLDER/samples.csv: memory, file descriptors, threads, processor time, and what /metrics says of queues,
blocks and gaps. FOLDER/happened.csv has what was done and when. `plot.py FOLDER` makes of them a picture, and the numbers. Where /metrics
does not answer, FOLDER/unanswered.txt says what the threads and the machine did then, and the run goes on, and fails at its end.
"""

import argparse
import csv
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import grpc

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests" / "support")]
import stubs  # noqa: E402
from ports import free_port  # noqa: E402

ENGINES, BLOCKS, BLOCK_SIZE, MODEL = 8, 4096, 16, "sim"
# What every engine holds as long as it lives: `kvtap sim` prints this prompt. Its last token belongs to no block.
HELD = list(range(1, 2 * BLOCK_SIZE + 2))
GRACE, AWAY, FROZEN = 10, 15, 8
SAMPLE = 10
# What befalls the messages of each life, after so many requests.
FAULTS = ["drop=5@60", "duplicate=3@120", "delay=4x200@180", "drop=40@240"]
# The wire shapes of some releases, one engine each, over and over.
ENCODINGS = ["map", "map-0.33", "map-0.24", "array"]
# Sums over all feeds, as samples.csv calls them.
SUMS = {
    "queued_messages": "kvtap_feed_queued_messages",
    "queued_bytes": "kvtap_feed_queued_bytes",
    "held_blocks": "kvtap_feed_held_blocks",
    "table_bytes": "kvtap_feed_memory_bytes",
    "orphans": "kvtap_feed_orphan_blocks",
    "messages": "kvtap_feed_messages_total",
    "gaps": "kvtap_feed_gaps_total",
    "resets": "kvtap_feed_resets_total",
    "connections": "kvtap_connections",
    "watchers": "kvtap_watchers",
}


class Engine:
    """`kvtap sim`, in lives that follow each other on the same sockets."""

    def __init__(self, options, number):
        self.options, self.number, self.lives, self.process = options, number, 0, None
        self.events, self.replay = free_port(), free_port()
        self.worker = f"pod-{number}"

    def start(self):
        self.lives += 1
        command = [self.options.kvtap, "sim", "--endpoint", f"tcp://127.0.0.1:{self.events}"]
        command += ["--replay", f"tcp://127.0.0.1:{self.replay}", "--rate", str(self.options.rate), "--blocks", str(BLOCKS)]
        command += ["--block-size", str(BLOCK_SIZE), "--encoding", ENCODINGS[self.number % len(ENCODINGS)]]
        command += ["--seed", str(1000 * self.number + self.lives), "--tenants", "2", "--adapters", "1"]
        for fault in FAULTS:
            command += ["--fault", fault]
        # A life without end would repeat nothing; what it prints at its end nobody needs.
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def feed(self, worker=None):
        ports = f'endpoint: "tcp://127.0.0.1:{self.events}", replay: "tcp://127.0.0.1:{self.replay}"'
        return f"  - {{ worker: {worker or self.worker}, model: {MODEL}, engine: vllm, {ports} }}\n"


class Server:
    """`kvtap serve`, in one life, and what can be seen of it from outside."""

    def __init__(self, options, engines):
        self.grpc, self.admin = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.file, self.engines = options.work / "kvtap.yaml", engines
        self.write([])
        log = open(options.work / "kvtap.log", "w")
        variables = {name: value for name, value in os.environ.items() if not name.startswith("KVTAP_")}
        command = [options.kvtap, "serve", "--config", str(self.file)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables)

    def write(self, visitors):
        """The configuration: the engines, and visitors, which are second names of the first engine."""
        text = (
            f'grpc: {{ listen: ["{self.grpc}"], watch: {{ history_bytes: 4MiB }} }}\n'
            f'admin: {{ listen: "{self.admin}" }}\n'
            f"snapshot: {{ directory: {self.file.parent / 'snapshots'}, interval: 30s }}\n"
            f"defaults: {{ disconnect_grace: {GRACE}s }}\nlog: {{ level: warn }}\nfeeds:\n"
        )
        feeds = [engine.feed() for engine in self.engines] + [self.engines[0].feed(name) for name in visitors]
        new = self.file.with_suffix(".new")
        new.write_text(text + "".join(feeds))
        new.replace(self.file)

    def sample(self):
        pid = self.process.pid
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
        ticks = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        sums, live, asked = dict.fromkeys(SUMS, 0.0), 0, 0.0
        for line in lines:
            if line.startswith("#"):
                continue
            name, value = line.rsplit(" ", 1)
            family = name.split("{", 1)[0]
            for column, metric in SUMS.items():
                if family == metric:
                    sums[column] += float(value)
            live += family == "kvtap_feed_state" and 'state="live"' in name and value in ("1", "1.0")
            asked += float(value) if family == "kvtap_grpc_requests_total" else 0.0
        return {
            "rss_kib": int(status["VmRSS"].split()[0]),
            # Of that: what it allocated, and pages of its file, which are the system's to take back.
            "anon_kib": int(status["RssAnon"].split()[0]),
            "file_kib": int(status["RssFile"].split()[0]),
            "fds": len(os.listdir(f"/proc/{pid}/fd")),
            "threads": int(status["Threads"]),
            "cpu_seconds": (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK"),
            "live_feeds": live,
            "requests": int(asked),
            **{column: int(value) for column, value in sums.items()},
        }

    def threads(self):
        """What its threads do, and how busy the machine is."""
        lines = [f"load {Path('/proc/loadavg').read_text().strip()}"]
        for task in sorted(Path(f"/proc/{self.process.pid}/task").iterdir()):
            name, stat = (task / "comm").read_text().strip(), (task / "stat").read_text().rsplit(")", 1)[1].split()
            lines.append(f"{name}: state {stat[0]}, {stat[11]} + {stat[12]} ticks, waits in {(task / 'wchan').read_text() or '-'}")
        return "\n".join(lines)


class Routers(threading.Thread):
    """Asks without end: for the prompt that is held, and for others of all lengths."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.query, services, self.states = stubs.kvtap()
        self.stub = services.QueryServiceStub(grpc.insecure_channel(server.grpc))
        self.claims, self.wrong, self.failed, self.ended = 0, [], 0, threading.Event()

    def run(self):
        rng = random.Random(7)
        while not self.ended.wait(0.04):
            held = rng.random() < 0.5
            tokens = HELD if held else [rng.randrange(50_000) for _ in range(BLOCK_SIZE * rng.choice([4, 64, 512]))]
            request = self.query.MatchRequest(model=MODEL, tokens_le=struct.pack(f"<{len(tokens)}I", *tokens))
            try:
                answer = self.stub.Match(request, timeout=10)
            except grpc.RpcError as error:
                self.failed += 1
                print(f"a match failed: {error.code().name}: {error.details()}", flush=True)
                continue
            for match in answer.matches if held else ():
                name = self.states.Name(match.state)
                if name != "FEED_STATE_LIVE" or not match.HasField("last_seq"):
                    continue
                self.claims += 1
                if match.matched_tokens != 2 * BLOCK_SIZE:
                    self.wrong.append(match)
                    print(f"WRONG: {match}", flush=True)


class Watch(threading.Thread):
    """Follows the normalized feed, and begins again every half minute where it had come to."""

    def __init__(self, server):
        super().__init__(daemon=True)
        files = ("kvtap/v1/worker.proto", "kvtap/v1/events.proto", "kvtap/v1/watch_service.proto")
        self.messages, services = stubs.load(ROOT / "proto", *files)[-1]
        self.stub = services.WatchServiceStub(grpc.insecure_channel(server.grpc))
        self.ended = threading.Event()

    def run(self):
        cursor = b""
        while not self.ended.is_set():
            try:
                for message in self.stub.Watch(self.messages.WatchRequest(model=MODEL, resume_after=cursor), timeout=30):
                    cursor = message.cursor or cursor
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.OUT_OF_RANGE:
                    cursor = b""
                self.ended.wait(1)


class Run:
    def __init__(self, options):
        options.work.mkdir(parents=True, exist_ok=True)
        self.options = options
        self.engines = [Engine(options, number) for number in range(ENGINES)]
        for engine in self.engines:
            engine.start()
        self.server = Server(options, self.engines)
        self.rng, self.visitors, self.later = random.Random(1), 0, []
        self.unanswered = 0

    # What happens; each may leave something for later.

    def killed(self, engine):
        engine.kill()
        engine.start()

    def frozen(self, engine):
        engine.process.send_signal(signal.SIGSTOP)
        self.later.append((time.monotonic() + FROZEN, lambda: engine.process.send_signal(signal.SIGCONT)))

    def away(self, engine):
        engine.kill()
        self.later.append((time.monotonic() + AWAY, engine.start))

    def visitor(self, _):
        self.visitors += 1
        self.server.write([f"visitor-{self.visitors}"])
        self.later.append((time.monotonic() + FROZEN, lambda: self.server.write([])))

    def crowd(self, _):
        host, port = self.server.grpc.split(":")
        crowd = [socket.create_connection((host, int(port))) for _ in range(64)]
        self.later.append((time.monotonic() + 2, lambda: [one.close() for one in crowd]))

    def play(self):
        happenings = [self.killed, self.frozen, self.visitor, self.away, self.crowd]
        time.sleep(2)
        routers, watch = Routers(self.server), Watch(self.server)
        routers.start()
        watch.start()
        begun = time.monotonic()
        end, sampled, happened, count = begun + 60 * self.options.minutes, begun, begun + self.options.every, 0
        with open(self.options.work / "samples.csv", "w") as samples, open(self.options.work / "happened.csv", "w") as happenings_file:
            writer = None
            print("seconds,what,engine", file=happenings_file, flush=True)
            while (now := time.monotonic()) < end:
                if self.server.process.poll() is not None:
                    raise SystemExit(f"kvtap has ended with {self.server.process.returncode}")
                if not (routers.is_alive() and watch.is_alive()):
                    raise SystemExit("nobody asks any more, or nobody watches")
                due, self.later = [do for at, do in self.later if at <= now], [one for one in self.later if one[0] > now]
                for do in due:
                    do()
                if now >= happened and not self.later:
                    what, engine = happenings[count % len(happenings)], self.rng.choice(self.engines)
                    print(f"{now - begun:.1f},{what.__name__},{engine.worker}", file=happenings_file, flush=True)
                    what(engine)
                    count, happened = count + 1, now + self.options.every
                if now >= sampled:
                    if seen := self.sample(now - begun):
                        row = {"seconds": round(now - begun, 1), **seen}
                        row |= {"claims": routers.claims, "wrong": len(routers.wrong), "failed": routers.failed}
                        if writer is None:
                            writer = csv.DictWriter(samples, row)
                            writer.writeheader()
                        writer.writerow(row)
                        samples.flush()
                    sampled += SAMPLE
                time.sleep(0.1)
        routers.ended.set()
        watch.ended.set()
        routers.join()
        return routers

    def sample(self, seconds):
        try:
            return self.server.sample()
        except OSError as error:
            self.unanswered += 1
            with open(self.options.work / "unanswered.txt", "a") as file:
                print(f"at {seconds:.0f} s: {error!r}\n{self.server.threads()}\n", file=file)
            return {}

    def stop(self):
        for engine in self.engines:
            engine.process.send_signal(signal.SIGCONT)
            engine.kill()
        self.server.process.terminate()
        self.server.process.wait(30)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvtap", required=True, help="the binary, of a release build")
    parser.add_argument("--work", required=True, type=Path, help="a folder for what is written")
    parser.add_argument("--minutes", type=float, default=240.0, help="how long")
    parser.add_argument("--every", type=float, default=30.0, help="something happens each so many seconds")
    parser.add_argument("--rate", type=float, default=6.0, help="requests a second of each engine")
    options = parser.parse_args()
    run = Run(options)
    try:
        routers = run.play()
    finally:
        run.stop()
    said = f"{len(routers.wrong)} were wrong; {routers.failed} calls failed; {run.unanswered} scrapes were not answered"
    print(f"{routers.claims} answers said live; {said}")
    raise SystemExit(1 if routers.wrong or routers.failed or run.unanswered or not routers.claims else 0)


if __name__ == "__main__":
    main()
