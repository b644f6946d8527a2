"""Errors of rpc that never cross the wire."""

from gradmesh.base_error import GradmeshError


class RpcNotRunning(RuntimeError, GradmeshError):
    """The process takes no part in rpc: not yet, not any more, or twice."""


class RefLeak(RuntimeError, GradmeshError):
    """References were left at the end of a process that was told not to leave any."""
