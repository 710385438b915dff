"""One life of a libzmq engine: a publisher and its replay socket, controlled by lines on standard input.

    zmq_engine.py LIVE REPLAY

It binds both endpoints and prints `ready`. Each command is answered by one line:

    publish HEX      keeps the payload under the next sequence number, and sends it live      -> that number
    subscribed       waits for the next subscription                                          -> subscribed
    asked            the starts of the replays asked for so far                               -> numbers, or `-`
    exit             closes and ends                                                          -> closed
"""

import sys
import threading

import zmq

END = b"\xff" * 8


def say(line):
    print(line, flush=True)


def serve_replays(socket, kept, asked):
    while True:
        client, empty, start = socket.recv_multipart()
        assert empty == b"", "a DEALER sends an empty delimiter first"
        first = int.from_bytes(start, "big")
        asked.append(first)
        for number, payload in list(enumerate(kept))[first:]:
            socket.send_multipart([client, b"", b"kv", number.to_bytes(8, "big"), payload])
        socket.send_multipart([client, b"", b"", END, b""])


def main():
    live_at, replay_at = sys.argv[1:]
    context = zmq.Context.instance()
    live, replay = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
    for socket, endpoint in [(live, live_at), (replay, replay_at)]:
        socket.sndhwm = 0
        socket.linger = 0
        socket.bind(endpoint)
    live.setsockopt(zmq.XPUB_VERBOSE, 1)
    kept, asked = [], []
    threading.Thread(target=serve_replays, args=(replay, kept, asked), daemon=True).start()
    say("ready")
    for line in sys.stdin:
        command, *words = line.split()
        if command == "publish":
            number, payload = len(kept), bytes.fromhex(words[0])
            # Kept first: whoever hears it live can ask for it.
            kept.append(payload)
            live.send_multipart([b"kv", number.to_bytes(8, "big"), payload])
            say(number)
        elif command == "subscribed":
            while not live.recv().startswith(b"\x01"):
                pass
            say("subscribed")
        elif command == "asked":
            say(" ".join(map(str, asked)) or "-")
        elif command == "exit":
            live.close(linger=0)
            say("closed")
            return
        else:
            sys.exit(f"unknown command {command}")


main()
