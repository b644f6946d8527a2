"""Errors of rpc that never cross the wire."""


class RpcNotRunning(RuntimeError):
    """The process takes no part in rpc: not yet, not any more, or twice."""


class RefLeak(RuntimeError):
    """References were left at the end of a process that was told not to leave any."""
