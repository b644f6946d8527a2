"""Compare the outcomes of two libraries; some differences are documented."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.parity.fuzz.ddp_config import SHORT_HOOKS, Config
from tests.parity.fuzz.ddp_train import Outcome

# (share of the largest element, absolute), by the shortest dtype in a configuration. Sums are
# divided afterwards here, before by torch: some units in the last place in float32, and training
# carries them on.
BOUNDS = {"float32": (2e-4, 2e-5), "float16": (2e-2, 1e-2), "bfloat16": (1e-1, 5e-2)}

# How much more than torch's rounding ours may change a value: both are drawn from one distribution.
ROUNDING = 4.0
# How many times the bounds that may be at most: more than rounding is a defect, torch's or ours.
MOST = 10.0


@dataclasses.dataclass(frozen=True)
class Known:
    """A difference that is meant: torch raises elsewhere, or something else.

    Args:
        row: What docs/ddp.md's table of differences says of torch, word for word.
        explains: Returns whether it explains the outcome of a rank: (configuration, here, torch).
        instead: Makes the configuration that torch runs instead, to compare all the same.
    """

    row: str
    explains: Callable[[Config, Outcome, Outcome], bool]
    instead: Callable[[Config], Config] | None = None


def _begins_apart(config: Config, own: Outcome, other: Outcome) -> bool:
    is_met = config.options.get("static_graph") and config.micro[0] > 1 and other.failed_at == 0
    return bool(is_met) and "expect_autograd_hooks_ INTERNAL ASSERT" in other.error


def _is_later(config: Config, own: Outcome, other: Outcome) -> bool:
    assert own.failed_at is not None
    following = own.failed_at + 1
    return other.failed_at == (None if following == min(config.steps) else following)


def _without(config: Config, option: str, **others: Any) -> Config:
    rest = {name: value for name, value in config.options.items() if name != option}
    return dataclasses.replace(config, options={**rest, **others})


def _keeps_old_views(config: Config) -> bool:
    """Return whether no rank uses a parameter whose last gradient lies in a bucket."""
    is_old = config.zero == "never" and config.gates in ("steps", "mixed")
    return is_old and bool(config.options.get("gradient_as_bucket_view"))


def _is_skipped_view(config: Config, own: Outcome, other: Outcome) -> bool:
    is_asked = bool(config.options.get("skip_all_reduce_unused_params"))
    return is_asked and _keeps_old_views(config) and not own.error


def _comes_back(config: Config, own: Outcome, other: Outcome) -> bool:
    asked = ("skip_all_reduce_unused_params", "gradient_as_bucket_view")
    is_zeroed = config.zero == "zero" and config.gates in ("steps", "mixed")
    return (
        is_zeroed
        and config.hook == "halving"
        and all(config.options.get(name) for name in asked)
        and not own.error
    )


def _is_hooked_view(config: Config, own: Outcome, other: Outcome) -> bool:
    return config.hook == "halving" and _keeps_old_views(config) and not own.error


def _is_stepped_apart(config: Config, own: Outcome, other: Outcome) -> bool:
    is_met = config.extra == "last_in_backward" and not own.error + other.error
    return is_met and not config.options.get("gradient_as_bucket_view")


KNOWN = (
    Known(
        "with optimizers in backward for some parameters the gradients of the others stay local"
        " unless they are views of buckets",
        _is_stepped_apart,
        lambda config: _without(config, "", gradient_as_bucket_view=True),
    ),
    Known(
        "with `gradient_as_bucket_view` a communication hook is applied to the old gradient of a"
        " parameter that no rank used, too",
        _is_hooked_view,
        lambda config: _without(config, "gradient_as_bucket_view"),
    ),
    Known(
        "with `skip_all_reduce_unused_params`, `gradient_as_bucket_view` and a communication hook"
        " a gradient that was set to 0 comes back where no rank used its parameter",
        _comes_back,
        lambda config: _without(config, "gradient_as_bucket_view"),
    ),
    Known(
        "with `skip_all_reduce_unused_params` and `gradient_as_bucket_view` the old gradient of a"
        " skipped parameter is divided by the number of ranks",
        _is_skipped_view,
        lambda config: _without(config, "skip_all_reduce_unused_params"),
    ),
    Known(
        "a static graph whose first pass is under `no_sync` fails with an internal assertion",
        _begins_apart,
        lambda config: _without(config, "static_graph", find_unused_parameters=True),
    ),
    Known(
        "an unused parameter is reported in the next iteration, without its name",
        lambda config, own, other: (
            config.fault == "unused"
            and own.error.startswith("MissingGradient")
            and _is_later(config, own, other)
        ),
    ),
    Known(
        "a static graph that changed is reported in the next iteration",
        lambda config, own, other: (
            config.fault == "graph_changed"
            and own.error.startswith("GraphChanged")
            and _is_later(config, own, other)
        ),
    ),
    Known(
        "a module without a parameter to train raises RuntimeError",
        lambda config, own, other: (
            config.fault == "all_frozen"
            and own.failed_at == other.failed_at == -1
            and own.error.startswith("ValueError")
            and other.error.startswith("RuntimeError")
        ),
    ),
)


def known(config: Config, ours: Sequence[Any], theirs: Sequence[Any]) -> Known | None:
    """Return the documented difference that explains the outcome of every rank, or None."""
    pairs = list(zip(ours, theirs, strict=True))
    if not all(isinstance(result, Outcome) for pair in pairs for result in pair):
        return None
    for candidate in KNOWN:
        if all(candidate.explains(config, own, other) for own, other in pairs):
            return candidate
    return None


def differences(
    config: Config,
    ours: Sequence[Any],
    theirs: Sequence[Any],
    explained: bool = False,
    full: Sequence[Any] | None = None,
) -> list[str]:
    """Return the differences, rank by rank, in words.

    Args:
        config: What ran.
        ours: The outcome of each rank here.
        theirs: And in torch.
        explained: Whether errors differ as documented, so that only steps before them count.
        full: The outcome of each rank of torch in float64. Training may multiply rounding errors,
            ours as well as torch's.
    """
    found = []
    exact = full or [Outcome()] * len(ours)
    for rank, (own, other, third) in enumerate(zip(ours, theirs, exact, strict=True)):
        if not isinstance(own, Outcome) or not isinstance(other, Outcome):
            found.append(f"rank {rank}: here {_short(own)}, torch {_short(other)}")
        elif not explained and not raises_alike(own, other):
            found.append(f"rank {rank}: here {_fate(own)}; torch {_fate(other)}")
        else:
            found += [f"rank {rank}: {text}" for text in _of_rank(config, own, other, third)]
    return found


def kinds(found: Sequence[str]) -> set[str]:
    """Return the kinds of differences: the texts without ranks, steps and numbers."""
    made = set()
    for text in found:
        rest = re.sub(r"^rank \d+: (step \d+, )?", "", text)
        own, apart, other = rest.partition("; torch ")
        if apart:
            made.add(" and ".join(":".join(side.split(":")[1:2]) for side in (own, other)))
        else:
            made.add(
                re.sub(r" \S*: differs by .*", " differs", re.sub(r" \S*: None", " None", rest))
            )
    return made


def raises_alike(own: Outcome, other: Outcome) -> bool:
    """Return whether both raised in the same step, and handlers of torch's error catch ours."""
    if own.failed_at is None or other.failed_at is None:
        return own.failed_at == other.failed_at
    return own.failed_at == other.failed_at and other.kinds[0] in own.kinds


