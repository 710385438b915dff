"""An operator's tool in another language: asks an Admin service with grpcio, from stubs made of the published proto files.

    admin_rpc.py ADDR

One call a line of standard input, `METHOD JSON`, the request in protobuf's JSON form; one line of JSON for each:
`{"ok": ANSWER}`, or `{"failed": CODE, "message": TEXT}`. `services` asks reflection which services there are.
"""

import json
import pathlib
import sys

import grpc
from google.protobuf import json_format

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
import stubs  # noqa: E402

REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


def services(channel):
    """The names, as reflection sends them: `list_services` is field 7, a name in the answer begins with its package."""
    ask = channel.stream_stream(REFLECTION, request_serializer=bytes, response_deserializer=bytes)
    answer = next(iter(ask(iter([b"\x3a\x00"]))))
    return answer.decode("latin-1")


def main():
    ((messages, made),) = stubs.load(ROOT / "proto", "kvtap/v1/admin.proto")
    channel = grpc.insecure_channel(sys.argv[1])
    stub = made.AdminServiceStub(channel)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        name, _, text = line.strip().partition(" ")
        try:
            if name == "services":
                answer = services(channel)
            else:
                request = json_format.Parse(text or "{}", getattr(messages, f"{name}Request")())
                answer = getattr(stub, name)(request, timeout=30)
                answer = json_format.MessageToDict(answer, preserving_proto_field_name=True)
            print(json.dumps({"ok": answer}), flush=True)
        except grpc.RpcError as error:
            print(json.dumps({"failed": error.code().name, "message": error.details()}), flush=True)


main()
