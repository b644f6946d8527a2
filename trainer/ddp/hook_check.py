"""Whether a communication hook can be one, said when it is registered and when it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from gradmesh.trainer.ddp.future import Future
from gradmesh.trainer.ddp.grad_bucket import GradBucket


def check_hook(hook: Any) -> None:
    """Raise unless a hook can be called as hook(state, bucket) and annotations agree.

    Raises:
        TypeError: If it is not callable.
        ValueError: If its bucket or its result is annotated with another type.
    """
    if not callable(hook):
        raise TypeError(f"a communication hook must be callable, not {type(hook).__name__}")
    try:
        signature = inspect.signature(hook)
    except (TypeError, ValueError):
        return
    parameters = list(signature.parameters.values())
    if len(parameters) > 1:
        _check_annotation("bucket", parameters[1].annotation, GradBucket)
    _check_annotation("result", signature.return_annotation, Future)


def _check_annotation(what: str, annotation: Any, wanted: type) -> None:
    if annotation in (inspect.Parameter.empty, Any, wanted):
        return
    if isinstance(annotation, str) and annotation.split(".")[-1] in (wanted.__name__, "Any"):
        return
    raise ValueError(
        f"the {what} of a communication hook is a {wanted.__name__}, but annotated {annotation!r}"
    )


def bound_hook(state: Any, hook: Callable[[Any, GradBucket], Any]) -> Callable[..., Future]:
    """Return a hook with its state, which checks what the hook returns."""

    def run(bucket: GradBucket) -> Future:
        made = hook(state, bucket)
        if not isinstance(made, Future):
            raise RuntimeError(
                f"communication hook {hook_name(hook)} returned {type(made).__name__}; return a"
                " Future, such as Future.after(work, bucket.buffer())"
            )
        return made

    return run


def hook_name(hook: Any) -> str:
    """Return what the log calls a hook."""
    return str(getattr(hook, "__qualname__", type(hook).__name__))
