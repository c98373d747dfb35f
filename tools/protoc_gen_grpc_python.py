"""A protoc plugin (request on stdin, response on stdout) for the gRPC generator inside grpcio-tools.

buf runs plugins as programs; the pinned grpcio-tools has its Python generator only built into its own
protoc, reachable by `--grpc_python_out`. This program hands over the descriptors that buf parsed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from google.protobuf.compiler import plugin_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc


def generate(request: plugin_pb2.CodeGeneratorRequest) -> plugin_pb2.CodeGeneratorResponse:
    """The `*_pb2_grpc.py` of every file to generate that has a service; `error` set when protoc refuses."""
    response = plugin_pb2.CodeGeneratorResponse(
        supported_features=plugin_pb2.CodeGeneratorResponse.FEATURE_PROTO3_OPTIONAL
    )
    with_services = {file.name for file in request.proto_file if file.service}
    names = [name for name in request.file_to_generate if name in with_services]
    if not names:
        return response
    with tempfile.TemporaryDirectory() as folder:
        descriptors = Path(folder) / "descriptors.bin"
        descriptors.write_bytes(FileDescriptorSet(file=request.proto_file).SerializeToString())
        out = Path(folder) / "out"
        out.mkdir()
        status = protoc.main(["protoc", f"--descriptor_set_in={descriptors}", f"--grpc_python_out={out}", *names])
        if status != 0:
            response.error = f"grpc_tools.protoc ended with status {status}"
            return response
        for path in sorted(out.rglob("*.py")):
            response.file.add(name=path.relative_to(out).as_posix(), content=path.read_text())
    return response


def main() -> None:
    """Answer one request."""
    request = plugin_pb2.CodeGeneratorRequest.FromString(sys.stdin.buffer.read())
    sys.stdout.buffer.write(generate(request).SerializeToString())


if __name__ == "__main__":
    main()
