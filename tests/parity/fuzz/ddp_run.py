"""Run random configurations of DDP in both libraries and compare: `make fuzz-ddp`.

FUZZ_SEEDS=A..B and FUZZ_SECONDS say which; one seed alone is run, shown, and shrunk if it differs.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tests.parity.fuzz.ddp_compare import differences, kinds, known
from tests.parity.fuzz.ddp_config import PLAINEST, Config, draw, simpler
from tests.parity.fuzz.ddp_ranks import OurRanks, TorchRanks
from tests.parity.fuzz.ddp_train import our_task
from tests.parity.fuzz.seeds import Progress, budget, seeds

MOST_RANKS = 3
REPLAY = "FUZZ_SEEDS={seed} make fuzz-ddp"


class Pair:
    """The ranks of both libraries."""

    def __init__(self) -> None:
        self.torch, self.ours = TorchRanks(MOST_RANKS), OurRanks(MOST_RANKS)

    def compare(self, config: Config, progress: Progress | None = None) -> list[str]:
        """Run a configuration in both; return the differences."""
        theirs, ours = self._run_torch(config), self.ours.run(our_task, config, config.world)
        if _may_hang(ours):
            self.ours.restart()
        found = self._differences(config, ours, theirs)
        met = known(config, ours, theirs) if found else None
        if met is None:
            return found
        if progress is not None:
            progress.explain(met.row)
        if met.instead is None:
            return self._differences(config, ours, theirs, explained=True)
        other = met.instead(config)
        return self._differences(other, ours, self._run_torch(other))

    def _differences(
        self, config: Config, ours: list[Any], theirs: list[Any], explained: bool = False
    ) -> list[str]:
        found = differences(config, ours, theirs, explained)
        if any("differs by" in text for text in found):
            full = self._run_torch(config.full())
            found = differences(config, ours, theirs, explained, full)
        return found

    def _run_torch(self, config: Config) -> list[Any]:
        results = self.torch.run("tests.parity.fuzz.ddp_train:torch_task", config, config.world)
        if _may_hang(results):
            self.torch.restart()
        return results

    def close(self) -> None:
        """End all ranks."""
        self.torch.close()
        self.ours.close()


def shrink(config: Config, compare: Callable[[Config], list[str]]) -> Config:
    """Return a simpler configuration that differs in the same way.

    Args:
        config: One that differs.
        compare: Runs a configuration and returns what differs.
    """
    wanted = kinds(compare(config))
    while True:
        smaller = (c for c in simpler(config) if (found := kinds(compare(c))) and found <= wanted)
        following = next(smaller, None)
        if following is None:
            return config
        config = following


def _may_hang(results: Sequence[Any]) -> bool:
    """Return whether a rank failed after construction: others may wait for it."""
    places = [getattr(result, "failed_at", None) for result in results]
    return any(place is not None and place >= 0 for place in places)


def covered(config: Config) -> dict[str, int]:
    """Return the names of the features that a configuration covers."""
    names: list[Any] = [*config.blocks, *config.options, f"world {config.world}"]
    names += [config.first, f"hook {config.hook}" if config.hook else "no hook"]
    names += [name for name, on in (("join", config.is_uneven), ("mixed", config.mixed)) if on]
    names += [f"fault {config.fault}"] if config.fault else []
    names += [config.extra] if config.extra else []
    names += ["throw_on_early_termination"] if config.throws else []
    names += [config.dtype] if config.dtype != "float32" else []
    return dict.fromkeys(names, 1)


def shown(config: Config) -> str:
    """Return the non-default features of a configuration, in a line or two."""
    plain = dataclasses.asdict(PLAINEST)
    fields = {n: v for n, v in dataclasses.asdict(config).items() if v != plain[n]}
    return f"dataclasses.replace(PLAINEST, {', '.join(f'{n}={v!r}' for n, v in fields.items())})"


def main() -> int:
    """Run the budget; return 1 if something differs."""
    asked = budget(seconds=120)
    print(f"fuzz-ddp: {asked}", flush=True)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore", FutureWarning)
    progress, pair = Progress("fuzz-ddp", REPLAY), Pair()
    try:
        for seed in seeds(asked):
            config = draw(seed)
            found = pair.compare(config, progress)
            progress.count(1, covered(config))
            if found:
                text = "\n".join(found[:12])
                if asked.first == asked.last:
                    text += f"\nshrunk to {shown(shrink(config, pair.compare))}"
                progress.fail(seed, f"{config}\n{text}")
    finally:
        pair.close()
    return progress.summarize()


if __name__ == "__main__":
    sys.exit(main())
