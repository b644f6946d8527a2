"""Checks of this machine: versions, shared memory, descriptors."""

import os
import platform
import resource
import sys
from collections.abc import Iterator

from gradmesh.cli.doctor.finding import Finding, fine, note, problem

_OLDEST = (3, 11)
_SHARED_MEMORY = "/dev/shm"
# Lanes and collectives of a small cluster; a container has 64 MiB by default.
_LEAST_SHARED_BYTES = 64 << 20
_LEAST_DESCRIPTORS = 4096


def machine_findings() -> Iterator[Finding]:
    """Check this machine."""
    yield _versions()
    yield _shared_memory()
    yield _descriptors()


def _versions() -> Finding:
    import google.protobuf
    import grpc

    from gradmesh.protos.version import VERSION

    tried = "versions of Python and gRPC"
    seen = (
        f"gradmesh {VERSION}, Python {platform.python_version()}, gRPC {grpc.__version__}, "
        f"protobuf {google.protobuf.__version__}"
    )
    if sys.version_info < _OLDEST:
        return problem("versions", tried, seen, "install Python 3.11 or newer")
    return fine("versions", tried, seen)


def _shared_memory() -> Finding:
    tried = f"free space of {_SHARED_MEMORY}"
    remedy = (
        "shared-memory lanes and collectives need more; give containers a bigger one "
        "(docker: --shm-size, Kubernetes: an emptyDir of medium Memory), or set "
        "transport.lane = tcp"
    )
    try:
        seen = os.statvfs(_SHARED_MEMORY)
    except OSError as error:
        return note("shared memory", tried, f"it cannot be read: {error.strerror}", remedy)
    free = seen.f_bavail * seen.f_frsize
    text = f"{free >> 20} MiB are free"
    if free < _LEAST_SHARED_BYTES:
        return note("shared memory", tried, text, remedy)
    return fine("shared memory", tried, text)


def _descriptors() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    tried = "limit of open files"
    seen = f"{soft} (can be raised to {hard})"
    most = hard if hard != resource.RLIM_INFINITY else _LEAST_DESCRIPTORS
    if most < _LEAST_DESCRIPTORS:
        remedy = f"each connection needs one: raise it to {_LEAST_DESCRIPTORS} (`ulimit -n`)"
        return note("open files", tried, seen, remedy)
    return fine("open files", tried, seen)
