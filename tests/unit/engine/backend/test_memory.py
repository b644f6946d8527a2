import platform

from gradmesh.engine.backend.memory import keep_freed_pages


def test_glibc_applies_the_settings() -> None:
    assert keep_freed_pages() is (platform.libc_ver()[0] == "glibc")
