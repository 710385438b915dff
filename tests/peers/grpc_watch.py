"""A router in another language that keeps its own picture: follows kvtap's normalized feed over gRPC with grpcio.

    grpc_watch.py --server ADDR [--model M] [--proto DIR]

It keeps, for each rank, the set of (prefix hash, tier) that was stored and not removed, which is all that a router needs.
Each line of standard input is a command, each answered by one JSON object a line:

    until W R SEQUENCE   waits until the rank is told up to a sequence number   {"blocks": [[PREFIX, TIER], ...]}
    again                ends the call and watches again after the last cursor    {"resumed": true, "why": ""}
"""

import argparse
import json
import pathlib
import queue
import sys
import threading

import grpc

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
import stubs  # noqa: E402

PATIENCE = 60


class Rank:
    """What one rank holds, and up to where it is told."""

    def __init__(self):
        self.held, self.sequence = set(), None

    def change(self, run, events):
        blocks = {(prefix, run.tier) for prefix in run.prefix_hashes}
        if run.HasField("group"):
            return
        if run.kind == events.RUN_KIND_STORED:
            self.held |= blocks
        elif run.kind == events.RUN_KIND_REMOVED:
            self.held -= blocks


class Watcher:
    def __init__(self, server, model, proto):
        files = ("kvtap/v1/worker.proto", "kvtap/v1/events.proto", "kvtap/v1/watch_service.proto")
        _, (self.events, _), (self.messages, services) = stubs.load(proto, *files)
        self.stub = services.WatchServiceStub(grpc.insecure_channel(server))
        self.model, self.cursor, self.ranks, self.call = model, b"", {}, None

    def watch(self):
        """Begins, and says how the server has begun."""
        if self.call is not None:
            self.call.cancel()
            self.reader.join()
        request = self.messages.WatchRequest(model=self.model, resume_after=self.cursor)
        self.call, self.inbox = self.stub.Watch(request), queue.Queue()
        self.reader = threading.Thread(target=self.read, args=(self.call, self.inbox), daemon=True)
        self.reader.start()
        started = self.next().started
        if not started.resumed:
            self.ranks.clear()
        return {"resumed": started.resumed, "why": started.why}

    @staticmethod
    def read(call, inbox):
        try:
            for message in call:
                inbox.put(message)
        except grpc.RpcError as error:
            inbox.put(error)

    def next(self):
        message = self.inbox.get(timeout=PATIENCE)
        if isinstance(message, grpc.RpcError):
            raise message
        self.apply(message)
        if message.cursor:
            self.cursor = message.cursor
        return message

    def apply(self, message):
        if message.WhichOneof("what") != "event":
            return
        kind = message.event.WhichOneof("event")
        event = getattr(message.event, kind)
        name = (event.key.worker, event.key.rank)
        if kind == "gone":
            self.ranks.pop(name, None)
            return
        rank = self.ranks.setdefault(name, Rank())
        if kind == "snapshot_begin":
            rank.held.clear()
        elif kind == "snapshot_part":
            for run in event.runs:
                rank.change(run, self.events)
        elif kind == "delta":
            for change in event.changes:
                if change.WhichOneof("change") in ("cleared", "reset"):
                    rank.held.clear()
                elif change.WhichOneof("change") == "run":
                    rank.change(change.run, self.events)
        if kind == "snapshot_end" or (kind == "delta" and not event.goes_on):
            rank.sequence = event.at.sequence if event.at.HasField("sequence") else None

    def until(self, worker, rank, sequence):
        name = (worker, int(rank))
        while name not in self.ranks or self.ranks[name].sequence != int(sequence):
            self.next()
        held = sorted([prefix, tier] for prefix, tier in self.ranks[name].held)
        return {"blocks": held}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", default="")
    parser.add_argument("--proto", type=pathlib.Path, default=ROOT / "proto")
    arguments = parser.parse_args()
    watcher = Watcher(arguments.server, arguments.model, arguments.proto)
    print(json.dumps(watcher.watch()), flush=True)
    for line in sys.stdin:
        command, *words = line.split()
        try:
            answer = watcher.until(*words) if command == "until" else watcher.watch()
        except (grpc.RpcError, queue.Empty) as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
