"""Target `names`: members that name other members in their requests."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import ClassVar

from gradmesh.protos.method import Method
from tests.fuzz.rpc_frames import FrameMaker
from tests.fuzz.unary_target import UnaryTarget
from tests.fuzz.words import OTHERS

_MEMBERS = ("client", "worker", "trainer")


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

    def _caller(self, chance: random.Random, method: Method) -> str:
        return chance.choice(_MEMBERS)
