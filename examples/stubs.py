"""Compiles proto files into Python modules at run time."""

import importlib
import pathlib
import sys
import tempfile

from grpc_tools import protoc

ROOT = pathlib.Path(__file__).resolve().parents[1]


def load(folder, *files):
    """The modules of `files` (paths under `folder`): for each, its messages and its services."""
    out = tempfile.mkdtemp(prefix="kvtap-stubs-")
    include = pathlib.Path(protoc.__file__).parent / "_proto"
    arguments = ["protoc", f"-I{folder}", f"-I{include}", f"--python_out={out}", f"--grpc_python_out={out}", *files]
    if protoc.main(arguments):
        sys.exit(f"the proto files under {folder} do not compile")
    sys.path.insert(0, out)
    modules = []
    for file in files:
        name = file.removesuffix(".proto").replace("/", ".")
        modules.append((importlib.import_module(f"{name}_pb2"), importlib.import_module(f"{name}_pb2_grpc")))
    return modules


def kvtap():
    """kvtap's messages and its query service, and the names of feed states."""
    files = ("kvtap/v1/worker.proto", "kvtap/v1/query_service.proto")
    (worker, _), (query, services) = load(ROOT / "proto", *files)
    return query, services, worker.FeedState