def _of_rank(config: Config, own: Outcome, other: Outcome, exact: Outcome) -> list[str]:
    used = {config.dtype, *(config.mixed or ()), *(["float16"] * (config.hook in SHORT_HOOKS))}
    bounds = max(BOUNDS[name] for name in used if name)
    found = []
    for step, (a, b) in enumerate(zip(own.grads, other.grads, strict=False)):
        c = exact.grads[step] if step < len(exact.grads) else {}
        found += [f"step {step}, {text}" for text in _of_arrays("gradient", a, b, c, bounds)]
    if own.failed_at is None and other.failed_at is None:
        values = own.parameters, other.parameters, exact.parameters
        found += _of_arrays("parameter", *values, bounds)
        found += _of_arrays("buffer", own.buffers, other.buffers, exact.buffers, bounds)
    return found


def _of_arrays(
    what: str,
    own: dict[str, Any],
    other: dict[str, Any],
    exact: dict[str, Any],
    bounds: tuple[float, float],
) -> list[str]:
    if own.keys() != other.keys():
        return [f"{what}s are called {sorted(own)} here, {sorted(other)} by torch"]
    found = []
    for name, value in own.items():
        wanted = other[name]
        if (value is None) != (wanted is None):
            found.append(f"{what} {name}: None is {'here' if value is None else 'at torch'} only")
        elif value is not None:
            largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)
            allowed = bounds[0] * largest + bounds[1]
            if exact.get(name) is not None:
                rounded = np.nan_to_num(np.abs(wanted - exact[name])).max()
                allowed = min(max(allowed, ROUNDING * rounded), MOST * allowed)
            # With equal_nan: an overflow in both is equal.
            if not np.allclose(value, wanted, 0, allowed, True):
                worst = np.abs(value - wanted).max()
                found.append(f"{what} {name}: differs by {worst:.3g} of {largest:.3g}")
    return found


def _fate(result: Outcome) -> str:
    return f"step {result.failed_at}: {result.error or 'fine'}"


def _short(result: Any) -> str:
    return "an outcome" if isinstance(result, Outcome) else f"{result.kind}: {result.text[:300]}"
