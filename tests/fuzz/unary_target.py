"""Target `grpc`: bodies of all unary rpcs of all services, as every role and without a token."""

from __future__ import annotations

import random
from collections import deque
from typing import Any, ClassVar

import grpc
from google.protobuf.message import DecodeError

from gradmesh.protos.method import Method
from gradmesh.protos.rpcs import ADMIN, READER
from tests.fuzz.answers import OK, may_call, problem_with, reason_of
from tests.fuzz.batch import Batch, Finding
from tests.fuzz.callers import CALLERS
from tests.fuzz.cluster_target import ClusterTarget
from tests.fuzz.rpc_frames import RPCS

_IN_FLIGHT = 12
# Calls that wait for something hold a thread of the server; most answers take a millisecond.
_TIMEOUT_S = 0.25
_HANG_S = 60.0
# An admin may change the number of servers for everyone.
_ADMINS_ONLY = "ScaleParameterServers"


class UnaryTarget(ClusterTarget):
    """Keeps several calls under way, so that a round trip carries several frames."""

    name: ClassVar[str] = "grpc"
    frames: ClassVar[int] = 500
    share: ClassVar[float] = 0.2

    def send(self, chance: random.Random, batch: Batch) -> None:
        """Call random rpcs as random callers."""
        makers = {caller: self.maker(chance, caller) for caller in CALLERS}
        under_way: deque[tuple[str, Method, bytes, Any]] = deque()
        for _ in range(self.frames):
            process, method = self._rpc(chance)
            caller = self._caller(chance, method)
            data = makers[caller].bytes_of(method)
            if method.name == _ADMINS_ONLY and caller == ADMIN and _is_valid(method, data):
                caller = READER
            channel = self.cluster.caller(caller).channel(process)
            under_way.append((caller, method, data, channel.attempt(method, data, _TIMEOUT_S)))
            if len(under_way) >= _IN_FLIGHT:
                self._finish(*under_way.popleft(), batch)
        while under_way:
            self._finish(*under_way.popleft(), batch)

    def _rpc(self, chance: random.Random) -> tuple[str, Method]:
        """Return a process and one of its rpcs."""
        process = chance.choice(tuple(RPCS))
        return process, chance.choice(RPCS[process])

    def _caller(self, chance: random.Random, method: Method) -> str:
        """Return a caller: most often one that may call the rpc."""
        if chance.random() < 0.3:
            return chance.choice(CALLERS)
        return chance.choice([caller for caller in CALLERS if may_call(caller, method.path)])

    def _finish(self, caller: str, method: Method, data: bytes, call: Any, batch: Batch) -> None:
        batch.frames += 1
        reason, text = OK, ""
        try:
            call.result(_HANG_S)
        except grpc.FutureTimeoutError:
            batch.findings.append(Finding(f"{method.path} does not end by its deadline", data))
            return
        except grpc.RpcError as failure:
            reason, text = reason_of(failure)
        batch.answers[reason] += 1
        problem = problem_with(caller, method.path, reason, text)
        if problem is not None:
            batch.findings.append(Finding(problem, data))


def _is_valid(method: Method, data: bytes) -> bool:
    try:
        method.request_type.FromString(data)
    except DecodeError:
        return False
    return True
