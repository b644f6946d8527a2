"""The contract as data, read from the generated modules."""

import importlib
from pathlib import Path

import pytest
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor

ROOT = Path(__file__).resolve().parents[2]


def _module(proto: Path) -> str:
    return f"gradmesh.{'.'.join(proto.relative_to(ROOT).with_suffix('').parts)}_pb2"


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def files() -> list[FileDescriptor]:
    protos = sorted(ROOT.glob("protos/*/v1/*.proto"))
    return [importlib.import_module(_module(proto)).DESCRIPTOR for proto in protos]


@pytest.fixture(scope="session")
def rpcs(files: list[FileDescriptor]) -> dict[str, MethodDescriptor]:
    """Every rpc by its path without the first slash."""
    return {
        f"{service.full_name}/{method.name}": method
        for file in files
        for service in file.services_by_name.values()
        for method in service.methods
    }
