"""An engine made of a capture: publishes recorded messages over libzmq, step by step, and replays them on request.

    capture_pub.py FILE [--topic T] [--renumber] [--layout plain|topic] [--buffer N]

FILE holds one JSON object a line. Lines with `frames_hex` (three frames: topic, sequence, payload) are messages; of a
file whose lines have a `type`, only `message` lines are, `request` lines are prompts with the engine's own count, and
`replay_message` lines are history that was published while nobody listened.

Both sockets are bound to free ports of 127.0.0.1. One JSON object a line goes to standard output, first
`{"pub": PORT, "replay": PORT, "messages": N}`, then one for each command read from standard input:

    subscribers N   waits until just N subscriptions are open       {"subscribers": N}
    next N          publishes the next N messages                {"published": N, "last_seq": S, "left": M}
    skip N          the same, but only a replay shows them       {"published": 0, "last_seq": S, "left": M}
    all             publishes what is left                       {"published": N, "last_seq": S, "left": 0}
    request         publishes up to the next `request` line      {"published": N, ..., "request": {...} or null}
    replays         how many replays were asked for so far       {"replays": N, "starts": [...]}
    quit            ends, like the end of standard input
"""

import argparse
import collections
import json
import os
import sys

import zmq

END = b"\xff" * 8


def read_steps(path, renumber, topic):
    """The capture as a list of ("message", topic, seq, payload) and ("request", line), and the unseen history."""
    steps, unseen, count = [], {}, 0
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            entry = json.loads(line)
            kind = entry.get("type", "message" if "frames_hex" in entry else None)
            if kind == "request":
                steps.append(("request", entry))
            elif kind == "message" and len(entry["frames_hex"]) == 3:
                recorded, seq, payload = (bytes.fromhex(frame) for frame in entry["frames_hex"])
                number = count if renumber else int.from_bytes(seq, "big")
                steps.append(("message", recorded if topic is None else topic.encode(), number, payload))
                count += 1
            elif kind == "replay_message" and not entry["end"]:
                seq, payload = (bytes.fromhex(frame) for frame in entry["frames_hex"][-2:])
                unseen[int.from_bytes(seq, "big")] = payload
    return steps, unseen


class Engine:
    """The two sockets, and how far the capture has come."""

    def __init__(self, options):
        self.steps, self.unseen = read_steps(options.file, options.renumber, options.topic)
        self.at = 0
        self.layout = options.layout
        self.history = collections.deque(maxlen=options.buffer)
        self.last_seq = None
        self.subscribers = 0
        self.starts = []
        context = zmq.Context()
        # XPUB is PUB that also tells who subscribed. Nothing may be dropped on this side: losses are for tests to make.
        self.pub = context.socket(zmq.XPUB)
        self.pub.setsockopt(zmq.XPUB_VERBOSER, 1)
        self.replay = context.socket(zmq.ROUTER)
        for socket in (self.pub, self.replay):
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.LINGER, 0)
        self.ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in (self.pub, self.replay)]

    def left(self):
        return sum(step[0] == "message" for step in self.steps[self.at :])

    def publish(self, message, live):
        _, topic, seq, payload = message
        for number in sorted(number for number in self.unseen if number <= seq):
            earlier = self.unseen.pop(number)
            if number < seq and (self.last_seq is None or number > self.last_seq):
                self.history.append((topic, number, earlier))
        self.history.append((topic, seq, payload))
        self.last_seq = seq
        if live:
            self.pub.send_multipart([topic, seq.to_bytes(8, "big"), payload])

    def advance(self, count=None, live=True, to_request=False):
        """Publishes `count` messages, or all, or those before the next request, which is returned."""
        published = 0
        while self.at < len(self.steps) and published != count:
            step = self.steps[self.at]
            self.at += 1
            if step[0] == "message":
                self.publish(step, live)
                published += 1
            elif to_request:
                return published, step[1]
        return published, None

    def notice_subscription(self):
        notice = self.pub.recv()
        if notice[:1] in (b"\x00", b"\x01"):
            self.subscribers += 1 if notice[0] else -1

    def serve_replay(self):
        frames = self.replay.recv_multipart()
        if len(frames) != 3 or frames[1]:
            return  # Engines do not answer what they do not understand.
        peer, start = frames[0], int.from_bytes(frames[2], "big")
        self.starts.append(start)
        for topic, seq, payload in self.history:
            if seq >= start:
                self.reply(peer, topic, seq.to_bytes(8, "big"), payload)
        self.reply(peer, b"", END, b"")

    def reply(self, peer, topic, seq, payload):
        middle = [topic] if self.layout == "topic" else []
        self.replay.send_multipart([peer, b"", *middle, seq, payload])


def say(**fields):
    print(json.dumps(fields), flush=True)


def run(engine):
    """Obeys one command after the other; sockets are served meanwhile."""
    commands, partial, waiting_for = collections.deque(), b"", None
    poller = zmq.Poller()
    stdin = sys.stdin.fileno()
    for source in (engine.pub, engine.replay, stdin):
        poller.register(source, zmq.POLLIN)
    while True:
        ready = dict(poller.poll())
        if engine.pub in ready:
            engine.notice_subscription()
        if engine.replay in ready:
            engine.serve_replay()
        if stdin in ready:
            data = os.read(stdin, 1 << 16)
            if not data:
                return
            *lines, partial = (partial + data).split(b"\n")
            commands.extend(line.decode().split() for line in lines if line.strip())
        while True:
            if waiting_for is not None:
                if engine.subscribers != waiting_for:
                    break
                say(subscribers=engine.subscribers)
                waiting_for = None
            if not commands:
                break
            verb, *words = commands.popleft()
            if verb == "quit":
                return
            if verb == "subscribers":
                waiting_for = int(words[0])
            elif verb in ("next", "skip"):
                published, _ = engine.advance(int(words[0]), live=verb == "next")
                shown = published if verb == "next" else 0
                say(published=shown, last_seq=engine.last_seq, left=engine.left())
            elif verb == "all":
                published, _ = engine.advance()
                say(published=published, last_seq=engine.last_seq, left=engine.left())
            elif verb == "request":
                published, request = engine.advance(to_request=True)
                say(published=published, last_seq=engine.last_seq, left=engine.left(), request=request)
            elif verb == "replays":
                say(replays=len(engine.starts), starts=engine.starts)
            else:
                say(error=f"no such command: {verb}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="the capture, one JSON object a line")
    parser.add_argument("--topic", help="publish under this topic, not the recorded one")
    parser.add_argument("--renumber", action="store_true", help="count sequences from 0, not as recorded")
    parser.add_argument("--layout", choices=["plain", "topic"], default="plain", help="replay replies without or with a topic frame")
    parser.add_argument("--buffer", type=int, default=10_000, help="messages that a replay reaches back")
    engine = Engine(parser.parse_args())
    say(pub=engine.ports[0], replay=engine.ports[1], messages=engine.left())
    run(engine)


if __name__ == "__main__":
    main()
