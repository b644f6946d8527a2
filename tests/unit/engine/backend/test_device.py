import pytest

from gradmesh.engine.backend import CPU, Device, DeviceError, as_device


def test_names_are_read() -> None:
    assert as_device(None) == as_device("cpu") == CPU
    assert as_device("cuda") == Device("cuda", 0)
    assert as_device("cuda:3") == Device("cuda", 3)
    assert str(as_device("cuda:3")) == "cuda:3"
    assert as_device("cuda").type == "cuda"


@pytest.mark.parametrize("bad", ["gpu", "cuda:x", "cuda:-1"])
def test_other_names_are_refused(bad: str) -> None:
    with pytest.raises(DeviceError, match="no such device"):
        as_device(bad)
