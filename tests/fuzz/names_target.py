"""Target `names`: members that name other members in their requests."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import ClassVar

from gradmesh.protos.method import Method
from tests.fuzz.rpc_frames import RPCS, FrameMaker
from tests.fuzz.unary_target import UnaryTarget
from tests.fuzz.words import OTHERS

_MEMBERS = ("client", "worker", "trainer")
# What a request in the name of another member could take from it.
_NAMES = frozenset(
    {
        "Push",
        "ReleaseContext",
        "Lookup",
        "Backward",
        "Apply",
        "SendGradients",
        "Deliver",
        "CheckCalls",
        "DeleteRef",
        "AcceptFork",
        "BeginSnapshot",
        "Register",
        "RenewLease",
        "Leave",
        "JoinRound",
        "TakeShard",
        "ReportProgress",
        "ReportCheckpoint",
        "ReportMove",
    }
)
_NAMING = [(where, rpc) for where, rpcs in RPCS.items() for rpc in rpcs if rpc.name in _NAMES]


class NamesTarget(UnaryTarget):
    """Sends valid requests with the names and incarnations of others.

    The examination pushes as one of the others, and sees whether it is still a member.
    """

    name: ClassVar[str] = "names"
    frames: ClassVar[int] = 500
    share: ClassVar[float] = 0.05

    def maker(self, chance: random.Random, caller: str) -> FrameMaker:
        """Return what draws the requests of a caller, all of them with names of others."""
        words = replace(
            self.words(chance, caller),
            workers=OTHERS,
            incarnations=(self.cluster.state.incarnation, 1, 2**64 - 1),
        )
        return FrameMaker(chance, words)

    def _rpc(self, chance: random.Random) -> tuple[str, Method]:
        return chance.choice(_NAMING)

    def _caller(self, chance: random.Random, method: Method) -> str:
        return chance.choice(_MEMBERS)
