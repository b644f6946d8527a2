"""Cases with a defect each, for the tests of the sandbox."""

from __future__ import annotations

import os
import random
import time

from tests.fuzz.cases import Case, Cases, judge


class PlantedCases(Cases):
    """What goes wrong is in a file, so that one process shows several defects."""

    def prepare(self) -> None:
        self._calls = 0
        self._held: list[int] = []

    def run(self, chance: random.Random) -> Case:
        self._calls += 1
        how = (self.folder.parent / "planted").read_text()
        if self._calls % 5:
            return Case("fine")
        match how:
            case "raises":
                try:
                    return Case(str({}[chance.randrange(3)]))
                except KeyError as error:
                    return judge(error, b"the bytes")
            case "believes a size":
                return Case(str(len(bytes(1 << 40))))
            case "leaks":
                self._held += [os.open("/dev/null", os.O_RDONLY) for _ in range(100)]
            case "ends":
                os._exit(9)
            case "hangs":
                time.sleep(600)
        return Case("fine")
