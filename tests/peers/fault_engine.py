"""The sockets of many engines, on libzmq: what they publish, and the replays they serve, is said on standard input.

Each line is `SERIAL VERB ENGINE ARGUMENTS...`, answered by `SERIAL ANSWER`. An engine is any word. Verbs:

    open E LIVE REPLAY HWM      binds a PUB (`*`), or connects it to LIVE, and binds a ROUTER if REPLAY is 1
                                                                                -> the port of each, `-` for none
    close E                     closes both, with whatever they had not sent; what was kept for replays stays
    forget E                    forgets what was kept: the process has died
    say E COPIES KEEP N HEX     publishes message N so often, and keeps it for replays if KEEP is 1
    junk E HEX...               publishes these frames as they are
    limit E COUNT               keeps no more than so many messages, the newest; 0 for all
    replays E TIMES MODE COUNT  how the next so many requests are answered:
                                mute  not at all            noend   without the end marker
                                short COUNT replies, then the end marker: the rest was lost
                                cut   COUNT replies, then nothing more
                                holes every COUNTth reply is lost
                                slow  COUNT milliseconds between replies
                                junk  a reply of wrong frames goes before each
    pending E                   how many requests are still to be answered in that way     -> the number
"""

import heapq
import os
import sys
import time

import zmq

END = b"\xff" * 8


def unhex(word):
    return b"" if word == "-" else bytes.fromhex(word)


class Engine:
    def __init__(self):
        self.live = self.replay = None
        self.kept = {}
        self.limit = 0
        self.mode = (0, "all", 0)

    def open(self, live, replay, hwm):
        self.live = context.socket(zmq.PUB)
        self.live.linger = 0
        self.live.sndhwm = int(hwm)
        # Little room outside of the socket's own queue, so that a reader that pauses loses messages.
        self.live.sndbuf = 8192
        self.live.reconnect_ivl = 10
        if live == "*":
            ports = [str(self.live.bind_to_random_port("tcp://127.0.0.1"))]
        else:
            self.live.connect(live)
            ports = ["-"]
        if replay == "1":
            self.replay = context.socket(zmq.ROUTER)
            self.replay.linger = 0
            ports.append(str(self.replay.bind_to_random_port("tcp://127.0.0.1")))
            poller.register(self.replay, zmq.POLLIN)
            routers[self.replay] = self
        else:
            ports.append("-")
        return " ".join(ports)

    def close(self):
        if self.live:
            self.live.close(linger=0)
        if self.replay:
            poller.unregister(self.replay)
            del routers[self.replay]
            self.replay.close(linger=0)
        self.live = self.replay = None
        return "closed"

    def forget(self):
        self.kept.clear()
        return "forgotten"

    def say(self, copies, keep, number, payload):
        number, payload = int(number), unhex(payload)
        if keep == "1":
            self.kept[number] = payload
            while self.limit and len(self.kept) > self.limit:
                del self.kept[next(iter(self.kept))]
        for _ in range(int(copies)):
            if self.live:
                self.live.send_multipart([b"", number.to_bytes(8, "big"), payload])
        return "said"

    def junk(self, *frames):
        if self.live:
            self.live.send_multipart([unhex(frame) for frame in frames])
        return "said"

    def limit_to(self, count):
        self.limit = int(count)
        return "limited"

    def replays(self, times, mode, count):
        self.mode = (int(times), mode, int(count))
        return "noted"

    def pending(self):
        return str(self.mode[0])

    def answer(self):
        client, _, start = self.replay.recv_multipart()
        times, mode, count = self.mode
        if times:
            self.mode = (times - 1, mode, count)
        else:
            mode, count = "all", 0
        start = int.from_bytes(start, "big")
        replies = [[number.to_bytes(8, "big"), payload] for number, payload in self.kept.items() if number >= start]
        if mode in ("short", "cut"):
            replies = replies[:count]
        elif mode == "holes":
            replies = [reply for n, reply in enumerate(replies, 1) if n % count]
        elif mode == "junk":
            replies = [frames for reply in replies for frames in ([b"junk"], reply)]
        elif mode == "mute":
            replies = []
        if mode not in ("mute", "cut", "noend"):
            replies.append([END, b""])
        due = time.monotonic()
        for reply in replies:
            frames = [client, b"", b"kv", *reply]
            if mode == "slow":
                due += count / 1000
                heapq.heappush(later, (due, id(frames), self.replay, frames))
            else:
                self.replay.send_multipart(frames)


context = zmq.Context.instance()
poller = zmq.Poller()
routers = {}
engines = {}
later = []
VERBS = {
    "open": Engine.open, "close": Engine.close, "forget": Engine.forget, "say": Engine.say, "junk": Engine.junk,
    "limit": Engine.limit_to, "replays": Engine.replays, "pending": Engine.pending,
}  # fmt: skip


def obey(line):
    serial, verb, name, *arguments = line.split()
    answer = VERBS[verb](engines.setdefault(name, Engine()), *arguments)
    return f"{serial} {answer}\n"


def main():
    commands = sys.stdin.fileno()
    poller.register(commands, zmq.POLLIN)
    rest = b""
    while True:
        wait = max(0, later[0][0] - time.monotonic()) * 1000 if later else None
        ready = dict(poller.poll(wait))
        while later and later[0][0] <= time.monotonic():
            _, _, router, frames = heapq.heappop(later)
            if not router.closed:
                router.send_multipart(frames)
        for router in [router for router in ready if router in routers]:
            routers[router].answer()
        if commands in ready:
            came = os.read(commands, 1 << 20)
            if not came:
                return
            *lines, rest = (rest + came).split(b"\n")
            sys.stdout.write("".join(obey(line.decode()) for line in lines))
            sys.stdout.flush()


main()
