"""What went wrong on some rank in a pass, told to all of them.

A rank with a fault takes part in the pass to its end, so that nobody waits for it; the sum that
travels anyway says that there is something to report, and only then are reports exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from gradmesh.trainer.ddp.exchange import gather_texts
from gradmesh.trainer.errors import (
    GraphChanged,
    MissingGradient,
    ReductionError,
    RepeatedGradient,
)
from gradmesh.trainer.process_group import ProcessGroup

_KINDS: dict[str, type[ReductionError]] = {
    kind.__name__: kind for kind in (MissingGradient, RepeatedGradient, GraphChanged)
}


@final
@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that went wrong here."""

    kind: type[ReductionError]
    """The error it becomes."""
    text: str
    """What happened to which parameter."""
    remedy: str
    """What the user can do."""


def missing(names: Sequence[str], find_unused: bool) -> Fault:
    """Return the fault of parameters that took no part in the loss."""
    remedy = "use every parameter in the forward and every output in the loss"
    if not find_unused:
        remedy += ", or wrap the module with find_unused_parameters=True"
    return Fault(MissingGradient, f"{_listed(names)} took no part in the loss", remedy)


def repeated(name: str) -> Fault:
    """Return the fault of a gradient that was complete twice."""
    return Fault(
        RepeatedGradient,
        f"the gradient of {name} came again after it had been sent",
        "do not use a parameter both outside the forward and within a nested backward; a graph"
        " that does so in every pass can be wrapped with static_graph=True",
    )


def late(name: str) -> Fault:
    """Return the fault of a delayed gradient that came after its trigger."""
    return Fault(
        RepeatedGradient,
        f"the gradient of {name} came after that of param_to_hook_all_reduce",
        "choose a parameter whose gradient is complete after those of all delayed ones",
    )


def changed(names: Sequence[str], how: str) -> Fault:
    """Return the fault of a static graph that was another one this time."""
    return Fault(
        GraphChanged,
        f"{_listed(names)} {how}, other than in the first pass",
        "static_graph=True promises the same graph in every pass; use"
        " find_unused_parameters=True for a graph that changes",
    )


def raise_reports(group: ProcessGroup, own: Sequence[Fault]) -> None:
    """Exchange reports and raise the first, with what all ranks say; collective."""
    text = "\n".join(f"{f.kind.__name__}\t{f.text}\t{f.remedy}" for f in own)
    kind: type[ReductionError] = ReductionError
    said: list[str] = []
    remedy = ""
    for rank, whole in enumerate(gather_texts(group, text)):
        for line in whole.splitlines():
            name, what, how = line.split("\t")
            if not said:
                kind, remedy = _KINDS[name], how
            said.append(f"rank {rank}: {what}")
    raise kind("; ".join(said) + f"; {remedy}")


def local_error(own: Sequence[Fault], rank: int) -> ReductionError:
    """Return the error of faults that were found too late to tell the others."""
    said = "; ".join(f"rank {rank}: {fault.text}" for fault in own)
    return own[0].kind(f"{said}; {own[0].remedy}")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:20])
    return shown if len(names) <= 20 else f"{shown} and {len(names) - 20} more"
