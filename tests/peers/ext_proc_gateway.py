"""A gateway, as far as an endpoint picker sees one: streams requests to it the way Envoy does.

    ext_proc_gateway.py --picker HOST:PORT

Each line of standard input is one request, `{"body": {...}, "candidates": ["ip:port", ...]}`; the body goes in two pieces. A line comes
back: `{"endpoint": "ip:port", "metadata": "ip:port"}`, or `{"status": 503}`.
"""

import argparse
import json
import pathlib
import sys

import grpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
import stubs  # noqa: E402

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
(messages, services), = stubs.load(EXAMPLES, "ext_proc.proto")


def requests_of(query):
    headers = messages.ProcessingRequest(request_headers=messages.HttpHeaders())
    if query["candidates"]:
        hint = headers.metadata_context.filter_metadata["envoy.lb.subset_hint"]
        hint.update({"x-gateway-destination-endpoint-subset": query["candidates"]})
    yield headers
    body = json.dumps(query["body"]).encode()
    half = len(body) // 2
    yield messages.ProcessingRequest(request_body=messages.HttpBody(body=body[:half]))
    yield messages.ProcessingRequest(request_body=messages.HttpBody(body=body[half:], end_of_stream=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picker", required=True)
    stub = services.ExternalProcessorStub(grpc.insecure_channel(parser.parse_args().picker))
    for line in sys.stdin:
        answer = {}
        for response in stub.Process(requests_of(json.loads(line))):
            if response.HasField("immediate_response"):
                answer["status"] = response.immediate_response.status.code
            elif response.HasField("request_body"):
                for option in response.request_body.response.header_mutation.set_headers:
                    answer["endpoint"] = option.header.raw_value.decode()
                if "envoy.lb" in response.dynamic_metadata:
                    answer["metadata"] = response.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
