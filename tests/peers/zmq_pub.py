"""A libzmq peer that tests control by lines on standard input; each command is answered by one line.

    zmq_pub.py (pub|xpub|router) (bind|connect) ENDPOINT [--heartbeat MS] [--replay N SIZE] [--mute]

The first line it prints is where it is bound (or connected). Commands:

    send HEX...      sends one message of these frames, `-` for an empty one                  -> sent
    flood N SIZE     sends N messages [empty][sequence from 0][SIZE bytes]                    -> sent
    subscribed       xpub: waits for the next subscription                                    -> its topic in hex, or `-`
    exit             closes and ends                                                          -> closed

A router answers replay requests by itself, as engines do: N batches, then the end marker; --mute answers nothing.
"""

import argparse
import sys
import threading

import zmq

TYPES = {"pub": zmq.PUB, "xpub": zmq.XPUB, "router": zmq.ROUTER}
END = b"\xff" * 8


def say(line):
    print(line, flush=True)


def unhex(word):
    return b"" if word == "-" else bytes.fromhex(word)


def sequence(number):
    return number.to_bytes(8, "big")


def serve_replays(socket, batches, size, mute):
    payload = b"p" * size
    while True:
        client, empty, start = socket.recv_multipart()
        assert empty == b"", "a DEALER sends an empty delimiter first"
        if mute:
            continue
        for number in range(int.from_bytes(start, "big"), batches):
            socket.send_multipart([client, b"", b"kv", sequence(number), payload])
        socket.send_multipart([client, b"", b"", END, b""])


def obey(socket):
    for line in sys.stdin:
        command, *words = line.split()
        if command == "send":
            socket.send_multipart([unhex(word) for word in words])
            say("sent")
        elif command == "flood":
            count, size = map(int, words)
            payload = b"p" * size
            for number in range(count):
                socket.send_multipart([b"", sequence(number), payload])
            say("sent")
        elif command == "subscribed":
            while not (message := socket.recv()).startswith(b"\x01"):
                pass
            say(message[1:].hex() or "-")
        elif command == "exit":
            socket.close(linger=0)
            say("closed")
            return
        else:
            sys.exit(f"unknown command {command}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("type", choices=TYPES)
    parser.add_argument("side", choices=["bind", "connect"])
    parser.add_argument("endpoint")
    parser.add_argument("--heartbeat", type=int, metavar="MS")
    parser.add_argument("--replay", type=int, nargs=2, default=[0, 0], metavar=("N", "SIZE"))
    parser.add_argument("--mute", action="store_true")
    arguments = parser.parse_args()

    socket = zmq.Context.instance().socket(TYPES[arguments.type])
    # Nothing is lost on this side, so what a test counts is what the other side did.
    socket.sndhwm = 0
    socket.linger = 0
    socket.ipv6 = True
    if arguments.type == "xpub":
        # Every subscriber is seen, not only the first of a topic.
        socket.setsockopt(zmq.XPUB_VERBOSE, 1)
    if arguments.heartbeat:
        socket.setsockopt(zmq.HEARTBEAT_IVL, arguments.heartbeat)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * arguments.heartbeat)
        socket.setsockopt(zmq.HEARTBEAT_TTL, 3 * arguments.heartbeat)
    if arguments.side == "bind":
        socket.bind(arguments.endpoint)
        say(socket.last_endpoint.decode().rstrip("\0"))
    else:
        socket.reconnect_ivl = 20
        socket.connect(arguments.endpoint)
        say(arguments.endpoint)
    if arguments.type == "router":
        replays = threading.Thread(target=serve_replays, args=(socket, *arguments.replay, arguments.mute), daemon=True)
        replays.start()
        sys.stdin.read()
    else:
        obey(socket)


main()
