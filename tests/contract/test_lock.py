"""protos/wire.binpb locks the released contract: it may grow and must not change."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

BUF = Path(sys.executable).with_name("buf")


def without_json_names(file: FileDescriptorProto) -> bytes:
    """buf writes the JSON name of each field into its image, protoc does not."""

    def clear(message: DescriptorProto) -> None:
        for field in message.field:
            field.ClearField("json_name")
        for nested in message.nested_type:
            clear(nested)

    for message in file.message_type:
        clear(message)
    file.DiscardUnknownFields()
    return file.SerializeToString(deterministic=True)


def test_stubs_and_lock_agree(root: Path, files: list[FileDescriptor]) -> None:
    image = FileDescriptorSet.FromString((root / "protos/wire.binpb").read_bytes())
    locked = {file.name: without_json_names(file) for file in image.file}
    generated = {}
    for file in files:
        proto = FileDescriptorProto()
        file.CopyToProto(proto)
        generated[file.name] = without_json_names(proto)

    assert set(locked) == set(generated)
    for name in locked:
        assert locked[name] == generated[name], f"{name}: run `make protos`"


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    for proto in root.glob("protos/*/v1/*.proto"):
        target = tmp_path / "gradmesh" / proto.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(proto, target)
    shutil.copy(root / "buf.yaml", tmp_path)
    shutil.copy(root / "protos/wire.binpb", tmp_path)
    return tmp_path


def breaking(copy: Path, old: str, new: str) -> subprocess.CompletedProcess[str]:
    file = copy / "gradmesh/protos/parameter_server/v1/parameter_server.proto"
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    return subprocess.run(
        [BUF, "breaking", "--against", "wire.binpb"],
        cwd=copy,
        env={"HOME": str(copy)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("uint64 lookup = 2;", "string lookup = 2;", "changed type"),
        ("uint64 lookup = 2;", "", "was deleted"),
        ("bool applied = 1;", "bool applied = 2;", "was deleted"),
        ("rpc Push(", "rpc Shove(", 'RPC "Push"'),
    ],
    ids=["type", "field", "number", "rpc"],
)
def test_an_incompatible_change_is_detected(copy: Path, old: str, new: str, word: str) -> None:
    result = breaking(copy, old, new)

    assert result.returncode != 0
    assert word in result.stdout + result.stderr


def test_an_addition_is_allowed(copy: Path) -> None:
    result = breaking(copy, "bool applied = 1;", "bool applied = 1; uint64 rows = 2;")

    assert result.returncode == 0, result.stdout + result.stderr
