"""Reports of errors in a pass, exchanged so that all ranks raise the same error.

A rank with an error takes part in the pass to its end, so that no rank waits for it. A status
element in the last bucket is non-zero if a rank has an error; only then are reports exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from gradmesh.trainer.ddp.agreement import gather_texts
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
class ErrorReport:
    """One error of a pass on this rank."""

    kind: type[ReductionError]
    """Class of the error to raise."""
    text: str
    """What happened to which parameter."""
    remedy: str
    """What the user can do."""


def missing(names: Sequence[str], find_unused: bool) -> ErrorReport:
    """Report parameters that took no part in the loss."""
    remedy = "use every parameter in the forward and every output in the loss"
    if not find_unused:
        remedy += ", or wrap the module with find_unused_parameters=True"
    return ErrorReport(MissingGradient, f"{_listed(names)} took no part in the loss", remedy)


def repeated(name: str) -> ErrorReport:
    """Report a gradient that was complete twice."""
    return ErrorReport(
        RepeatedGradient,
        f"the gradient of {name} came again after it had been sent",
        "do not use a parameter both outside the forward and within a nested backward; a graph"
        " that does so in every pass can be wrapped with static_graph=True",
    )


def late(name: str) -> ErrorReport:
    """Report a delayed gradient that came after its trigger."""
    return ErrorReport(
        RepeatedGradient,
        f"the gradient of {name} came after that of param_to_hook_all_reduce",
        "choose a parameter whose gradient is complete after those of all delayed ones",
    )


def changed(names: Sequence[str], how: str) -> ErrorReport:
    """Report a static graph that differs from that of the first pass."""
    return ErrorReport(
        GraphChanged,
        f"{_listed(names)} {how}, other than in the first pass",
        "static_graph=True promises the same graph in every pass; use"
        " find_unused_parameters=True for a graph that changes",
    )


def raise_reports(group: ProcessGroup, own: Sequence[ErrorReport]) -> None:
    """Exchange reports and raise the first, with the texts of all ranks; collective."""
    text = "\n".join(f"{f.kind.__name__}\t{f.text}\t{f.remedy}" for f in own)
    kind: type[ReductionError] = ReductionError
    messages: list[str] = []
    remedy = ""
    for rank, whole in enumerate(gather_texts(group, text)):
        for line in whole.splitlines():
            name, what, how = line.split("\t")
            if not messages:
                kind, remedy = _KINDS[name], how
            messages.append(f"rank {rank}: {what}")
    raise kind("; ".join(messages) + f"; {remedy}")


def local_error(own: Sequence[ErrorReport], rank: int) -> ReductionError:
    """Return the error of reports that came too late to be exchanged."""
    text = "; ".join(f"rank {rank}: {report.text}" for report in own)
    return own[0].kind(f"{text}; {own[0].remedy}")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:20])
    return shown if len(names) <= 20 else f"{shown} and {len(names) - 20} more"
