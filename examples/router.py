"""A router: for each prompt, the worker that has the least left to do.

    router.py --server HOST:PORT --model M --worker NAME [--worker NAME ...]

Each line of standard input is a prompt, `{"tokens": [1, 2, 3]}`, or the end of a request, `{"done": NAME, "tokens": N}`, where N is
what the prompt had. For each prompt a line comes back: `{"worker": NAME, "address": A, "matched_tokens": N, "why": ...}`.

What a worker has left to do is what it has not yet computed of the prompts it was given, and of this prompt what its cache does not hold.
kvtap says what the cache holds and how far that can be trusted; a router that gets no answer in time goes by load alone.
"""

import argparse
import json
import struct
import sys

import grpc
import stubs

# How much of a match is believed, by the state of the feed it rests on. A live feed is exact; a degraded one understates; of an
# incomplete one removals may be missing; of the others nothing is known that is worth a detour.
TRUST = {"LIVE": 1.0, "DEGRADED": 1.0, "INCOMPLETE": 0.5, "REPLAYING": 0.5}


class Router:
    """Picks workers, and remembers what each was given."""

    def __init__(self, server, model, workers, deadline=0.05):
        self.query, services, self.states = stubs.kvtap()
        self.stub = services.QueryServiceStub(grpc.insecure_channel(server))
        self.model, self.deadline = model, deadline
        self.busy = {worker: 0 for worker in workers}

    def held(self, tokens, candidates):
        """What each candidate holds of a prompt, by the name it was asked for; empty where kvtap does not answer in time."""
        request = self.query.MatchRequest(
            model=self.model,
            tokens_le=struct.pack(f"<{len(tokens)}I", *tokens),
            workers=candidates,
            brief=True,
        )
        try:
            response = self.stub.Match(request, timeout=self.deadline)
        except grpc.RpcError as error:
            print(f"kvtap: {error.code().name}: {error.details()}", file=sys.stderr)
            return {}
        held = {}
        for match in response.matches:
            names = {match.worker_rank.worker, match.worker_rank.address, *match.worker_rank.aliases}
            for name in names.intersection(candidates):
                # Of a worker's ranks the deepest comes first.
                held.setdefault(name, match)
        return held

    def pick(self, tokens, candidates=None):
        """The candidate with the least left to do, as (name, match or None)."""
        candidates = candidates or list(self.busy)
        held = self.held(tokens, candidates)

        def left(name):
            match = held.get(name)
            state = self.states.Name(match.state).removeprefix("FEED_STATE_") if match else ""
            known = match.matched_tokens * TRUST.get(state, 0.0) if match else 0.0
            return self.busy.get(name, 0) + len(tokens) - known

        name = min(candidates, key=left)
        self.busy[name] = self.busy.get(name, 0) + len(tokens)
        return name, held.get(name)

    def done(self, name, tokens):
        """A request of so many tokens has ended."""
        self.busy[name] = max(0, self.busy.get(name, 0) - tokens)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="kvtap, HOST:PORT")
    parser.add_argument("--model", required=True)
    parser.add_argument("--worker", action="append", required=True, help="a worker by any of its names; may be repeated")
    parser.add_argument("--deadline", type=float, default=0.05, help="seconds that kvtap has for an answer")
    options = parser.parse_args()
    router = Router(options.server, options.model, options.worker, options.deadline)
    for line in sys.stdin:
        query = json.loads(line)
        if "done" in query:
            router.done(query["done"], query["tokens"])
            continue
        name, match = router.pick(query["tokens"])
        matched = match.matched_tokens if match else 0
        answer = {
            "worker": name,
            "address": match.worker_rank.address if match else "",
            "matched_tokens": matched,
            "why": "holds most of it for its load" if matched else "least busy",
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
