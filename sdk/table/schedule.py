"""Learning-rate schedules of tables as messages; the engine's closed forms."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from gradmesh.engine.optim import SGD, lr_scheduler
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import InvalidRequest

Rate: TypeAlias = Callable[[float, int], float]
"""Returns the learning rate from its base and the number of steps before this one."""

# Arguments of each class and the attributes that hold them.
_KINDS: dict[str, tuple[type[lr_scheduler.LRScheduler], dict[str, str]]] = {
    "constant": (
        lr_scheduler.ConstantLR,
        {"factor": "factor", "total_iters": "total_iters"},
    ),
    "linear": (
        lr_scheduler.LinearLR,
        {"start_factor": "start_factor", "end_factor": "end_factor", "total_iters": "total_iters"},
    ),
    "cosine": (lr_scheduler.CosineAnnealingLR, {"T_max": "t_max", "eta_min": "eta_min"}),
    "step": (lr_scheduler.StepLR, {"step_size": "step_size", "gamma": "gamma"}),
    "exponential": (lr_scheduler.ExponentialLR, {"gamma": "gamma"}),
    "one_cycle": (
        lr_scheduler.OneCycleLR,
        {
            "max_lr": "highest",
            "total_steps": "total_steps",
            "pct_start": "pct_start",
            "anneal_strategy": "anneal_strategy",
            "div_factor": "div_factor",
            "final_div_factor": "final_div_factor",
            "three_phase": "three_phase",
        },
    ),
    "cyclic": (
        lr_scheduler.CyclicLR,
        {
            "base_lr": "lowest",
            "max_lr": "highest",
            "step_size_up": "step_size_up",
            "step_size_down": "step_size_down",
            "mode": "mode",
            "gamma": "gamma",
        },
    ),
}
_WHOLE = ("total_iters", "T_max", "step_size", "total_steps")
# Text arguments are sent as their index in these.
_WORDS = {
    "anneal_strategy": ("cos", "linear"),
    "mode": ("triangular", "triangular2", "exp_range"),
}


def schedule_recipe(schedule: lr_scheduler.LRScheduler | None) -> table_pb2.Recipe | None:
    """Return the recipe of a schedule; its optimizer may be one without parameters.

    Raises:
        InvalidRequest: Tables do not support the schedule.
    """
    if schedule is None:
        return None
    for name, (kind, fields) in _KINDS.items():
        if type(schedule) is kind:
            _check_numbers_only(schedule)
            settings = {
                given: _number(given, getattr(schedule, held)) for given, held in fields.items()
            }
            return table_pb2.Recipe(name=name, settings=settings)
    if isinstance(schedule, lr_scheduler.ReduceLROnPlateau):
        raise InvalidRequest(
            "tables have no schedule ReduceLROnPlateau: their servers see no metric; use it for "
            "the optimizer of the dense parameters"
        )
    raise InvalidRequest(
        f"tables have no schedule {type(schedule).__name__}; there are "
        f"{', '.join(kind.__name__ for kind, _ in _KINDS.values())}"
    )


def schedule_of(recipe: table_pb2.Recipe) -> Rate:
    """Return the schedule that a recipe names.

    Raises:
        InvalidRequest: It is unknown, or its numbers are wrong.
    """
    if not recipe.name:
        return lambda base, step: base
    if recipe.name not in _KINDS:
        raise InvalidRequest(f"no schedule {recipe.name!r}; there are {', '.join(_KINDS)}")
    kind, fields = _KINDS[recipe.name]
    settings: dict[str, Any] = dict(recipe.settings)
    if set(settings) != set(fields) or not all(map(math.isfinite, settings.values())):
        raise InvalidRequest(
            f"schedule {recipe.name!r} takes the numbers {', '.join(fields)}, not {settings}"
        )
    for name in _WHOLE:
        if name in settings and not (settings[name] >= 1 and settings[name] % 1 == 0):
            raise InvalidRequest(f"schedule {recipe.name!r}: {name} must be a whole number from 1")
        if name in settings:
            settings[name] = int(settings[name])
    for name, words in _WORDS.items():
        if name in settings:
            if settings[name] not in range(len(words)):
                raise InvalidRequest(
                    f"schedule {recipe.name!r}: {name} is not the index of an option"
                )
            settings[name] = words[int(settings[name])]
    if issubclass(kind, (lr_scheduler.OneCycleLR, lr_scheduler.CyclicLR)):
        settings["cycle_momentum"] = False
    try:
        made = kind(SGD(), **settings)
    except ValueError as error:
        raise InvalidRequest(f"schedule {recipe.name!r}: {error}") from None
    if isinstance(made, lr_scheduler.OneCycleLR):
        # A table may outlive the cycle; it stays at the last rate.
        last = made.total_steps - 1
        return lambda base, step: made.rate(base, min(step, last), 0)
    return lambda base, step: made.rate(base, step, 0)


def _check_numbers_only(schedule: lr_scheduler.LRScheduler) -> None:
    """Raise InvalidRequest if a schedule needs what a table does not support."""
    if getattr(schedule, "momentum", None) is not None:
        raise InvalidRequest(
            f"the momentum of a table follows no schedule; make its {type(schedule).__name__} with "
            "cycle_momentum=False"
        )
    if getattr(schedule, "scale_fn", None) is not None:
        raise InvalidRequest(
            f"a function cannot be sent; make the {type(schedule).__name__} of a table with a mode "
            "instead of scale_fn"
        )


def _number(name: str, value: Any) -> float:
    """Return an argument as a number."""
    if name in _WORDS:
        return float(_WORDS[name].index(value))
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise InvalidRequest(f"a table has one learning rate; {name} is {value}")
        value = value[0]
    return float(value)


def counts_steps(spec: table_pb2.TableSpec) -> bool:
    """Return whether the number of a step changes its effect on rows."""
    settings = spec.optimizer.settings
    return bool(
        spec.schedule.name
        or spec.eviction.name == "ttl"
        or spec.optimizer.name in ("adam", "adamax", "nadam", "radam")
        or settings.get("dampening", 0.0)
        or settings.get("lr_decay", 0.0)
    )
