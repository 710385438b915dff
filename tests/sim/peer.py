"""A libzmq peer for the publisher's tests: one JSON command a line in, one JSON answer a line out."""

import json
import sys
import time

import zmq

END = b"\xff" * 8
PATIENCE_MS = 10_000

context = zmq.Context()
subscriber = None


def hexed(frames):
    return [frame.hex() for frame in frames]


def bind(socket, endpoint):
    """libzmq gives a closed socket's port back in its own time."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while True:
        try:
            return socket.bind(endpoint)
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE or time.monotonic() > deadline:
                raise


def subscribe(command):
    global subscriber
    if subscriber is not None:
        subscriber.close(linger=0)
    subscriber = context.socket(zmq.SUB)
    subscriber.setsockopt(zmq.RCVHWM, 0)
    subscriber.setsockopt(zmq.RECONNECT_IVL, 20)
    subscriber.subscribe(command["topic"].encode())
    if command.get("bind"):
        bind(subscriber, command["endpoint"])
    else:
        subscriber.connect(command["endpoint"])
    return subscriber.getsockopt_string(zmq.LAST_ENDPOINT)


def receive(command):
    """Everything that arrives until nothing has for `quiet_ms`."""
    messages = []
    while subscriber.poll(command["quiet_ms"]):
        messages.append(hexed(subscriber.recv_multipart()))
    return messages


def request(command):
    """Sends each request on one socket and returns what comes back up to the last request's end marker."""
    socket = context.socket(getattr(zmq, command["socket"]))
    socket.connect(command["endpoint"])
    for frames in command["requests"]:
        socket.send_multipart([bytes.fromhex(frame) for frame in frames])
    replies = []
    while True:
        if not socket.poll(PATIENCE_MS):
            raise SystemExit("no reply")
        frames = socket.recv_multipart()
        replies.append(hexed(frames))
        if command["socket"] == "REQ" or (len(frames) >= 2 and frames[-2] == END):
            break
    socket.close(linger=0)
    return replies


for line in sys.stdin:
    command = json.loads(line)
    answer = {"subscribe": subscribe, "receive": receive, "request": request}[command["op"]](command)
    print(json.dumps(answer), flush=True)
