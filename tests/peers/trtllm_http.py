"""TensorRT-LLM's event endpoint, controlled by lines on standard input; each command is answered by one line.

    trtllm_http.py [PORT]

The first line it prints is its port on 127.0.0.1. `GET /kv_cache_events` is answered with the events since the last
answer, at most the newest of the buffer's size. Each rank numbers its events from 0. Commands:

    store RANK N     N more blocks of the prompt 0, 1, 2, .. (four tokens each), one event a block; rank `-` names none
    buffer N         events that wait for an answer; older ones are dropped
    restart          another life: numbers from 0, nothing stored, nothing waits
    status CODE      the next answer is this, and takes nothing away
    cut              the next answer takes its events away and breaks off in the middle
    junk             the next answer is no JSON
    hang up          closes every connection that waits for its next question
    polls            -> how many questions came on how many connections
"""

import http.server
import json
import socket
import sys
import threading

LOCK = threading.Lock()


class Engine:
    def __init__(self):
        self.size = 1000
        self.restart()
        self.next = None
        self.polls = 0
        self.connections = []

    def restart(self):
        self.waiting, self.stored, self.ids = [], {}, {}

    def store(self, rank, count):
        for _ in range(count):
            block = self.stored.get(rank, 0)
            self.stored[rank] = block + 1
            tokens = [{"type": "unique_token", "token_id": t, "token_extra_id": 0} for t in range(4 * block, 4 * block + 4)]
            stored = {"type": "stored_block", "block_hash": 100 + block, "tokens": tokens, "cache_level": 0, "priority": 35}
            parent = 99 + block if block else None
            self.event(rank, {"type": "stored", "parent_hash": parent, "blocks": [stored]})

    def event(self, rank, data):
        number = self.ids.get(rank, 0)
        self.ids[rank] = number + 1
        event = {"event_id": number, "data": data, "window_size": 4096}
        if rank != "-":
            event["attention_dp_rank"] = int(rank)
        self.waiting = [*self.waiting, event][-self.size :]

    def drain(self):
        events, self.waiting = self.waiting, []
        return json.dumps(events).encode()


ENGINE = Engine()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        with LOCK:
            ENGINE.connections.append(self.connection)

    def do_GET(self):
        with LOCK:
            ENGINE.polls += 1
            special, ENGINE.next = ENGINE.next, None
            if self.path != "/kv_cache_events":
                special = "404"
            if special in (None, "cut"):
                body = ENGINE.drain()
            else:
                body = b"no events here"
        self.send_response(int(special) if special and special.isdigit() else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if special == "cut":
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        else:
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def obey(line):
    command, *words = line.split()
    with LOCK:
        if command == "store":
            ENGINE.store(words[0], int(words[1]))
        elif command == "buffer":
            ENGINE.size = int(words[0])
        elif command == "restart":
            ENGINE.restart()
        elif command == "status":
            ENGINE.next = words[0]
        elif command in ("cut", "junk"):
            ENGINE.next = command
        elif command == "hang":
            for connection in ENGINE.connections:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # It has ended already.
        elif command == "polls":
            return f"{ENGINE.polls} {len(ENGINE.connections)}"
        else:
            sys.exit(f"unknown command {command}")
    return "done"


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # A connection that the other side, or a command, closed.


def main():
    server = Server(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    for line in sys.stdin:
        print(obey(line), flush=True)


main()
