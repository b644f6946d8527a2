import platform

from gradmesh.sdk.process.memory import keep_big_buffers


def test_allocator_is_tuned_where_it_is_glibc() -> None:
    assert keep_big_buffers() is (platform.libc_ver()[0] == "glibc")
