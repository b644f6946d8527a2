import pytest

from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.limits import check_address, check_name, natural_key


@pytest.mark.parametrize("name", ["a", "trainer-0", "ads/user.v2", "my_module.f", "0", "x" * 256])
def test_ordinary_names_are_allowed(name: str) -> None:
    assert check_name("table", name) == name


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "-x", ".hidden", "/etc", "a\n", "é", "a\0b", "\ud800", "x" * 257, "a;b"],
    ids=repr,
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(
        InvalidRequest, match="is not a name for a table; use letters, digits"
    ) as info:
        check_name("table", name)

    assert len(str(info.value)) < 400


def test_numbers_in_names_sort_as_numbers() -> None:
    names = ["t-10", "t-9", "t", "10", "9", "t-9b", "t-9a", "u-1", "٣", "²"]

    got = sorted(names, key=natural_key)

    assert got.index("t-9") < got.index("t-10")
    assert got.index("9") < got.index("10")
    assert got.index("t-10") < got.index("u-1")


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:7070", "[::1]:1", "[fe80::1%eth0]:65535", "ps-0.gradmesh.svc:1", "my_host:80"],
)
def test_ordinary_addresses_are_allowed(address: str) -> None:
    assert check_address(address) == address


@pytest.mark.parametrize(
    "address",
    ["", "host", ":1", "host:", "a b:1", "h:1\n", "h\x1b:1", "é:1", "[::1:1", "u@h:1", "h:123456"],
    ids=repr,
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(InvalidRequest, match="is not an address; use host:port"):
        check_address(address)
