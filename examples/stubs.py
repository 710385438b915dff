"""Compiles proto files into Python modules at run time."""

import importlib
import pathlib
import sys
import tempfile

from grpc_tools import protoc

ROOT = pathlib.Path(__file__).resolve().parents[1]


def load(folder, *files):
    """The modules of `files` (paths under `folder`; what they import comes first): for each, its messages and its services."""
    include = pathlib.Path(protoc.__file__).parent / "_proto"
    # A module needs its file only until it is imported, so the folder is gone even if this process is killed later.
    with tempfile.TemporaryDirectory(prefix="kvtap-stubs-") as out:
        arguments = ["protoc", f"-I{folder}", f"-I{include}", f"--python_out={out}", f"--grpc_python_out={out}", *files]
        if protoc.main(arguments):
            sys.exit(f"the proto files under {folder} do not compile")
        sys.path.insert(0, out)
        try:
            names = [file.removesuffix(".proto").replace("/", ".") for file in files]
            return [tuple(importlib.import_module(name + end) for end in ("_pb2", "_pb2_grpc")) for name in names]
        finally:
            sys.path.remove(out)


def kvtap():
    """kvtap's messages and its query service, and the names of feed states."""
    files = ("kvtap/v1/worker.proto", "kvtap/v1/query_service.proto")
    (worker, _), (query, services) = load(ROOT / "proto", *files)
    return query, services, worker.FeedState
