"""What SMG's gateway reads: subscribes with that project's own message definitions and tells each batch.

    smg_gateway.py --server ADDR --engine vllm|sglang|trtllm|tokenspeed [--worker NAME] [--after SEQUENCE]

One JSON object a line for each batch, then one for the end: `{"ended": CODE}`.
"""

import argparse
import importlib
import json

import grpc
from smg_grpc_proto.generated import common_pb2

STUBS = {
    "vllm": ("vllm_engine_pb2_grpc", "VllmEngineStub"),
    "sglang": ("sglang_scheduler_pb2_grpc", "SglangSchedulerStub"),
    "trtllm": ("trtllm_service_pb2_grpc", "TrtllmServiceStub"),
    "tokenspeed": ("tokenspeed_scheduler_pb2_grpc", "TokenSpeedSchedulerStub"),
}


def optional(message, field):
    return getattr(message, field) if message.HasField(field) else None


def told(event):
    kind = event.WhichOneof("data")
    data = getattr(event, kind)
    if kind == "stored":
        blocks = [[b.block_hash, list(b.token_ids), b.block_size, optional(b, "cache_level")] for b in data.blocks]
        return {"stored": blocks, "parent": optional(data, "parent_block_hash")}
    if kind == "removed":
        return {"removed": list(data.block_hashes), "level": optional(data, "cache_level")}
    return {kind: True}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--engine", choices=STUBS, required=True)
    parser.add_argument("--worker")
    parser.add_argument("--after", type=int, default=0)
    arguments = parser.parse_args()
    module, stub = STUBS[arguments.engine]
    stub = getattr(importlib.import_module(f"smg_grpc_proto.generated.{module}"), stub)(
        grpc.insecure_channel(arguments.server)
    )
    metadata = [("kvtap-worker", arguments.worker)] if arguments.worker else []
    request = common_pb2.SubscribeKvEventsRequest(start_sequence_number=arguments.after)
    try:
        for batch in stub.SubscribeKvEvents(request, metadata=metadata):
            chunk = batch.snapshot
            line = {"sequence": batch.sequence_number, "events": [told(event) for event in batch.events]}
            if batch.HasField("snapshot"):
                line["snapshot"] = [chunk.index, chunk.count, chunk.blocks, chunk.unknown_before]
            print(json.dumps(line), flush=True)
        print(json.dumps({"ended": "OK"}), flush=True)
    except grpc.RpcError as error:
        print(json.dumps({"ended": error.code().name}), flush=True)


if __name__ == "__main__":
    main()
