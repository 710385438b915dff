"""An endpoint picker for Envoy: an external processor that sends each request to the worker with the least left to do.

    endpoint_picker.py --listen HOST:PORT --server HOST:PORT

Envoy (or a Gateway API implementation) streams each request to it. From the body it takes `model` and, where `prompt` is a list of token
ids, the prompt; the candidates are what the gateway offers in the metadata `envoy.lb.subset_hint`. The answer is the header, and the
metadata under `envoy.lb`, `x-gateway-destination-endpoint: IP:PORT`. Without candidates the request is refused with 503.

kvtap must know its workers by the gateway's `ip:port`: as `address`, or among their `names`.
"""

import argparse
import json
import pathlib
from concurrent import futures

import grpc
import stubs
from router import Router

DESTINATION = "x-gateway-destination-endpoint"
SUBSET = "x-gateway-destination-endpoint-subset"

(messages, services), = stubs.load(pathlib.Path(__file__).resolve().parent, "ext_proc.proto")


def candidates_of(request):
    """What the gateway offers, as `ip:port`s."""
    hint = request.metadata_context.filter_metadata.get("envoy.lb.subset_hint")
    if hint is None or SUBSET not in hint:
        return []
    offered = hint[SUBSET]
    return offered.split(",") if isinstance(offered, str) else list(offered)


def prompt_of(body):
    """The model of a request, and its prompt where that is token ids."""
    try:
        request = json.loads(body)
    except ValueError:
        return "", []
    prompt = request.get("prompt") if isinstance(request, dict) else None
    ids = isinstance(prompt, list) and all(isinstance(token, int) and 0 <= token < 1 << 32 for token in prompt)
    return (str(request.get("model", "")), prompt if ids else []) if isinstance(request, dict) else ("", [])


class Picker(services.ExternalProcessorServicer):
    """One router for each model."""

    def __init__(self, server):
        self.server, self.routers = server, {}

    def pick(self, model, tokens, candidates):
        router = self.routers.setdefault(model, Router(self.server, model, []))
        name, _ = router.pick(tokens, candidates)
        return router, name

    def Process(self, requests, context):
        candidates, body, given = [], b"", None
        try:
            for request in requests:
                candidates = candidates_of(request) or candidates
                kind = request.WhichOneof("request")
                if kind == "request_headers":
                    # Without a body there is no prompt to go by.
                    if request.request_headers.end_of_stream:
                        given = self.pick("", [], candidates) + (0,) if candidates else None
                        yield self.answer("request_headers", given)
                    else:
                        yield messages.ProcessingResponse(request_headers=messages.HeadersResponse())
                elif kind == "request_body":
                    body += request.request_body.body
                    if not request.request_body.end_of_stream:
                        yield messages.ProcessingResponse(request_body=messages.BodyResponse())
                        continue
                    model, tokens = prompt_of(body)
                    given = self.pick(model, tokens, candidates) + (len(tokens),) if candidates else None
                    yield self.answer("request_body", given)
                elif kind == "response_headers":
                    yield messages.ProcessingResponse(response_headers=messages.HeadersResponse())
                elif kind == "response_body":
                    yield messages.ProcessingResponse(response_body=messages.BodyResponse())
        finally:
            # The stream lives as long as the request: the worker is free again.
            if given:
                router, name, tokens = given
                router.done(name, tokens)

    def answer(self, kind, given):
        if given is None:
            refusal = messages.ImmediateResponse(status=messages.HttpStatus(code=503), body=b"no endpoint is offered\n")
            return messages.ProcessingResponse(immediate_response=refusal)
        _, name, _ = given
        header = messages.HeaderValue(key=DESTINATION, raw_value=name.encode())
        mutation = messages.HeaderMutation(set_headers=[messages.HeaderValueOption(header=header)])
        common = messages.CommonResponse(header_mutation=mutation, clear_route_cache=True)
        of_kind = messages.HeadersResponse if kind == "request_headers" else messages.BodyResponse
        response = messages.ProcessingResponse(**{kind: of_kind(response=common)})
        response.dynamic_metadata.update({"envoy.lb": {DESTINATION: name}})
        return response


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listen", required=True, help="HOST:PORT; port 0 is any free one, which is printed")
    parser.add_argument("--server", required=True, help="kvtap, HOST:PORT")
    options = parser.parse_args()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=64))
    services.add_ExternalProcessorServicer_to_server(Picker(options.server), server)
    port = server.add_insecure_port(options.listen)
    server.start()
    print(json.dumps({"listening": f"{options.listen.rsplit(':', 1)[0]}:{port}"}), flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
