"""A router in another language: asks kvtap over gRPC with grpcio, from stubs made of the published proto files.

    grpc_router.py --server ADDR [--stream] [--proto DIR] [--tls-ca FILE] [--tls-cert FILE --tls-key FILE] [--token-file FILE]

ADDR is `host:port` or `unix:///path`. Each line of standard input is one query, a JSON object:

    {"model": M, "tokens": [1, 2, 3], "lora": L, "salt": S, "extra_keys": [HEX, ...], "workers": [...], "block_size": N}

of which only `model` and `tokens` are needed; `content_hashes` or `prefix_hashes` may stand in for `tokens`, and
`"packed": false` sends numbers one by one instead of raw bytes. `{"list": true}` lists the workers instead. One JSON object a
line comes back:

    {"model": M, "grids": [{"block_size": N, "blocks": N}], "workers": [{"worker": W, "rank": R, "matched_blocks": N, ...}]}
    {"error": "INVALID_ARGUMENT", "message": "..."}

With `--stream` all queries go over one `MatchStream` call. With `--tls-ca` the channel is TLS, with `--tls-cert` and `--tls-key` it
shows a certificate; with `--token-file` each call carries a bearer token.
"""

import argparse
import json
import pathlib
import struct
import sys

import grpc

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
import stubs  # noqa: E402


class Router:
    """The stubs and one channel."""

    def __init__(self, server, proto, credentials=None, token=None):
        files = ("kvtap/v1/worker.proto", "kvtap/v1/query_service.proto")
        (self.workers, _), (self.messages, services) = stubs.load(proto, *files)
        channel = grpc.secure_channel(server, credentials) if credentials else grpc.insecure_channel(server)
        self.stub = services.QueryServiceStub(channel)
        self.metadata = [("authorization", f"Bearer {token}")] if token else []

    def request(self, query):
        request = self.messages.MatchRequest(
            model=query["model"],
            lora_name=query.get("lora") or "",
            cache_salt=query.get("salt") or "",
            workers=query.get("workers", []),
            block_size=query.get("block_size", 0),
            extra_keys=[bytes.fromhex(keys) for keys in query.get("extra_keys", [])],
        )
        packed = query.get("packed", True)
        if "tokens" in query and packed:
            request.tokens_le = struct.pack(f"<{len(query['tokens'])}I", *query["tokens"])
        elif "tokens" in query:
            # An empty list is a prompt too: the field must be there.
            request.tokens.SetInParent()
            request.tokens.ids.extend(query["tokens"])
        for form in ("content_hashes", "prefix_hashes"):
            if form in query and packed:
                setattr(request, f"{form}_le", struct.pack(f"<{len(query[form])}Q", *query[form]))
            elif form in query:
                getattr(request, form).SetInParent()
                getattr(request, form).hashes.extend(query[form])
        return request

    def state(self, number):
        return self.workers.FeedState.Name(number).removeprefix("FEED_STATE_").lower()

    def answer(self, response):
        """A `MatchResponse` as plain data."""
        grids = [{"block_size": use.grid.block_size, "blocks": use.blocks} for use in response.grids]
        return {"model": response.model, "grids": grids, "workers": [self.match(match) for match in response.matches]}

    def match(self, match):
        who = match.worker_rank
        return {
            "worker": who.worker,
            "rank": who.rank,
            "address": who.address,
            "names": list(who.aliases),
            "matched_blocks": match.matched_blocks,
            "matched_tokens": match.matched_tokens,
            "device_blocks": match.device_blocks,
            "held_blocks": match.held_blocks,
            "state": self.state(match.state),
            "why": match.why,
            "epoch": match.epoch,
            "last_seq": match.last_seq if match.HasField("last_seq") else None,
            "age_ms": match.age_ms if match.HasField("age_ms") else None,
            "block_size": match.grid.block_size if match.HasField("grid") else None,
        }

    def report(self, report):
        """A `RankReport` as plain data."""
        who = report.worker_rank
        return {
            "worker": who.worker,
            "model": who.model,
            "rank": who.rank,
            "state": self.state(report.state),
            "why": report.why,
            "epoch": report.epoch,
            "last_seq": report.last_seq if report.HasField("last_seq") else None,
            "blocks": report.blocks,
            "block_size": report.grid.block_size if report.HasField("grid") else None,
            "gaps": report.gaps,
            "replays": dict(report.replays),
            "dropped": dict(report.dropped),
            "orphans": report.orphans,
        }

    def ask(self, query):
        try:
            if query.get("list"):
                response = self.stub.ListWorkers(self.messages.ListWorkersRequest(), timeout=30, metadata=self.metadata)
                return {"workers": [self.report(report) for report in response.workers]}
            return self.answer(self.stub.Match(self.request(query), timeout=30, metadata=self.metadata))
        except grpc.RpcError as error:
            return {"error": error.code().name, "message": error.details()}

    def ask_all(self, queries):
        """The same over one stream; answers come in the order of the queries."""

        def requests():
            for number, query in enumerate(queries):
                yield self.messages.MatchStreamRequest(id=number, request=self.request(query))

        codes = {code.value[0]: code.name for code in grpc.StatusCode}
        try:
            for number, reply in enumerate(self.stub.MatchStream(requests(), metadata=self.metadata)):
                if reply.id != number:
                    sys.exit(f"answer {number} came with the id {reply.id}")
                if reply.HasField("failure"):
                    yield {"error": codes[reply.failure.code], "message": reply.failure.message}
                else:
                    yield self.answer(reply.response)
        except grpc.RpcError as error:
            yield {"error": error.code().name, "message": error.details()}


def credentials_of(options):
    """What the channel is secured with, if it is."""
    read = lambda path: path.read_bytes() if path else None
    if options.tls_ca:
        return grpc.ssl_channel_credentials(read(options.tls_ca), read(options.tls_key), read(options.tls_cert))
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="host:port or unix:///path")
    parser.add_argument("--stream", action="store_true", help="ask over one MatchStream call")
    parser.add_argument("--proto", type=pathlib.Path, default=ROOT / "proto", help="the folder of proto files")
    for file in ("--tls-ca", "--tls-cert", "--tls-key", "--token-file"):
        parser.add_argument(file, type=pathlib.Path, help="a file")
    options = parser.parse_args()
    token = options.token_file.read_text().strip() if options.token_file else None
    queries = (json.loads(line) for line in sys.stdin if line.strip())
    router = Router(options.server, options.proto, credentials_of(options), token)
    answers = router.ask_all(queries) if options.stream else map(router.ask, queries)
    for answer in answers:
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
