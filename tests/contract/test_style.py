"""Style rules of the contract that buf cannot check."""

from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor, MethodDescriptor

from gradmesh.protos import errors
from gradmesh.protos.frame import ARRAYS_FIELD
from gradmesh.protos.rpcs import ACCESS, REPEATABLE, ROLES

Rpcs = dict[str, MethodDescriptor]


@pytest.fixture(scope="session")
def messages(files: list[FileDescriptor]) -> list[Descriptor]:
    return [m for file in files for m in file.message_types_by_name.values()]


@pytest.fixture(scope="session")
def comments(root: Path) -> dict[str, str]:
    """The comment above each rpc, on one line, by the rpc's path without the first slash."""
    found = {}
    for proto in sorted(root.glob("protos/*/v1/*.proto")):
        package = service = ""
        block: list[str] = []
        for line in map(str.strip, proto.read_text(encoding="utf-8").splitlines()):
            if line.startswith("//"):
                block.append(line.removeprefix("//").strip())
                continue
            words = line.replace("(", " ").replace(";", " ").split()
            if words[:1] == ["package"]:
                package = words[1]
            elif words[:1] == ["service"]:
                service = words[1]
            elif words[:1] == ["rpc"]:
                found[f"{package}.{service}/{words[1]}"] = " ".join(block)
            block = []
    return found


def test_every_rpc_is_in_the_table_of_repeatable_ones_and_nothing_else(rpcs: Rpcs) -> None:
    assert set(REPEATABLE) == set(rpcs)


def test_every_rpc_says_who_may_call_it(rpcs: Rpcs) -> None:
    assert set(ACCESS) == set(rpcs)
    assert all("admin" in roles and roles <= set(ROLES) for roles in ACCESS.values())


def test_comments_agree_with_the_table_of_rpcs(rpcs: Rpcs, comments: dict[str, str]) -> None:
    assert set(comments) == set(rpcs)
    for path, text in comments.items():
        said = "Not repeatable" not in text

        assert "Repeatable" in text or "Not repeatable" in text, path
        assert not ("Repeatable" in text and "Not repeatable" in text), path
        assert said is REPEATABLE[path], path


def test_statuses_and_reasons_in_comments_are_the_catalogues(comments: dict[str, str]) -> None:
    codes = {cls.code for cls in errors.CATALOGUE.values()}

    for path, text in comments.items():
        code = None
        for word in text.replace("(", " ( ").replace(")", " ) ").replace(",", " ").split():
            word = word.rstrip(".:;")
            if word in codes:
                code = word
            elif word in errors.CATALOGUE:
                assert errors.CATALOGUE[word].code == code, (path, word)
            else:
                assert not (word.isupper() and "_" in word), (path, word)


def test_every_rpc_has_messages_of_its_own(rpcs: Rpcs) -> None:
    for path, method in rpcs.items():
        assert method.input_type.name == f"{method.name}Request", path
        assert method.output_type.name == f"{method.name}Response", path


def test_every_rpc_but_one_is_unary(rpcs: Rpcs) -> None:
    """The server's interceptor handles unary calls and the one stream that carries them."""
    streams = [p for p, m in rpcs.items() if m.client_streaming or m.server_streaming]

    assert streams == ["gradmesh.owner.v1.OwnerService/Exchange"]


def test_rpc_names_are_unique(rpcs: Rpcs) -> None:
    names = [method.name for method in rpcs.values()]

    assert len(names) == len(set(names))


def test_bulk_data_is_field_15_and_called_arrays(messages: list[Descriptor]) -> None:
    for message in messages:
        for field in message.fields:
            is_array = (
                field.message_type is not None
                and field.message_type.full_name == "gradmesh.common.v1.Array"
            )
            named = (field.name, field.number) == ("arrays", ARRAYS_FIELD)
            assert is_array is named, f"{message.full_name}.{field.name}"
            assert named or field.number != ARRAYS_FIELD, f"{message.full_name}.{field.name}"
            assert not named or field.is_repeated


def test_arrays_are_only_in_requests_and_responses(messages: list[Descriptor]) -> None:
    """The codec finds them at the top of a message, not in a message within it."""
    for message in messages:
        if "arrays" in message.fields_by_name:
            assert message.name.endswith(("Request", "Response")), message.full_name


def test_units_are_in_the_names_of_times(messages: list[Descriptor]) -> None:
    times = ("timeout", "duration", "deadline", "lease", "uptime", "silence", "seconds")
    for message in messages:
        for field in message.fields:
            if field.type == FieldDescriptor.TYPE_DOUBLE and field.name.startswith(times):
                assert field.name.endswith("_s"), f"{message.full_name}.{field.name}"


def test_packages_carry_their_version(files: list[FileDescriptor]) -> None:
    for file in files:
        folder = file.name.split("/")[2]

        assert file.package == f"gradmesh.{folder}.v1"
